// Compile-time configurations of attention for GPUs without wgmma, the layout of their shared memory, and what a launch
// is given.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_CONFIG_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_CONFIG_CUH_

#include <cstdint>

#include "kernels/attention_variant.cuh"
#include "kernels/mma/attention.h"

namespace bertfuse::kernels::attention_mma {

// A block's warps have 16 kRowTiles queries of one head each, and read the same tiles of keys and values.
template <class T_, int kHeadSize_, int kRowTiles_>
struct Config {
  using T = T_;
  static constexpr TileShape kShape = *FindTileShape(kHeadSize_);
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kKeys = kShape.keys;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = kRowTiles == 1 ? kShape.blocks : kShape.wide_blocks;
  static constexpr int kRows = 16 * kRowTiles;      // of a warp
  static constexpr int kRowGroups = 2 * kRowTiles;  // rows of a thread: lane / 4 + 8 i of its warp's
  static constexpr int kQueries = kWarps * kRows;
  static constexpr bool kKeepsQueries = kRowTiles == 1 || kShape.wide_keeps_queries;
  static_assert(sizeof(T) == 2 && kShape.head_size == kHeadSize && kHeadSize % 16 == 0 && kKeys % 32 == 0);

  static constexpr int kChunks = kHeadSize / 8;  // of 16 bytes, in a row
  static constexpr int kStages = 2;
  static constexpr int kKeyTileBytes = kKeys * kHeadSize * 2;
  static constexpr int kStageBytes = StageBytes(kShape);
  static constexpr int kQueryOffset = kKeepsQueries ? kStageBytes : kStages * kStageBytes;
  static constexpr int kSharedBytes = SharedBytes(kShape, kQueries);
  static_assert(Fits(kShape, {kQueries, kKeys, 1}, 99 << 10), "what 8.6, 8.9 and 12.0 have for a block");
};

// Scores count in powers of two: 2^x is what the hardware has.
constexpr float kLog2E = 1.44269504088896341f;

template <class T>
struct Parameters {
  const T *q, *k, *v;                 // of the first row and head
  const T *q_bias, *k_bias, *v_bias;  // null: none. k_bias is given only where it does not cancel in the softmax
  T* y;
  const void* mask;
  bool mask_is_int64;
  int64_t batch, pitch, y_pitch;  // elements from row to row
  int sequence, heads, head_size;
  float kv_heads_per_head;  // a head's keys are those of head (head + 1/2) times this, cut off
  PackedSequences packed;

  float scale_log2;  // scale * log2(e), above 0: a hidden score is -inf, and -inf * 0 is NaN
  int window_left, window_right;
  float soft_cap, scale;
  const T* distance_bias;  // null: none
  int bias_pitch;          // from head to head; 0: one for all
  int bias_left, bias_last;
};

// A tile of queries: from `first_query` on of the sequence that is `length` rows from `first_row` on.
struct Tile {
  int first_row, length;  // 0: there are no more tiles
  int first_query, head;
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_CONFIG_CUH_
