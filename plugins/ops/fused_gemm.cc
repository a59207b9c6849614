#include "op_table.generated.h"
#include "ops/call.h"
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
  gemm.y = &call.outputs[Op::Out::y];
  return gemm;
}

void Run(const bertfuse_call& call) { RunGemm(call, Gemm(call)); }
size_t WorkspaceSize(const bertfuse_call& call) { return GemmWorkspaceSize(call, Gemm(call)); }

constexpr Tactics kTactics = {
    [](const bertfuse_call& call) { return NumGemmTactics(call, Gemm(call)); },
    [](const bertfuse_call& call, int32_t tactic) { return DescribeGemmTactic(call, Gemm(call), tactic); },
    [](const bertfuse_call& call) { return TunedGemm(Gemm(call)); }};

}  // namespace

const bertfuse_kernel kFusedGemm = CudaKernel<Op, Run, WorkspaceSize, &kTactics>();

}  // namespace bertfuse::cuda
