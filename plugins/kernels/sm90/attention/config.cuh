// Compile-time configurations of the Hopper attention kernel, the layout of their shared memory, and what a launch is
// given.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_CONFIG_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_CONFIG_CUH_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/packed_tiles.cuh"

namespace bertfuse::kernels::attention_sm90 {

struct Parameters {
  CUtensorMap qkv_map, y_map;  // [batch, sequence, columns]
  const void* bias;
  const void* mask;
  bool bias_is_constant, mask_is_int64;
  int sequence, heads;
  float inverse_query_tiles, inverse_heads;
  int query_tiles, tiles;                       // of a head, of the call
  int step_first_query, step_head, step_batch;  // from a pipeline's tile to its next one
  float scale_log2;                             // scale * log2(e), above 0: a hidden score is -inf, and -inf * 0 is NaN

  // For packed sequences, where the maps above are of [rows, columns].
  PackedSequences packed;
  CUtensorMap few_rows_map;  // as qkv_map, in boxes of kFewRows
  void* y;

  // For variants.
  int window_left, window_right, kv_heads;
  float kv_heads_per_head;  // a head's keys are those of head (head + 1/2) times this, cut off
  const void *cos, *sin;    // null: heads are not rotated
  int places;               // rows of these tables

  QuantizedResult quantized;  // with rows: stored in place of y
};

struct VariantParameters : Parameters {
  CUtensorMap values_map, few_values_map;  // of what holds V: as qkv_map and few_rows_map
};

// The end of a packed sequence is loaded this many rows at a time.
constexpr int kFewRows = 16;

// A block has one or two independent pipelines. A pipeline feeds kWarpgroups consumer warpgroups, with 64 queries each,
// which read the same keys and values from a ring of stages, a block of kKeys at a time. One more warpgroup has the
// producers: for each pipeline a warp that loads queries, keys and values by TMA, and one that reads the mask.
//
// The host does not know the tiles of packed sequences, which have no mask: the second of these warps finds them.
template <class T_, int kHeadSize_, int kKeys_, int kPipelines_, int kWarpgroups_, int kBlocks_ = 1,
          bool kPacked_ = false, bool kVariant_ = false>
struct AttentionConfig {
  using T = T_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kPipelines = kPipelines_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kBlocks = kBlocks_;  // resident on a multiprocessor
  static constexpr bool kPacked = kPacked_;
  static constexpr bool kVariant = kVariant_;
  using LaunchParameters = std::conditional_t<kVariant, VariantParameters, Parameters>;
  static constexpr int kQueries = 64 * kWarpgroups;  // of a pipeline's tile
  static constexpr int kConsumers = kPipelines * kWarpgroups;
  static constexpr int kThreads = 128 * (kConsumers + 1);

  // The registers that the producers give up go to the consumers.
  static constexpr int kLaunchRegisters = 65536 / (kThreads * kBlocks) / 8 * 8;
  static constexpr int kProducerRegisters = kPipelines == 1 ? 40 : 32;
  static constexpr int kFreeRegisters = (kLaunchRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8;
  static constexpr int kConsumerRegisters = kFreeRegisters < 240 ? kFreeRegisters : 240;
  // Whether the registers hold queries, two blocks of scores (one of them as 16-bit weights) and results at the same
  // time. If not, the next keys are multiplied after the values, not alongside them.
  static constexpr bool kOverlapsProducts =
      kHeadSize / 4 + kKeys / 2 + kKeys / 4 + kHeadSize / 2 + 32 <= kConsumerRegisters;

  // A tile's row in shared memory: head size 128 takes two tiles of 64 columns side by side.
  static constexpr int kTileColumns = kHeadSize < 64 ? kHeadSize : 64;
  static constexpr int kPitch = kTileColumns * static_cast<int>(sizeof(T));
  static constexpr int kTiles = kHeadSize / kTileColumns;
  static constexpr int kQueryTileBytes = 64 * kPitch;
  static constexpr int kWarpgroupQueryBytes = kTiles * kQueryTileBytes;  // queries of a warpgroup
  static constexpr int kKeyTileBytes = kKeys * kPitch;
  static constexpr int kKeyBlockBytes = kTiles * kKeyTileBytes;  // of keys or of values

  // Buffers for queries and masks of several tiles, so that the next tile's are in flight early. Results are stored
  // from where the queries were.
  static constexpr int kQueryBuffers = 2, kMaskBuffers = 4;
  static constexpr int kQueryBytes = kQueryBuffers * kWarpgroups * kWarpgroupQueryBytes;
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kMaskBytes = 5 * 1024;  // enough for 4096 keys
  static constexpr int kAvailableBytes = (228 / kBlocks - 2) * 1024 - kBarrierBytes - kMaskBytes;
  static constexpr int kStagesThatFit = (kAvailableBytes / kPipelines - kQueryBytes) / (2 * kKeyBlockBytes);
  static constexpr int kStages = kStagesThatFit < 8 ? kStagesThatFit : 8;
  static constexpr int kPipelineBytes = 2 * kStages * kKeyBlockBytes + kQueryBytes;
  // Of a pipeline. A variant's keys are waited for once more, when they are rotated.
  static constexpr int kBarriers = (4 + kVariant) * kStages + 2 * (kQueryBuffers + kMaskBuffers);
  static_assert(kStages >= 2 && kPipelines * kBarriers * 8 <= kBarrierBytes);

  // Words of a tile's mask: which blocks of keys to read, and a bit for each visible key. With packed sequences, the
  // tile.
  __host__ __device__ static int MaskWords(int64_t sequence) {
    if (kPacked) return sizeof(PackedTile) / 4;
    return 1 + static_cast<int>((sequence + kKeys - 1) / kKeys * (kKeys / 32));
  }
  static size_t SharedBytes(int64_t sequence) {
    return kPipelines * (kPipelineBytes + kMaskBuffers * MaskWords(sequence) * 4) + kBarrierBytes;
  }
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_CONFIG_CUH_
