// What a warp does with its operands at each step of the tensor cores: 16 x 8 products over 32 bytes of k.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_MATH_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_MATH_CUH_

#include "kernels/mma/gemm.h"
#include "kernels/mma/tf32.cuh"

namespace bertfuse::kernels::gemm_mma {

// A warp's operands of one step, as ldmatrix gives them: kI times 16 rows of x, and pairs of 8 rows of the weight.
template <int kI, int kJ>
struct Fragments {
  uint32_t x[kI][4];
  uint32_t w[kJ / 2][4];
};

// All of a warp's products. Of two rows of tiles one runs forwards and the other backwards, so that an instruction
// shares an operand with the one before.
template <class T, class Sum, int kI, int kJ>
__device__ __forceinline__ void MultiplyAll(Sum (&sum)[kI][kJ][4], const uint32_t (&x)[kI][4],
                                            const uint32_t (&w)[kJ / 2][4]) {
#pragma unroll
  for (int i = 0; i < kI; ++i) {
#pragma unroll
    for (int at = 0; at < kJ; ++at) {
      const int j = i % 2 == 0 ? at : kJ - 1 - at;
      Mma<T>(sum[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <class T, Math kMath>
struct Multiplier {
  template <class Sum, int kI, int kJ>
  __device__ __forceinline__ static void Multiply(Sum (&sum)[kI][kJ][4], const Fragments<kI, kJ>& f) {
    MultiplyAll<T>(sum, f.x, f.w);
  }
};

// Rounded to the nearest: the tensor cores would cut off what TF32 has no bits for.
template <int kCount>
__device__ __forceinline__ void RoundAll(uint32_t (&high)[kCount][4], const uint32_t (&full)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) high[i][e] = RoundToTf32(full[i][e]);
  }
}

template <>
struct Multiplier<float, Math::kTf32> {
  template <int kI, int kJ>
  __device__ __forceinline__ static void Multiply(float (&sum)[kI][kJ][4], const Fragments<kI, kJ>& f) {
    Fragments<kI, kJ> rounded;
    RoundAll(rounded.x, f.x), RoundAll(rounded.w, f.w);
    MultiplyAll<float>(sum, rounded.x, rounded.w);
  }
};

template <>
struct Multiplier<__nv_fp8_e4m3, Math::kFp8> {
  template <int kI, int kJ>
  __device__ __forceinline__ static void Multiply(float (&sum)[kI][kJ][4], const Fragments<kI, kJ>& f) {
#pragma unroll
    for (int i = 0; i < kI; ++i) {
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        float step[4] = {};
        Mma<__nv_fp8_e4m3>(step, f.x[i], f.w[j / 2][j % 2 * 2], f.w[j / 2][j % 2 * 2 + 1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][j][e] += step[e];
      }
    }
  }
};

// Three of the four products of halves, the small ones first. Tensor cores cut their sums off, which in a long sum
// would cost more than the splitting gains; so each step has sums of its own, which are added with rounding.
template <>
struct Multiplier<float, Math::kThreeTf32> {
  template <int kI, int kJ>
  __device__ __forceinline__ static void Multiply(float (&sum)[kI][kJ][4], const Fragments<kI, kJ>& f) {
    Fragments<kI, kJ> high, low;
    SplitAll(high.x, low.x, f.x), SplitAll(high.w, low.w, f.w);
#pragma unroll
    for (int i = 0; i < kI; ++i) {
      float step[kJ][4] = {};
      MultiplyRow(step, low.x[i], high.w);
      MultiplyRow(step, high.x[i], low.w);
      MultiplyRow(step, high.x[i], high.w);
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][j][e] += step[j][e];
      }
    }
  }

 private:
  template <int kJ>
  __device__ __forceinline__ static void MultiplyRow(float (&sum)[kJ][4], const uint32_t (&x)[4],
                                                     const uint32_t (&w)[kJ / 2][4]) {
#pragma unroll
    for (int j = 0; j < kJ; ++j) Mma<float>(sum[j], x, w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
  }

  template <int kCount>
  __device__ __forceinline__ static void SplitAll(uint32_t (&high)[kCount][4], uint32_t (&low)[kCount][4],
                                                  const uint32_t (&full)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) SplitTf32(high[i][e], low[i][e], full[i][e]);
    }
  }
};

}  // namespace bertfuse::kernels::gemm_mma
#endif  // BERTFUSE_KERNELS_MMA_GEMM_MATH_CUH_
