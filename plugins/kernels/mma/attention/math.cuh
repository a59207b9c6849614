// Operands of the tensor cores and their products, for each type and way to multiply it.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_MATH_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_MATH_CUH_

#include "kernels/mma/attention/config.cuh"
#include "kernels/mma/tf32.cuh"

namespace bertfuse::kernels::attention_mma {

// An operand's registers of a step, as they are multiplied.
template <Math kMath, int kRegisters>
struct Operand {
  uint32_t high[kRegisters];
  __device__ __forceinline__ void Set(const uint32_t (&full)[kRegisters]) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) high[i] = kMath == Math::kTf32 ? RoundToTf32(full[i]) : full[i];
  }
};

template <int kRegisters>
struct Operand<Math::kThreeTf32, kRegisters> {
  uint32_t high[kRegisters], low[kRegisters];
  __device__ __forceinline__ void Set(const uint32_t (&full)[kRegisters]) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) SplitTf32<false>(high[i], low[i], full[i]);
  }
};

template <class Config>
using RowOperands = Operand<Config::kMath, 4>[Config::kRowTiles];

template <class Config>
__device__ __forceinline__ void SetAll(RowOperands<Config>& operands, const uint32_t (&full)[Config::kRowTiles][4]) {
#pragma unroll
  for (int m = 0; m < Config::kRowTiles; ++m) operands[m].Set(full[m]);
}

// sum += a * b for kTiles tiles of eight columns from `first` on. b's registers of tile i are 2 i and 2 i + 1, or i and
// i + kTiles where they are `kApart`.
template <class Config, int kTiles, bool kApart, int kAll>
__device__ __forceinline__ void MultiplyTiles(float (&sum)[Config::kRowTiles][kAll][4], int first,
                                              const RowOperands<Config>& a,
                                              const Operand<Config::kMath, 2 * kTiles>& b) {
  using T = typename Config::T;
  const auto multiply = [](float (&to)[4], const uint32_t (&x)[4], const uint32_t (&w)[2 * kTiles], int i) {
    kApart ? Mma<T>(to, x, w[i], w[i + kTiles]) : Mma<T>(to, x, w[2 * i], w[2 * i + 1]);
  };
#pragma unroll
  for (int m = 0; m < Config::kRowTiles; ++m) {
    if constexpr (Config::kMath != Math::kThreeTf32) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply(sum[m][first + i], a[m].high, b.high, i);
    } else {
      // The small ones first, and in a sum of their own, which is added with rounding: see gemm_mma::Multiplier.
      float step[kTiles][4] = {};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply(step[i], a[m].low, b.high, i);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply(step[i], a[m].high, b.low, i);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply(step[i], a[m].high, b.high, i);
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) sum[m][first + i / 4][i % 4] += step[i / 4][i % 4];
    }
  }
}

// The sums of two words' elements.
template <class T>
__device__ __forceinline__ uint32_t AddWords(uint32_t a, uint32_t b) {
  if constexpr (sizeof(T) == 2) {
    return AddPairs<T>(a, b);
  } else {
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
  }
}

// A word of ones.
template <class T>
__device__ __forceinline__ uint32_t WordOfOnes() {
  if constexpr (sizeof(T) == 2) {
    return PackPair<T>(1.0f, 1.0f);
  } else {
    return __float_as_uint(1.0f);
  }
}

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_MATH_CUH_
