// Single instructions of one thread that CUDA C++ has no function for.
#ifndef BERTFUSE_KERNELS_PTX_SCALAR_CUH_
#define BERTFUSE_KERNELS_PTX_SCALAR_CUH_

#include <cstdint>

namespace bertfuse::kernels {

// From the L2 cache: what the L1 cache has may be of an earlier batch.
__device__ __forceinline__ int32_t LoadVolatile(const int32_t* data) {
  int32_t value;
  asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(value) : "l"(data) : "memory");
  return value;
}

// 2^x with a relative error of 2^-22; results below 2^-126 are zero.
__device__ __forceinline__ float Exp2Approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void PrefetchL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

// The greater of a magnitude and that of x; NaN where one of them is.
__device__ __forceinline__ float GreaterMagnitude(float magnitude, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(magnitude), "f"(fabsf(x)));
  return greater;
#else
  return __uint_as_float(max(__float_as_uint(magnitude), __float_as_uint(fabsf(x))));
#endif
}

// The greatest magnitude that a lane of the warp has. As integers magnitudes are in the same order, NaN behind
// infinity.
__device__ __forceinline__ float GreatestOfWarp(float magnitude) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(magnitude)));
#else
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    magnitude = GreaterMagnitude(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, lanes));
  }
  return magnitude;
#endif
}

// Four integers as signed bytes, saturated, the first one lowest: two instructions.
__device__ __forceinline__ uint32_t PackSaturated(int32_t first, int32_t second, int32_t third, int32_t fourth) {
  uint32_t upper, all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(fourth), "r"(third));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(second), "r"(first), "r"(upper));
  return all;
}

// The same value, of which the compiler does not know where it comes from: it then computes what follows from it again
// in place of keeping that in registers.
__device__ __forceinline__ int Hidden(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <class T>
__device__ __forceinline__ T* Hidden(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_SCALAR_CUH_
