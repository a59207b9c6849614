#include "op_table.generated.h"
#include "ops/gemm_call.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedGemmGeluLayerNorm;

GemmCall Gemm(const bertfuse_call& call) {
  GemmCall gemm;
  gemm.op = Op::kName;
  gemm.x = &call.inputs[Op::In::x];
  gemm.weight = &call.inputs[Op::In::weight];
  gemm.bias = &call.inputs[Op::In::bias];
  gemm.residual = &call.inputs[Op::In::residual];
  gemm.gamma = &call.inputs[Op::In::gamma];
  gemm.beta = &call.inputs[Op::In::beta];
  gemm.row_count = &call.inputs[Op::In::row_count];
  gemm.y = &call.outputs[Op::Out::y];
  gemm.epsilon = call.attributes[Op::Attr::epsilon].f;
  gemm.activation = GeluOf(call.attributes[Op::Attr::approximate]);
  return gemm;
}

}  // namespace

const bertfuse_kernel kFusedGemmGeluLayerNorm = GemmKernel<Op, Gemm>();

}  // namespace bertfuse::cuda
