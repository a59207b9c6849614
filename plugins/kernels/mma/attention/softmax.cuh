// The online softmax over tiles of keys. What it does to a row depends on that row alone, so that a sequence has the
// same bits in any batch.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_SOFTMAX_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_SOFTMAX_CUH_

#include "kernels/mma/attention/variant.cuh"

namespace bertfuse::kernels::attention_mma {

template <class Config>
using Weights = uint32_t[Config::kKeySteps][Config::kRowTiles][4];

// The state of a thread's rows. A weight is 2^((score - reference) * scale). The reference is a maximum, but not always
// the latest.
template <class Config>
class OnlineSoftmax {
 public:
  static constexpr int kRowGroups = Config::kRowGroups;

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) {
      reference_[group] = -INFINITY, sum_[group] = 0.0f;
      if constexpr (kCompensates) lost_[group] = 0.0f;
    }
  }

  // Whether no key was visible to the row so far.
  __device__ __forceinline__ bool HasSeenNone(int group) const { return reference_[group] == -INFINITY; }

  // For weights that are not this object's: `sum` is the whole row's.
  __device__ __forceinline__ void SetSum(int group, int sum) { sum_[group] = 0.25f * static_cast<float>(sum); }

  // Makes ready for the weights of a tile. Returns whether sums so far must be multiplied by `correction`, the same for
  // the whole warp.
  __device__ __forceinline__ bool Advance(const Scores<Config>& score, float scale, float (&correction)[kRowGroups]) {
    float highest[kRowGroups];
    bool rises[kRowGroups], any = false;
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) {
      highest[group] = Highest(score, group);
      // Of two infinities the difference is NaN, and nothing is above.
      rises[group] = (highest[group] - reference_[group]) * scale > kMaxExponent;
      any |= rises[group];
    }
    if (!__any_sync(0xffffffffu, any)) return false;  // as after most tiles but the first
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) {
      const float before = reference_[group];
      reference_[group] = rises[group] ? highest[group] : before;
      // The difference of shifts as they are rounded, so that weights of all tiles are relative to the same.
      const float shift = __fmul_rn(reference_[group], scale);
      correction[group] = rises[group] ? Exp2Approximate(__fmul_rn(before, scale) - shift) : 1.0f;
      sum_[group] *= correction[group];
      if constexpr (kCompensates) lost_[group] *= correction[group];
    }
    return true;
  }

  // Turns a tile's scores into weights, as operands of kStep keys each, and adds them up.
  __device__ __forceinline__ void TakeWeights(Weights<Config>& weights, Scores<Config>& score, float scale) {
    float shift[kRowGroups], tile_sum[kRowGroups] = {};
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) {
      shift[group] = HasSeenNone(group) ? 0.0f : __fmul_rn(reference_[group], scale);
    }
#pragma unroll
    for (int step = 0; step < Config::kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < kRowGroups * kHalves * 2; ++i) {
        float& x = score[i / (4 * kHalves)][kHalves * step + i / 4 % kHalves][i % 4];
        x = Exp2Approximate(fmaf(x, scale, -shift[i / (4 * kHalves) * 2 + i / 2 % 2]));
      }
#pragma unroll
      for (int i = 0; i < kRowGroups * kHalves; ++i) {
        const int group = i / (2 * kHalves) * 2 + i % 2, half = i / 2 % kHalves;
        const float* x = &score[group / 2][kHalves * step + half][group % 2 * 2];
        (kCompensates ? tile_sum : sum_)[group] += x[0] + x[1];
        uint32_t (&words)[4] = weights[step][group / 2];
        if constexpr (kHalves == 2) {
          words[2 * half + group % 2] = PackPair<typename Config::T>(x[0], x[1]);
        } else {
          words[group % 2] = __float_as_uint(x[0]);
          words[2 + group % 2] = __float_as_uint(x[1]);
        }
      }
    }
    if constexpr (kCompensates) {
#pragma unroll
      for (int group = 0; group < kRowGroups; ++group) AddCompensated(group, tile_sum[group]);
    }
  }

  // 1 / the sum of a row's weights, which are spread over four threads.
  __device__ __forceinline__ float InverseSum(int group) const {
    float sum = sum_[group];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return __fdividef(1.0f, sum);
  }

 private:
  // Weights may be as large as two to this power before a new reference is taken: float16 ends at 2^16, and what is
  // rounded to so many bits loses nothing by being larger.
  static constexpr float kMaxExponent = 8.0f;
  static constexpr bool kCompensates = Config::kMath == Math::kThreeTf32;  // the others' operands are coarser anyway
  static constexpr int kHalves = Config::kStep / 8;  // tiles of eight keys in a step; of float32 a half is the odd keys

  // Kahan's sum, of tiles. Next to one key with nearly all of the weight, thousands of small weights that are added one
  // by one are rounded away: of 4,711 keys with 7e-5 of the weight it was a tenth, and 7e-6 of a result whose V is far
  // from zero until its bias is added. What these keys' values come to is still lost where those of eight are below
  // half a unit in the last place of the result.
  __device__ __forceinline__ void AddCompensated(int group, float more) {
    const float added = more - lost_[group], sum = sum_[group] + added;
    lost_[group] = sum - sum_[group] - added;
    sum_[group] = sum;
  }

  // The highest score of a row.
  __device__ __forceinline__ static float Highest(const Scores<Config>& score, int group) {
    float highest = -INFINITY;
#pragma unroll
    for (int j = 0; j < Config::kKeys / 8; ++j) {
      const float* x = &score[group / 2][j][group % 2 * 2];
      highest = fmaxf(highest, fmaxf(x[0], x[1]));
    }
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
    return fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
  }

  float reference_[kRowGroups], sum_[kRowGroups];
  float lost_[kCompensates ? kRowGroups : 1];  // what `sum_` is too large by
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_SOFTMAX_CUH_
