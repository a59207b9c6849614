// Windows in the Hopper attention kernel: which blocks of keys a tile's queries see, and which keys of a block a
// thread's rows see.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_WINDOW_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_WINDOW_CUH_

#include "kernels/attention_variant.cuh"
#include "kernels/packed_places.cuh"
#include "kernels/sm90/attention/config.cuh"

namespace bertfuse::kernels::attention_sm90 {

// Keys, or blocks of keys, from `begin` to `end`.
struct KeyRange {
  int begin, end;
};

// The last key, or place of one, that a query sees.
__device__ __forceinline__ int LastSeen(const Parameters& p, int query) {
  return max(query + p.window_right, p.prefix_last);
}

// The keys of a sequence that are in the window of one of the queries from `first` to `last`, which are two of it.
__device__ __forceinline__ KeyRange Window(const Parameters& p, int first, int last, int length) {
  return {max(first - p.window_left, 0), min(LastSeen(p, last), length - 1) + 1};
}

// Those of one query where there are gaps between tokens: some of the keys without them.
__device__ __forceinline__ KeyRange Window(const Parameters& p, const Places& places, int query, int length) {
  const int place = places.At(query);
  return {places.FirstFrom(place - p.window_left, length), places.FirstFrom(LastSeen(p, place) + 1, length)};
}

template <int kKeys>
__device__ __forceinline__ KeyRange BlocksOf(const KeyRange& keys) {
  return {keys.begin / kKeys, (keys.end + kKeys - 1) / kKeys};
}

// Whether the bit of one of these keys is 1.
__device__ __forceinline__ bool SeesAny(const uint32_t* bits, const KeyRange& keys) {
#pragma unroll 1
  for (int key = keys.begin / 32 * 32; key < keys.end; key += 32) {
    if ((bits[key / 32] & BitsBelow(keys.end - key) & ~BitsBelow(keys.begin - key)) != 0) return true;
  }
  return false;
}

// The keys of a thread's two rows. A row that sees none is blind: it attends to all of the sequence's alike.
struct RowWindows {
  KeyRange keys[2];
  bool blind[2];
};

// Scores as in softmax.cuh: -inf for the keys that a row does not see, of a block that begins with `first_key`. Bit i
// of `visible` is 0 where the mask hides a key.
template <int kCount>
__device__ __forceinline__ void MaskKeys(float (&score)[kCount], const uint32_t (&visible)[kCount / 16],
                                         const RowWindows& rows, int first_key) {
#pragma unroll
  for (int word = 0; word < kCount / 16; ++word) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const KeyRange& keys = rows.keys[row];
      const int first = first_key + 32 * word;
      uint32_t own = BitsBelow(keys.end - first) & ~BitsBelow(keys.begin - first);
      if (!rows.blind[row]) own &= visible[word];
      if (own == 0xffffffffu && !rows.blind[row]) continue;
      own >>= threadIdx.x % 4 * 2;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = score[16 * word + i / 2 * 4 + 2 * row + i % 2];
        if (rows.blind[row]) x = 0.0f;
        if ((own >> (i / 2 * 8 + i % 2) & 1) == 0) x = -INFINITY;
      }
    }
  }
}

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_WINDOW_CUH_
