#include "op_table.generated.h"
#include "ops/gemm_call.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedGemm;

GemmCall Gemm(const bertfuse_call& call) {
  GemmCall gemm;
  gemm.op = Op::kName;
  gemm.x = &call.inputs[Op::In::x];
  gemm.weight = &call.inputs[Op::In::weight];
  gemm.bias = &call.inputs[Op::In::bias];
  gemm.row_count = &call.inputs[Op::In::row_count];
  gemm.y = &call.outputs[Op::Out::y];
  return gemm;
}

}  // namespace

const bertfuse_kernel kFusedGemm = GemmKernel<Op, Gemm>();

}  // namespace bertfuse::cuda
