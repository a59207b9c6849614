// What a block of the Hopper attention kernel is made of, and what it is given.
#ifndef BERTFUSE_KERNELS_ATTENTION_SM90_SHAPE_CUH_
#define BERTFUSE_KERNELS_ATTENTION_SM90_SHAPE_CUH_

#include "kernels/sm90.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels {

struct AttentionSm90Parameters {
  CUtensorMap qkv_map, y_map;  // [batch, sequence, columns]
  const void* bias;
  const void* mask;
  bool mask_is_int64;
  int sequence, heads;
  float inverse_query_tiles, inverse_heads;
  int query_tiles, tiles;                       // of a head, of the call
  int step_first_query, step_head, step_batch;  // from a tile of a team to its next one
  float scale_log2;                             // scale * log2(e), above 0: a hidden score is -inf, and -inf * 0 is NaN
};

// A team is kWarpgroups computing warpgroups with 64 queries each, which read the same keys and values from a ring of
// their own, a block of kKeys at a time. One more warpgroup loads for all kTeams teams of the block: a warp for each
// brings queries, keys and values in, another one the mask.
template <class T_, int kHeadSize_, int kKeys_, int kTeams_, int kWarpgroups_, int kBlocksPerMultiprocessor_ = 1>
struct AttentionSm90Shape {
  using T = T_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kTeams = kTeams_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kBlocksPerMultiprocessor = kBlocksPerMultiprocessor_;
  static constexpr int kQueries = 64 * kWarpgroups;  // of a team's tile
  static constexpr int kComputing = kTeams * kWarpgroups;
  static constexpr int kThreads = 128 * (kComputing + 1);

  // The registers that the loading warpgroup gives up go to the others.
  static constexpr int kLaunchRegisters = 65536 / (kThreads * kBlocksPerMultiprocessor) / 8 * 8;
  static constexpr int kLoadingRegisters = kTeams == 1 ? 40 : 32;
  static constexpr int kFreeRegisters = (kLaunchRegisters * (kComputing + 1) - kLoadingRegisters) / kComputing / 8 * 8;
  static constexpr int kRegisters = kFreeRegisters < 240 ? kFreeRegisters : 240;
  // Queries, two blocks of scores (one of them as 16-bit weights) and results at a time: where they do not fit, the
  // next keys are multiplied after the values, not beside them.
  static constexpr bool kOverlapsProducts = kHeadSize / 4 + kKeys / 2 + kKeys / 4 + kHeadSize / 2 + 32 <= kRegisters;

  // A tile's row in shared memory: head size 128 takes two tiles of 64 columns side by side.
  static constexpr int kTileColumns = kHeadSize < 64 ? kHeadSize : 64;
  static constexpr int kPitch = kTileColumns * 2;
  static constexpr int kTiles = kHeadSize / kTileColumns;
  static constexpr int kQueryTileBytes = 64 * kPitch;
  static constexpr int kGroupBytes = kTiles * kQueryTileBytes;  // queries of a warpgroup
  static constexpr int kKeyTileBytes = kKeys * kPitch;
  static constexpr int kBlockBytes = kTiles * kKeyTileBytes;  // of keys or of values

  // Queries and masks of more than one tile, so that the next ones' are on their way. Results leave from where the
  // queries were.
  static constexpr int kQueryBuffers = 2, kMaskBuffers = 4;
  static constexpr int kQueryBytes = kQueryBuffers * kWarpgroups * kGroupBytes;
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kMaskRoom = 5 * 1024;  // enough for 4096 keys
  static constexpr int kRoom = (228 / kBlocksPerMultiprocessor - 2) * 1024 - kBarrierBytes - kMaskRoom;
  static constexpr int kStagesThatFit = (kRoom / kTeams - kQueryBytes) / (2 * kBlockBytes);
  static constexpr int kStages = kStagesThatFit < 8 ? kStagesThatFit : 8;
  static constexpr int kTeamBytes = 2 * kStages * kBlockBytes + kQueryBytes;
  static constexpr int kBarriers = 4 * kStages + 2 * (kQueryBuffers + kMaskBuffers);  // of a team
  static_assert(kStages >= 2 && kTeams * kBarriers * 8 <= kBarrierBytes);

  // Of one tile: how many blocks of keys to read, and a bit for each key that is seen.
  __host__ __device__ static int MaskWords(int64_t sequence) {
    return 1 + static_cast<int>((sequence + kKeys - 1) / kKeys * (kKeys / 32));
  }
  static size_t SharedBytes(int64_t sequence) {
    return kTeams * (kTeamBytes + kMaskBuffers * MaskWords(sequence) * 4) + kBarrierBytes;
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_SM90_SHAPE_CUH_
