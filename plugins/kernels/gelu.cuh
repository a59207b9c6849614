// GELU on the device, in float32.
#ifndef BERTFUSE_KERNELS_GELU_CUH_
#define BERTFUSE_KERNELS_GELU_CUH_

#include "kernels/activation.h"

namespace bertfuse::kernels {

__device__ __forceinline__ float GeluErf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

// For results that are rounded to 16 bits: within 1e-4 of GeluErf relatively (1.5e-5 absolutely), a fifth of half a
// float16's last bit, in fewer instructions. With u = |x|, gelu(x) = x * (1 - Phi(-u)) where x is positive and x *
// Phi(-u) elsewhere, and log2 Phi(-u) is smooth: a polynomial (minimax on [0, 6], fitted in float64, falling beyond)
// and one exp2 keep the relative error small in the negative tail too, where 1 + erf would cancel. Two more terms would
// give 4e-6, which 16 bits do not show. Infinities and NaN as GeluErf: inf, and NaN of the other two.
__device__ __forceinline__ float GeluErfFast(float x) {
  const float u = fabsf(x);
  float log2_tail = -3.0804096824786924e-4f;
  log2_tail = fmaf(log2_tail, u, 5.702630692391135e-3f);
  log2_tail = fmaf(log2_tail, u, -4.780703019108071e-2f);
  log2_tail = fmaf(log2_tail, u, -4.647166726313563e-1f);
  log2_tail = fmaf(log2_tail, u, -1.1488932477362928f);
  log2_tail = fmaf(log2_tail, u, -1.0001416897283517f);
  float tail;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(tail) : "f"(log2_tail));
  return x * (x > 0.0f ? 1.0f - tail : tail);
}

__device__ __forceinline__ float GeluTanh(float x) {
  // x * sigmoid(2z) is 0.5x(1 + tanh z) without the cancellation at the negative end. A division by the rules would be
  // 20 instructions and a branch for each value.
  const float z = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * z));
}

__device__ __forceinline__ float Activate(float x, Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return GeluErf(x);
    case Activation::kGeluTanh:
      return GeluTanh(x);
    default:
      return x;
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GELU_CUH_
