#include "op_table.generated.h"
#include "ops/gemm_call.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedGemmGelu;

GemmCall Gemm(const bertfuse_call& call) {
  GemmCall gemm;
  gemm.op = Op::kName;
  gemm.x = &call.inputs[Op::In::x];
  gemm.weight = &call.inputs[Op::In::weight];
  gemm.bias = &call.inputs[Op::In::bias];
  gemm.row_count = &call.inputs[Op::In::row_count];
  gemm.y = &call.outputs[Op::Out::y];
  gemm.activation = GeluOf(call.attributes[Op::Attr::approximate]);
  return gemm;
}

}  // namespace

const bertfuse_kernel kFusedGemmGelu = GemmKernel<Op, Gemm>();

}  // namespace bertfuse::cuda
