// The three GEMM ops are one call: product, bias, activation, and perhaps residual and LayerNorm.
#ifndef BERTFUSE_OPS_GEMM_CALL_H_
#define BERTFUSE_OPS_GEMM_CALL_H_

#include "bertfuse/op.h"
#include "kernels/activation.h"
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
  const bertfuse_tensor* y;
  float epsilon = 0.0f;
  kernels::Activation activation = kernels::Activation::kNone;
};

kernels::Activation GeluOf(const bertfuse_value& approximate);

void RunGemm(const bertfuse_call& call, const GemmCall& gemm);
size_t GemmWorkspaceSize(const bertfuse_call& call, const GemmCall& gemm);
int32_t NumGemmTactics(const bertfuse_call& call, const GemmCall& gemm);
std::string DescribeGemmTactic(const bertfuse_call& call, const GemmCall& gemm, int32_t tactic);
TunedProblem TunedGemm(const GemmCall& gemm);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_CALL_H_
