// Element types on the device: Element<T> is the policy that says what kernels do with one; Pack holds several.
#ifndef BERTFUSE_KERNELS_ELEMENTS_CUH_
#define BERTFUSE_KERNELS_ELEMENTS_CUH_

#include <cuda.h>

#include <cstdint>

#include "bertfuse/dtypes.h"
#include "kernels/elements.h"

namespace bertfuse::kernels {

// kCount elements that are loaded and stored in one access: 16 bytes at most.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T value[kCount];
};

// Keeps the compiler from selecting and converting 16-bit elements one by one where they are loaded, and waiting for
// them there.
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

// The policy of an element type: conversions, which round to the nearest even, and its name for TMA. A 16-bit type also
// has Pair, two elements in one 32-bit register. Tensor-core instructions are in ptx/mma.cuh and sm90/ptx/wgmma.cuh.
template <class T>
struct Element;

template <>
struct Element<float> {
  static constexpr CUtensorMapDataType kTensorMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  __device__ __forceinline__ static float ToFloat(float x) { return x; }
  __device__ __forceinline__ static float FromFloat(float x) { return x; }
};

template <>
struct Element<__half> {
  using Pair = __half2;
  static constexpr CUtensorMapDataType kTensorMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  __device__ __forceinline__ static float ToFloat(__half x) { return __half2float(x); }
  __device__ __forceinline__ static __half FromFloat(float x) { return __float2half_rn(x); }
  __device__ __forceinline__ static float2 ToFloats(Pair pair) { return __half22float2(pair); }
  __device__ __forceinline__ static Pair FromFloats(float lo, float hi) { return __floats2half2_rn(lo, hi); }
  __device__ __forceinline__ static Pair Add(Pair a, Pair b) { return __hadd2(a, b); }
};

template <>
struct Element<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr CUtensorMapDataType kTensorMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  __device__ __forceinline__ static float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
  __device__ __forceinline__ static __nv_bfloat16 FromFloat(float x) { return __float2bfloat16_rn(x); }
  __device__ __forceinline__ static float2 ToFloats(Pair pair) { return __bfloat1622float2(pair); }
  __device__ __forceinline__ static Pair FromFloats(float lo, float hi) { return __floats2bfloat162_rn(lo, hi); }
  __device__ __forceinline__ static Pair Add(Pair a, Pair b) { return __hadd2(a, b); }
};

// Quantised operands. Floats beyond the largest become the largest; NaN stays NaN.
template <>
struct Element<__nv_fp8_e4m3> {
  static constexpr CUtensorMapDataType kTensorMapType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  __device__ __forceinline__ static float ToFloat(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
  __device__ __forceinline__ static __nv_fp8_e4m3 FromFloat(float x) { return __nv_fp8_e4m3(x); }
};

template <>
struct Element<int8_t> {
  static constexpr CUtensorMapDataType kTensorMapType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  __device__ __forceinline__ static float ToFloat(int8_t x) { return static_cast<float>(x); }
  // Cut off at the ends; NaN becomes 0.
  __device__ __forceinline__ static int8_t FromFloat(float x) {
    const float whole = rintf(x);
    return static_cast<int8_t>(whole == whole ? static_cast<int>(fminf(fmaxf(whole, -128.0f), 127.0f)) : 0);
  }
};

template <class T>
__device__ __forceinline__ float ToFloat(T x) {
  return Element<T>::ToFloat(x);
}

template <class T>
__device__ __forceinline__ T FromFloat(float x) {
  return Element<T>::FromFloat(x);
}

// Two elements in one 32-bit register, as the tensor cores hold them; `lo` is the element at the lower address.
template <class T>
__device__ __forceinline__ uint32_t PackPair(float lo, float hi) {
  const typename Element<T>::Pair pair = Element<T>::FromFloats(lo, hi);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class T>
__device__ __forceinline__ float2 UnpackPair(uint32_t pair) {
  return Element<T>::ToFloats(reinterpret_cast<const typename Element<T>::Pair&>(pair));
}

// The sum of two pairs of a 16-bit type, rounded once.
template <class T>
__device__ __forceinline__ uint32_t AddPairs(uint32_t a, uint32_t b) {
  using Pair = typename Element<T>::Pair;
  const Pair sum = Element<T>::Add(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const uint32_t&>(sum);
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
