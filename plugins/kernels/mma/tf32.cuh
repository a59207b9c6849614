// float32 on tensor cores that multiply TF32: a number as the sum of two.
#ifndef BERTFUSE_KERNELS_MMA_TF32_CUH_
#define BERTFUSE_KERNELS_MMA_TF32_CUH_

#include "kernels/ptx/mma.cuh"

namespace bertfuse::kernels {

// x = high + low, as x * w = (x_high + x_low) * (w_high + w_low) without the last of four products, which is below
// 2^-22 of the first, wants it. An infinite one is a low half alone, since infinity times the other operand's low half
// may have any sign; where kInfinite is false, which saves two of five instructions, it makes products NaN.
template <bool kInfinite = true>
__device__ __forceinline__ void SplitTf32(uint32_t& high, uint32_t& low, uint32_t full) {
  const float infinity = __int_as_float(0x7f800000), x = __uint_as_float(full);
  // As RoundToTf32(), which takes more instructions because of what is not finite. The low half is cut off, and NaN
  // where x is.
  const uint32_t rounded = (full + 0x1000u) & 0xffffe000u;
  high = !kInfinite || fabsf(x) < infinity ? rounded : 0u;
  low = __float_as_uint(x - __uint_as_float(high));
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_MMA_TF32_CUH_
