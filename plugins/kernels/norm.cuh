// Norms of a row, as policies of the kernels that normalise: y = Apply((x - Center) * Scale, Gamma, beta). Center and
// Scale come from the row's sum and its sum of squared deviations from Center; kernels merge those of slices.
// kAddsBeta: there is a beta, which may be null where kBetaIsOptional. kStoresTotal: x is an output, too. kQuantizes: y
// is written in 8 bits, too. kNormalizesProduct: the product becomes its RMSNorm before the residual is added, and x is
// that sum. kRestoresResidual: the residual comes in 8 bits, and y may be left unwritten beside its own.
#ifndef BERTFUSE_KERNELS_NORM_CUH_
#define BERTFUSE_KERNELS_NORM_CUH_

#include "kernels/quantized_result.h"

namespace bertfuse::kernels::norms {

// An IEEE division has a branch and takes 10 instructions. A product that the compiler may fuse with what follows is
// fused in some kernels and not in others, which then differ in the last bit: packed rows would not equal padded ones.
// __fmul_rn and __fadd_rn are never fused.
__device__ __forceinline__ float Mean(float sum, float count) { return __fmul_rn(sum, __fdividef(1.0f, count)); }
__device__ __forceinline__ float InverseRoot(float squares, float count, float epsilon) {
  return rsqrtf(__fadd_rn(Mean(squares, count), epsilon));
}

struct LayerNorm {
  static constexpr bool kAddsBeta = true, kBetaIsOptional = false, kStoresTotal = false, kQuantizes = false,
                        kNormalizesProduct = false, kRestoresResidual = false;
  __device__ __forceinline__ static float Center(float sum, float count) { return Mean(sum, count); }
  __device__ __forceinline__ static float Scale(float squares, float count, float epsilon) {
    return InverseRoot(squares, count, epsilon);
  }
  __device__ __forceinline__ static float Gamma(float stored, float) { return stored; }
  __device__ __forceinline__ static float Apply(float normalized, float gamma, float beta) {
    return fmaf(normalized, gamma, beta);
  }
};

struct RmsNorm {
  static constexpr bool kAddsBeta = false, kBetaIsOptional = false, kStoresTotal = false, kQuantizes = false,
                        kNormalizesProduct = false, kRestoresResidual = false;
  __device__ __forceinline__ static float Center(float, float) { return 0.0f; }
  __device__ __forceinline__ static float Scale(float squares, float count, float epsilon) {
    return InverseRoot(squares, count, epsilon);
  }
  // With an offset of 1 what is stored in 16 bits of gammas near 1 is their small difference from it.
  __device__ __forceinline__ static float Gamma(float stored, float offset) { return stored + offset; }
  __device__ __forceinline__ static float Apply(float normalized, float gamma, float) { return normalized * gamma; }
};

template <class Norm>
struct WithTotal : Norm {
  static constexpr bool kBetaIsOptional = true, kStoresTotal = true;
};

template <class Norm>
struct WithProductNorm : Norm {
  static constexpr bool kNormalizesProduct = true;
};

// Whether y is written in its own type.
template <class Norm>
__device__ __forceinline__ bool StoresY(const QuantizedResult& to) {
  return !(Norm::kRestoresResidual && Norm::kQuantizes && to.alone);
}

// A number of the product's RMSNorm; nothing that is added to it is fused with it.
__device__ __forceinline__ float NormalizedProduct(float product, float inverse_root, float gamma) {
  return __fmul_rn(product * inverse_root, gamma);
}

template <class Norm>
struct WithQuantized : Norm {
  static constexpr bool kQuantizes = true;
};

template <class Norm>
struct WithQuantizedResidual : Norm {
  static constexpr bool kRestoresResidual = true;
};

}  // namespace bertfuse::kernels::norms
#endif  // BERTFUSE_KERNELS_NORM_CUH_
