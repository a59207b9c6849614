// The four GEMM ops are one call: product, bias, activation, and perhaps residual and LayerNorm.
#ifndef BERTFUSE_OPS_GEMM_CALL_H_
#define BERTFUSE_OPS_GEMM_CALL_H_

#include "bertfuse/op.h"
#include "kernels/activation.h"
#include "ops/call.h"
#include "ops/tuning.h"

namespace bertfuse::cuda {

// The op's tensors and attributes under common names; null where the op has none or the call does not give it.
struct GemmCall {
  const char* op;
  const bertfuse_tensor* x;
  const bertfuse_tensor* weight;
  const bertfuse_tensor* bias;
  const bertfuse_tensor* residual = nullptr;
  const bertfuse_tensor* gamma = nullptr;  // given: LayerNorm
  const bertfuse_tensor* beta = nullptr;
  const bertfuse_tensor* row_count;
  const bertfuse_tensor* y;
  float epsilon = 0.0f;
  kernels::Activation activation = kernels::Activation::kNone;
};

kernels::Activation GeluOf(const bertfuse_value& approximate);

void RunGemm(const bertfuse_call& call, const GemmCall& gemm);
size_t GemmWorkspaceSize(const bertfuse_call& call, const GemmCall& gemm);
int32_t NumGemmTactics(const bertfuse_call& call, const GemmCall& gemm);
std::string DescribeGemmTactic(const bertfuse_call& call, const GemmCall& gemm, int32_t tactic);
TunedProblem TunedGemm(const bertfuse_call& call, const GemmCall& gemm);

template <GemmCall (*kGemm)(const bertfuse_call&)>
inline constexpr Tactics kGemmTactics = {
    [](const bertfuse_call& call) { return NumGemmTactics(call, kGemm(call)); },
    [](const bertfuse_call& call, int32_t tactic) { return DescribeGemmTactic(call, kGemm(call), tactic); },
    [](const bertfuse_call& call) { return TunedGemm(call, kGemm(call)); }};

template <GemmCall (*kGemm)(const bertfuse_call&)>
void RunGemmOp(const bertfuse_call& call) {
  RunGemm(call, kGemm(call));
}

template <GemmCall (*kGemm)(const bertfuse_call&)>
size_t GemmOpWorkspaceSize(const bertfuse_call& call) {
  return GemmWorkspaceSize(call, kGemm(call));
}

// The table entry of an op whose call kGemm describes.
template <class Op, GemmCall (*kGemm)(const bertfuse_call&)>
constexpr bertfuse_kernel GemmKernel() {
  return CudaKernel<Op, RunGemmOp<kGemm>, GemmOpWorkspaceSize<kGemm>, &kGemmTactics<kGemm>>();
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_CALL_H_
