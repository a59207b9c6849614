// Norms of a row, as policies of the kernels that normalise: y = Apply((x - Center) * Scale, gamma, beta). Center and
// Scale come from the row's sum and its sum of squared deviations from Center; kernels merge those of slices.
#ifndef BERTFUSE_KERNELS_NORM_CUH_
#define BERTFUSE_KERNELS_NORM_CUH_

namespace bertfuse::kernels::norms {

struct LayerNorm {
  static constexpr bool kAddsBeta = true;
  __device__ __forceinline__ static float Center(float sum, float count) { return Mean(sum, count); }
  __device__ __forceinline__ static float Scale(float squares, float count, float epsilon) {
    return rsqrtf(__fadd_rn(Mean(squares, count), epsilon));
  }
  __device__ __forceinline__ static float Apply(float normalized, float gamma, float beta) {
    return fmaf(normalized, gamma, beta);
  }

 private:
  // An IEEE division has a branch and takes 10 instructions. A product that the compiler may fuse with what follows is
  // fused in some kernels and not in others, which then differ in the last bit: packed rows would not equal padded
  // ones.
  // __fmul_rn and __fadd_rn are never fused.
  __device__ __forceinline__ static float Mean(float sum, float count) {
    return __fmul_rn(sum, __fdividef(1.0f, count));
  }
};

}  // namespace bertfuse::kernels::norms
#endif  // BERTFUSE_KERNELS_NORM_CUH_
