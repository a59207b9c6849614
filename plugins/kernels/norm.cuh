// Norms of a row, as policies of the kernels that normalise: y = Apply((x - Center) * Scale, gamma, beta). Center and
// Scale come from the row's sum and its sum of squared deviations from Center; kernels merge those of slices.
#ifndef BERTFUSE_KERNELS_NORM_CUH_
#define BERTFUSE_KERNELS_NORM_CUH_

namespace bertfuse::kernels::norms {

struct LayerNorm {
  static constexpr bool kAddsBeta = true;
  __device__ __forceinline__ static float Center(float sum, float count) { return __fdividef(sum, count); }
  __device__ __forceinline__ static float Scale(float squares, float count, float epsilon) {
    return rsqrtf(__fdividef(squares, count) + epsilon);
  }
  __device__ __forceinline__ static float Apply(float normalized, float gamma, float beta) {
    return fmaf(normalized, gamma, beta);
  }
};

}  // namespace bertfuse::kernels::norms
#endif  // BERTFUSE_KERNELS_NORM_CUH_
