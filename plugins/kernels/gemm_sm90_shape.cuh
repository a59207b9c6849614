// What the parts of the Hopper matrix product agree on: parameters of a launch, compile-time shapes and layout of
// shared memory, position in the ring of stages, and the piece of work of a cluster.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_

#include "kernels/gelu.cuh"
#include "kernels/gemm_sm90.h"
#include "kernels/sm90.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels {

constexpr int kStageK = 64;  // elements of k in a stage: rows of 128 bytes
constexpr int kMostCluster = 16;

struct GemmSm90Parameters {
  CUtensorMap x_map, weight_map, residual_map, y_map;
  const void* bias;
  const void* gamma;
  const void* beta;
  float* partial;
  int m, n, k_stages, stages_per_split;
  int cluster_m, cluster_n, x_sharers;  // x_sharers: blocks of a cluster row that load a part of x
  int tiles_m, tiles_n, splits;         // in clusters
  float epsilon;
  Activation activation;
  bool has_residual, weight_is_constant;
};

// The ring of stages that the copy engine fills and the tensor cores read; it lies first in shared memory.
template <class T_, GemmEpilogue kEpilogue_, int kM_, int kN_, int kStages_>
struct GemmSm90Ring {
  using T = T_;
  static constexpr GemmEpilogue kEpilogue = kEpilogue_;
  static constexpr bool kLayerNorm = kEpilogue == GemmEpilogue::kLayerNorm;
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kStages = kStages_;
  static constexpr int kMultipliers = kM / 64;  // warpgroups that multiply, 64 rows each
  static constexpr int kWgmmaN = kN;            // columns of one instruction
  static constexpr int kXBytes = kM * kStageK * 2;
  static constexpr int kStageBytes = kXBytes + kN * kStageK * 2;
  static constexpr size_t kRingBytes = static_cast<size_t>(kStages) * kStageBytes;
};

// The warpgroups that multiply also finish the result, in their registers.
template <class T, GemmEpilogue kEpilogue, int kM, int kN, int kStages, int kBuffers_>
struct GemmSm90Shape : GemmSm90Ring<T, kEpilogue, kM, kN, kStages> {
  using Ring = GemmSm90Ring<T, kEpilogue, kM, kN, kStages>;
  static constexpr bool kOverlapped = false;
  static constexpr int kMultipliers = Ring::kMultipliers;
  static constexpr int kBuffers = kBuffers_;  // per warpgroup, for tiles of 64 rows on their way out (and in: residual)
  static constexpr int kBufferColumns = kN % 64 == 0 ? 64 : 32;
  static constexpr int kBufferBytes = 64 * kBufferColumns * 2;
  static constexpr int kBufferTiles = kN / kBufferColumns;
  static constexpr int kStoreRows = 64;  // of a box on its way out
  // LayerNorm: bias, gamma, beta of the block's columns. Elementwise: bias of the tile's columns, for each warpgroup.
  static constexpr int kVectors = Ring::kLayerNorm ? 3 : (kEpilogue == GemmEpilogue::kElementwise ? kMultipliers : 0);
  // With two multiplying warpgroups the loading one gives its registers to them.
  static constexpr int kThreads = 128 * kMultipliers + (kMultipliers > 1 ? 128 : 32);

  static constexpr size_t kBufferOffset = Ring::kRingBytes;
  static constexpr size_t kVectorOffset = kBufferOffset + static_cast<size_t>(kMultipliers) * kBuffers * kBufferBytes;
  static constexpr size_t kBarrierOffset = kVectorOffset + static_cast<size_t>(kVectors) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + 3 * kMultipliers;
  static constexpr size_t kStatisticsOffset = kBarrierOffset + (kBarriers * 8 + 127) / 128 * 128;
  static size_t SharedBytes(int cluster_n) {
    const size_t statistics =
        Ring::kLayerNorm ? static_cast<size_t>(2) * kMultipliers * cluster_n * 64 * sizeof(float2) : 0;
    return kStatisticsOffset + statistics;
  }
};

// A warpgroup of its own finishes a tile while the others multiply the next: the sums go through shared memory, as
// float32 where they are activated and as T where a row is normalised.
//
// That staging area is cut into slots of 128 bytes of every row of the tile, swizzled like the copy engine's tiles: in
// a slot only its row's thread of the finishing warpgroup works, so results take the place of sums.
template <class T, GemmEpilogue kEpilogue, int kN, int kStages>
struct GemmSm90OverlappedShape : GemmSm90Ring<T, kEpilogue, 128, kN, kStages> {
  using Ring = GemmSm90Ring<T, kEpilogue, 128, kN, kStages>;
  static constexpr bool kOverlapped = true;
  using Staged = std::conditional_t<Ring::kLayerNorm, T, float>;
  static_assert(kEpilogue != GemmEpilogue::kPartial);
  static constexpr int kThreads = 128 * (Ring::kMultipliers + 2);  // multiply, finish, load
  // So many threads start with 128 registers each: the compiler refuses one instruction that takes them all.
  static constexpr int kWgmmaN = kN > 192 ? kN / 2 : kN;
  static constexpr int kSlotBytes = Ring::kM * 128;
  static constexpr int kSlotColumns = 128 / sizeof(Staged);
  static constexpr int kSlots = kN / kSlotColumns;
  static constexpr int kBufferColumns = 64;  // of a box on its way out or in
  static constexpr int kStoreRows = Ring::kM;
  static constexpr int kVectors = Ring::kLayerNorm ? 3 : 1;

  static constexpr size_t kStagingOffset = Ring::kRingBytes;
  static constexpr size_t kVectorOffset = kStagingOffset + static_cast<size_t>(kSlots) * kSlotBytes;
  static constexpr size_t kBarrierOffset = kVectorOffset + static_cast<size_t>(kVectors) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + 4;
  static constexpr size_t kStatisticsOffset = kBarrierOffset + (kBarriers * 8 + 127) / 128 * 128;
  static size_t SharedBytes(int cluster_n) {
    return kStatisticsOffset + (Ring::kLayerNorm ? static_cast<size_t>(2) * cluster_n * Ring::kM * sizeof(float2) : 0);
  }
};

// The ring's position: stage and the parity of the round.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Which output tile and which part of k the cluster works on.
struct GemmSm90Work {
  int row, column, split, first_stage, last_stage;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_
