// Element types on the device: float32, float16 and bfloat16 to and from float, several at once.
#ifndef BERTFUSE_KERNELS_ELEMENTS_CUH_
#define BERTFUSE_KERNELS_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace bertfuse::kernels {

// kCount elements that are loaded and stored in one access: 16 bytes at most.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T value[kCount];
};

// Or else the compiler selects and converts 16-bit elements one by one where they are loaded, and waits for them there.
template <class T, int kCount>
__device__ __forceinline__ void KeepPacked(Pack<T, kCount>& pack) {
  if constexpr (sizeof(pack) % sizeof(uint32_t) == 0) {
#pragma unroll
    for (size_t i = 0; i < sizeof(pack) / sizeof(uint32_t); ++i) {
      asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(&pack)[i]));
    }
  }
}

// Zeros where `condition` does not hold.
template <int kCount, class T>
__device__ __forceinline__ Pack<T, kCount> LoadIf(bool condition, const T* data) {
  Pack<T, kCount> pack = {};
  if (condition) pack = *reinterpret_cast<const Pack<T, kCount>*>(data);
  KeepPacked(pack);
  return pack;
}

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Two elements in one 32-bit register, as the tensor cores hold them; `lo` is the element at the lower address.
template <class T>
__device__ __forceinline__ uint32_t PackPair(float lo, float hi);
template <>
__device__ __forceinline__ uint32_t PackPair<__half>(float lo, float hi) {
  const __half2 pair = __floats2half2_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t PackPair<__nv_bfloat16>(float lo, float hi) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class T>
__device__ __forceinline__ float2 UnpackPair(uint32_t pair);
template <>
__device__ __forceinline__ float2 UnpackPair<__half>(uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
template <>
__device__ __forceinline__ float2 UnpackPair<__nv_bfloat16>(uint32_t pair) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ELEMENTS_CUH_
