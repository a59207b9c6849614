// What the parts of the Hopper matrix product agree on: parameters of a launch, compile-time shape and layout of shared
// memory, position in the ring of stages, and the piece of work of a cluster.
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

// Compile-time shape of a kernel, and what it puts where in shared memory.
template <class T_, GemmEpilogue kEpilogue_, int kM_, int kWarpgroups_, int kN_, int kStages_, int kBuffers_>
struct GemmSm90Shape {
  using T = T_;
  static constexpr GemmEpilogue kEpilogue = kEpilogue_;
  static constexpr int kWarpgroups = kWarpgroups_;  // that multiply, 64 rows each
  static constexpr int kM = kM_;
  static constexpr bool kInTurns = kM < 64 * kWarpgroups;  // each warpgroup has a tile of its own
  static_assert(kM == 64 || kM == 64 * kWarpgroups);
  static constexpr int kN = kN_;
  static constexpr int kStages = kStages_;
  static constexpr int kBuffers = kBuffers_;  // per warpgroup, for tiles of 64 rows on their way out (and in: residual)
  static constexpr int kBufferColumns = kN % 64 == 0 ? 64 : 32;
  static constexpr int kBufferBytes = 64 * kBufferColumns * 2;
  static constexpr int kBufferTiles = kN / kBufferColumns;
  static constexpr int kXBytes = kM * kStageK * 2;
  static constexpr int kStageBytes = kXBytes + kN * kStageK * 2;
  static constexpr bool kLayerNorm = kEpilogue == GemmEpilogue::kLayerNorm;
  // LayerNorm: bias, gamma, beta of the block's columns. Elementwise: bias of the tile's columns, for each warpgroup.
  static constexpr int kVectors = kLayerNorm ? 3 : kEpilogue == GemmEpilogue::kElementwise ? kWarpgroups : 0;
  // With two multiplying warpgroups the loading one gives its registers to them.
  static constexpr int kThreads = 128 * kWarpgroups + (kWarpgroups > 1 ? 128 : 32);

  static constexpr size_t kBufferOffset = static_cast<size_t>(kStages) * kStageBytes;
  static constexpr size_t kVectorOffset = kBufferOffset + static_cast<size_t>(kWarpgroups) * kBuffers * kBufferBytes;
  static constexpr size_t kBarrierOffset = kVectorOffset + static_cast<size_t>(kVectors) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + 4 * kWarpgroups;
  static constexpr size_t kStatisticsOffset = kBarrierOffset + (kBarriers * 8 + 127) / 128 * 128;
  static size_t SharedBytes(int cluster_n) {
    const size_t statistics = kLayerNorm ? static_cast<size_t>(2) * kWarpgroups * cluster_n * 64 * sizeof(float2) : 0;
    return kStatisticsOffset + statistics;
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
  __device__ __forceinline__ void Advance(int count) {
    stage += count;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

// Which output tile and which part of k the cluster works on.
struct GemmSm90Work {
  int row, column, split, first_stage, last_stage;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_
