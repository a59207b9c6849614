// Compile-time configurations of attention for GPUs without wgmma, the layout of their shared memory, and what a launch
// is given.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_CONFIG_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_CONFIG_CUH_

#include <cstdint>

#include "kernels/attention_variant.cuh"
#include "kernels/mma/attention.h"

namespace bertfuse::kernels::attention_mma {

// A block's warps have 16 kRowTiles queries of one head each, and read the same tiles of keys and values. Where a warp
// has not the registers for all columns of its results, kColumnWarps share the queries: each multiplies these with all
// keys, and what they weigh with its part of the values' columns.
template <class T_, Math kMath_, int kIndex, int kRowTiles_, bool kPositions_ = false>
struct Config {
  using T = T_;
  static constexpr Math kMath = kMath_;
  static constexpr TileShape kShape = ShapesOf<kMath>()[kIndex];
  static constexpr int kHeadSize = kShape.head_size;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr bool kPositions = kPositions_;  // multiplies with vectors by distance, and knows hidden queries
  static constexpr int kKeys = kShape.keys;
  static constexpr int kRowWarps = 4, kColumnWarps = kShape.column_warps;
  static constexpr int kWarps = kRowWarps * kColumnWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = kPositions ? 1 : kRowTiles == 1 ? kShape.blocks : kShape.wide_blocks;
  static constexpr int kRows = 16 * kRowTiles;      // of a warp
  static constexpr int kRowGroups = 2 * kRowTiles;  // rows of a thread: lane / 4 + 8 i of its warp's
  static constexpr int kQueries = kRowWarps * kRows;
  static constexpr bool kKeepsQueries = kRowTiles == 1 ? kShape.keeps_queries : kShape.wide_keeps_queries;

  static constexpr int kPerWord = 4 / sizeof(T);                   // elements in 32 bits
  static constexpr int kPerChunk = 4 * kPerWord;                   // in 16 bytes
  static constexpr int kStep = 2 * kPerChunk;                      // of k, of one instruction of the tensor cores
  static constexpr int kChunks = kHeadSize / kPerChunk;            // in a row
  static constexpr int kSteps = kHeadSize / kStep;                 // of Q Kᵀ
  static constexpr int kKeySteps = kKeys / kStep;                  // of P V
  static constexpr int kResultColumns = kHeadSize / kColumnWarps;  // of a warp
  static constexpr int kResultTiles = kResultColumns / 8;          // of 8 columns
  // Where registers are short: unrolled as a whole, a loop's operands are loaded and split so far ahead of what
  // multiplies them that the compiler keeps sums in memory. So few steps are then unrolled at once, and none are loaded
  // ahead in the source: of three products for each the compiler hides that latency itself.
  static constexpr bool kRollsLoops = sizeof(T) == 4 && !kKeepsQueries;
  static constexpr int kStepsAtOnce = !kRollsLoops                ? kSteps
                                      : kMath == Math::kThreeTf32 ? (kRowTiles == 1 ? 4 : 1)
                                                                  : (kSteps % 8 == 0 ? 8 : 4);
  // On their way while one is multiplied: ldmatrix takes about as long as the products of two.
  static constexpr int kOperandsAhead = kMath == Math::kThreeTf32 ? 0 : 3;
  static constexpr int kRowBytes = kHeadSize * sizeof(T);
  static constexpr int kBiasWords = (kHeadSize / kPerWord + 31) / 32 * 32;  // room for a head's bias of V
  static constexpr int kKeyTileBytes = kKeys * kRowBytes;
  static constexpr int kStages = kShape.stages, kStageBytes = StageBytes(kShape);
  static constexpr bool kVariants = kShape.variants;
  static_assert(sizeof(T) == kShape.element_bytes && kKeys % 32 == 0);
  static_assert(kSteps % kStepsAtOnce == 0);
  static_assert(kResultColumns % (sizeof(T) == 2 ? 16 : 32) == 0);
  static_assert(kColumnWarps == 1 || sizeof(T) == 4, "results in 16 bits pass through the place of the warp's queries");
  static_assert(!kPositions || (HasPositions(kShape) && kStages == 2 && kRowTiles == 1 && kColumnWarps == 1));
};

// Scores count in powers of two: 2^x is what the hardware has.
constexpr float kLog2E = 1.44269504088896341f;

template <class T>
struct Parameters {
  const T *q, *k;                     // of the first row and head
  const T *q_bias, *k_bias, *v_bias;  // null: none. k_bias is given only where it does not cancel in the softmax
  T* y;
  const void* mask;
  bool mask_is_int64;
  int64_t batch;
  int pitch, y_pitch;  // bytes from row to row of q, k and v, and of y
  int value_offset;    // elements from a row's keys to its values
  int sequence, heads, head_size;
  float kv_heads_per_head;  // a head's keys are those of head (head + 1/2) times this, cut off
  PackedSequences packed;
  int query_offset;  // in shared memory
  bool queries_apart;

  float scale_log2;  // scale * log2(e), above 0: a hidden score is -inf, and -inf * 0 is NaN
  int window_left, window_right;
  float soft_cap, cap_exponent, cap_log2;  // the latter two: 2 log2(e) scale / soft_cap, soft_cap log2(e)
  const T* distance_bias;                  // null: none
  int bias_pitch;                          // from head to head; 0: one for all
  int bias_left, bias_last;
  const T* positions;                                 // null: none
  const T* position_k_bias;                           // of keys that are multiplied with them
  int position_left, position_last, position_offset;  // the last in shared memory
  bool hidden_alike;
  Prefetch next;
};

// A window's sides.
template <class Config>
__device__ __forceinline__ int WindowLeft(const Parameters<typename Config::T>& p) {
  return Config::kVariants ? p.window_left : kNoEnd;
}
template <class Config>
__device__ __forceinline__ int WindowRight(const Parameters<typename Config::T>& p) {
  return Config::kVariants ? p.window_right : kNoEnd;
}

// A tile of queries: from `first_query` on of the sequence that is `length` rows from `first_row` on.
struct Tile {
  int first_row, length;  // 0: there are no more tiles
  int first_query, head;
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_CONFIG_CUH_
