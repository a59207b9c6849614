// The online softmax of the Hopper attention kernel. A thread's scores lie as wgmma leaves them: score[4 j + 2 r + e]
// is row lane / 4 + 8 r, key 8 j + 2 (lane % 4) + e.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_SOFTMAX_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_SOFTMAX_CUH_

#include <cfloat>
#include <cstdint>

#include "kernels/ptx/scalar.cuh"

namespace bertfuse::kernels::attention_sm90 {

// Keys whose bit is 0 become -inf.
template <int kCount>
__device__ __forceinline__ void MaskKeys(float (&score)[kCount], const uint32_t (&bits)[kCount / 16]) {
#pragma unroll
  for (int word = 0; word < kCount / 16; ++word) {
    const uint32_t visible = bits[word];
    if (visible == 0xffffffffu) continue;
    const uint32_t own = visible >> threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if ((own >> (i / 4 * 8 + i % 2) & 1) == 0) score[16 * word + i] = -INFINITY;
    }
  }
}

// The state of two rows. `row_sum` is the sum of this thread's weights, and a weight is 2^((score - row_max) * scale).
struct OnlineSoftmax {
  float scale;
  float row_max[2], row_sum[2];

  // The first block's scores become weights.
  template <int kCount>
  __device__ __forceinline__ void Start(float (&score)[kCount]) {
    row_max[0] = row_max[1] = -FLT_MAX;
    UpdateRowMax(score);
    for (int row = 0; row < 2; ++row) row_sum[row] = Exponentiate(score, row);
  }

  // Turns the next block's scores into weights relative to the maxima of the blocks before. These may be lower than
  // this block's, which only makes the sums larger; finding new ones takes a fifth of the loop's instructions, and its
  // longest dependency chain. Returns false, with the scores lost, if a weight may be too large for 16 bits or no key
  // was visible before.
  template <int kCount>
  __device__ __forceinline__ bool TryContinue(float (&score)[kCount]) {
    const float sum[2] = {Exponentiate(score, 0), Exponentiate(score, 1)};
    const bool fails = fmaxf(sum[0], sum[1]) > 4096.0f || fminf(row_max[0], row_max[1]) == -FLT_MAX;
    if (__any_sync(0xffffffffu, fails)) return false;
    for (int row = 0; row < 2; ++row) row_sum[row] += sum[row];
    return true;
  }

  // The same with new maxima; sums with the old ones must be multiplied by `correction`.
  template <int kCount>
  __device__ __forceinline__ void Continue(float (&score)[kCount], float (&correction)[2]) {
    const float before[2] = {row_max[0], row_max[1]};
    UpdateRowMax(score);
    for (int row = 0; row < 2; ++row) {
      correction[row] = Exp2Approximate((before[row] - row_max[row]) * scale);
      row_sum[row] = row_sum[row] * correction[row] + Exponentiate(score, row);
    }
  }

  // Over the four threads of a row.
  __device__ __forceinline__ float InverseRowSum(int row) const {
    float sum = row_sum[row];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return __fdividef(1.0f, sum);
  }

 private:
  template <int kCount>
  __device__ __forceinline__ void UpdateRowMax(const float (&score)[kCount]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        row_max[row] = fmaxf(row_max[row], fmaxf(score[4 * j + 2 * row], score[4 * j + 2 * row + 1]));
      }
    }
#pragma unroll
    for (int lanes = 1; lanes <= 2; ++lanes) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        row_max[row] = fmaxf(row_max[row], __shfl_xor_sync(0xffffffffu, row_max[row], lanes));
      }
    }
  }

  // Returns the sum.
  template <int kCount>
  __device__ __forceinline__ float Exponentiate(float (&score)[kCount], int row) const {
    // While every key so far is hidden, `row_max` is -FLT_MAX: its product must stay finite.
    const float shift = row_max[row] == -FLT_MAX ? 0.0f : row_max[row] * scale;
    float sum[2] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& value = score[4 * j + 2 * row + e];
        value = Exp2Approximate(fmaf(value, scale, -shift));
        sum[e] += value;
      }
    }
    return sum[0] + sum[1];
  }
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_SOFTMAX_CUH_
