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
