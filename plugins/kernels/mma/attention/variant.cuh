// What a variant of attention does to a tile's scores before the softmax. Each step is taken or left for the whole
// launch or the whole warp, so that one kernel serves all variants.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_VARIANT_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_VARIANT_CUH_

#include "kernels/mma/attention/key_tiles.cuh"
#include "kernels/mma/attention/tiles.cuh"
#include "kernels/packed_places.cuh"
#include "kernels/ptx/scalar.cuh"

namespace bertfuse::kernels::attention_mma {

template <class Config>
using Scores = float[Config::kRowTiles][Config::kKeys / 8][4];

// A warp's rows of a tile of queries.
template <class Config>
struct WarpRows {
  int first, last;  // queries; none where last < first
  int length;       // of the sequence

  __device__ __forceinline__ explicit WarpRows(const Tile& tile)
      : first(tile.first_query + static_cast<int>(threadIdx.x) / 32 % Config::kRowWarps * Config::kRows),
        last(min(first + Config::kRows, tile.length) - 1),
        length(tile.length) {}
  __device__ __forceinline__ int Own(int group, int lane) const { return first + lane / 4 + 8 * group; }
};

// Whether a query of the warp has a key of the tile in its window.
template <class Config>
__device__ __forceinline__ bool MaySeeAny(const Parameters<typename Config::T>& p, const WarpRows<Config>& rows,
                                          int first_key) {
  if (!Config::kVariants) return rows.last >= rows.first;
  return rows.last >= rows.first && first_key <= rows.last + WindowRight<Config>(p) &&
         first_key + Config::kKeys > rows.first - WindowLeft<Config>(p);
}

// Whether all queries of the warp see all keys of the tile.
template <class Config>
__device__ __forceinline__ bool SeesAll(const Parameters<typename Config::T>& p, const WarpRows<Config>& rows,
                                        const KeyTile<Config>& keys) {
  if (!Config::kVariants) return keys.SeesAll();
  return keys.SeesAll() && keys.first_key >= rows.last - WindowLeft<Config>(p) &&
         keys.first_key + Config::kKeys - 1 <= rows.first + WindowRight<Config>(p);
}

// Makes the scores of row group `group` -inf where the key's bit is 0.
template <class Config>
__device__ __forceinline__ void HideKeys(Scores<Config>& score, int group, int lane,
                                         const uint32_t (&visible)[Config::kKeys / 32]) {
#pragma unroll
  for (int word = 0; word < Config::kKeys / 32; ++word) {
    const uint32_t own = visible[word] >> lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = score[group / 2][4 * word + i / 2][group % 2 * 2 + i % 2];
      if ((own >> (i / 2 * 8 + i % 2) & 1) == 0) x = -INFINITY;
    }
  }
}

// Makes the scores -inf that the mask, the sequence's end or the window hides.
template <class Config>
__device__ __forceinline__ void HideKeys(Scores<Config>& score, const Parameters<typename Config::T>& p,
                                         const WarpRows<Config>& rows, const KeyTile<Config>& keys,
                                         const Places& places) {
  const int lane = LaneNow();
  if constexpr (!Config::kVariants) {  // all rows see the same
#pragma unroll
    for (int group = 0; group < Config::kRowGroups; ++group) HideKeys<Config>(score, group, lane, keys.visible);
    return;
  }
  int begin = 0, end = 0;
  if (places.HaveGaps()) {  // a lane looks for a row's window, once more for each tile: registers are scarcer than time
    const int row = min(rows.first + lane % Config::kRows, rows.last), place = places.At(row);
    begin = places.FirstFrom(place - WindowLeft<Config>(p), rows.length) - keys.first_key;
    end = places.FirstFrom(place + WindowRight<Config>(p) + 1, rows.length) - keys.first_key;
  }
#pragma unroll
  for (int group = 0; group < Config::kRowGroups; ++group) {
    const int distance = rows.Own(group, lane) - keys.first_key;
    int first = distance - WindowLeft<Config>(p), last = distance + WindowRight<Config>(p) + 1;
    if (places.HaveGaps()) {
      first = __shfl_sync(0xffffffffu, begin, lane / 4 + 8 * group);
      last = __shfl_sync(0xffffffffu, end, lane / 4 + 8 * group);
    }
    uint32_t visible[Config::kKeys / 32];
#pragma unroll
    for (int word = 0; word < Config::kKeys / 32; ++word) {
      visible[word] = keys.visible[word] & BitsBelow(last - 32 * word) & ~BitsBelow(first - 32 * word);
    }
    HideKeys<Config>(score, group, lane, visible);
  }
}

// q·k_bias of each row group: with a soft cap, K's bias does not cancel. It is multiplied like one key, and for every
// tile again: registers are scarcer than time in so rare a variant.
template <class Config>
__device__ __forceinline__ void MultiplyKeyBias(float (&shift)[Config::kRowGroups],
                                                const Parameters<typename Config::T>& p, const Queries<Config>& queries,
                                                int kv_column) {
  const int lane = LaneNow();
  const auto* bias = p.k_bias + kv_column;
  float product[Config::kRowTiles][1][4] = {};
#pragma unroll(Config::kStepsAtOnce)
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t loaded[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = Config::kStep * step + Config::kPerChunk * half + lane % 4 * Config::kPerWord;
      if (lane < 4 && column < p.head_size) loaded[half] = *reinterpret_cast<const uint32_t*>(bias + column);
    }
    RowOperands<Config> q;
    queries.Get(q, step, lane);
    Operand<Config::kMath, 2> k;
    k.Set(loaded);
    MultiplyTiles<Config, 1, false>(product, 0, q, k);
  }
#pragma unroll
  for (int group = 0; group < Config::kRowGroups; ++group) {
    shift[group] = __shfl_sync(0xffffffffu, product[group / 2][0][group % 2 * 2], lane / 4 * 4);
  }
}

// Scores become soft_cap * tanh(score * scale / soft_cap) * log2(e).
template <class Config>
__device__ __forceinline__ void CapScores(Scores<Config>& score, const Parameters<typename Config::T>& p,
                                          const Queries<Config>& queries, int kv_column) {
  float shift[Config::kRowGroups] = {};
  if (p.k_bias != nullptr) MultiplyKeyBias(shift, p, queries, kv_column);
  // Hidden: the loop over tiles would otherwise begin with -2 * cap_log2, and keep it.
  const float exponent = p.cap_exponent, cap = __uint_as_float(Hidden(__float_as_uint(p.cap_log2)));
#pragma unroll
  for (int m = 0; m < Config::kRowTiles; ++m) {
#pragma unroll
    for (int j = 0; j < Config::kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = score[m][j][e];
        const float e2x = Exp2Approximate((x + shift[2 * m + e / 2]) * exponent);  // tanh(x) = 1 - 2 / (e^2x + 1)
        x = fmaf(-2.0f * cap, __fdividef(1.0f, e2x + 1.0f), cap);
      }
    }
  }
}

// Adds distance_bias[head, key - query + bias_left] * log2(e), the column cut off at both ends. Eight rows and eight
// keys farther the column is the same, so that most loads serve several rows; not where there are gaps.
template <class Config>
__device__ __forceinline__ void AddDistanceBias(Scores<Config>& score, const Parameters<typename Config::T>& p,
                                                const WarpRows<Config>& rows, int first_key, int head,
                                                const Places& places) {
  const int lane = LaneNow();
  const auto* bias = p.distance_bias + static_cast<int64_t>(head) * p.bias_pitch;
  if (places.HaveGaps()) {
#pragma unroll 1  // unrolled, so rare a case would want more registers than all others
    for (int j = 0; j < Config::kKeys / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        const int group = i / 2, e = i % 2, key = min(first_key + lane % 4 * 2 + 8 * j + e, rows.length - 1);
        const int column = places.At(key) - places.At(min(rows.Own(group, lane), rows.length - 1)) + p.bias_left;
        const float add = ToFloat(bias[min(max(column, 0), p.bias_last)]) * kLog2E;
#pragma unroll
        for (int tile = 0; tile < Config::kKeys / 8; ++tile) {
          if (tile == j) score[group / 2][tile][group % 2 * 2 + e] += add;
        }
      }
    }
    return;
  }
  const int column = first_key + lane % 4 * 2 - rows.Own(0, lane) + p.bias_left;
#pragma unroll
  for (int d = 1 - Config::kRowGroups; d < Config::kKeys / 8; ++d) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float add = ToFloat(bias[min(max(column + 8 * d + e, 0), p.bias_last)]) * kLog2E;
#pragma unroll
      for (int group = 0; group < Config::kRowGroups; ++group) {
        if (d + group < 0 || d + group >= Config::kKeys / 8) continue;
        score[group / 2][d + group][group % 2 * 2 + e] += add;
      }
    }
  }
}

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_VARIANT_CUH_
