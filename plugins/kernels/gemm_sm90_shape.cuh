// What the parts of the Hopper matrix product agree on: parameters of a launch, compile-time shape and layout of shared
// memory.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_

#include "kernels/gelu.cuh"
#include "kernels/gemm_sm90.h"
#include "kernels/sm90.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels {

struct GemmSm90Parameters {
  CUtensorMap x_map, weight_map, residual_map, y_map;
  const void* bias;
  const void* gamma;
  const void* beta;
  float* partial;
  void* y;
  void* parts;  // of y's rows from whole_rows on
  int whole_rows, whole_tiles;
  int m, n, k_stages, stages_per_split;
  int cluster_m, cluster_n, x_sharers;  // x_sharers: blocks of a cluster row that load a part of x
  int tiles_m, tiles_n, tiles;          // in clusters; tiles counts the parts of k, too
  int clusters;                         // that run, each of them taking every clusters-th tile
  float epsilon;
  Activation activation;
  bool has_residual, weights_are_constant, backwards;
};

// Compile-time shape of a kernel, and what it puts where in shared memory: the ring of stages, float32 vectors of the
// block's columns, barriers, row statistics.
template <class T_, GemmEpilogue kEpilogue_, int kM_, int kN_, int kStages_, int kBlocks_, bool kTurns_ = false>
struct GemmSm90Shape {
  using T = T_;
  static constexpr GemmEpilogue kEpilogue = kEpilogue_;
  static constexpr bool kLayerNorm = kEpilogue == GemmEpilogue::kLayerNorm;
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;  // on a multiprocessor at a time
  // Whether blocks stay on their multiprocessor, and two warpgroups take tiles in turns: one finishes its tile while
  // the other multiplies. Otherwise all warpgroups work on a block's only tile, 64 rows each; where two blocks share a
  // multiprocessor one finishes while the other multiplies, too.
  static constexpr bool kTurns = kTurns_;
  static_assert(!kTurns || (kEpilogue == GemmEpilogue::kElementwise && kBlocks == 1));
  static constexpr int kWarpgroups = kTurns ? 2 : kM / 64;                  // that multiply
  static constexpr int kReaders = kTurns ? 1 : kWarpgroups;                 // of a stage
  static constexpr int kRowBlocks = kTurns ? kM / 64 : 1;                   // of 64 rows, of a warpgroup's tile
  static constexpr int kThreads = 128 * kWarpgroups + (kTurns ? 128 : 32);  // one thread loads
  static constexpr int kXBytes = kM * kStageK * 2;
  static constexpr int kStageBytes = kXBytes + kN * kStageK * 2;

  // The tile on its way out (and in: residual) is cut into buffers, as wide as the copy engine's swizzle allows.
  static constexpr int kBufferColumns = kN % 64 == 0 ? 64 : 32;
  static constexpr int kBufferBytes = 64 * kBufferColumns * 2;
  static constexpr int kBuffers = kN / kBufferColumns;  // of each warpgroup
  static constexpr int kPartBytes = kBuffers * kBufferBytes;
  // They are stages of the ring. How many the warpgroups' parts of the tile take, and how many of them fit into one.
  // With turns a tile leaves from registers.
  static constexpr int kPartsInStage = kWarpgroups > 1 && 2 * kPartBytes <= kStageBytes ? 2 : 1;
  static constexpr int kPartStages =
      kTurns || kEpilogue == GemmEpilogue::kPartial ? 0 : (kWarpgroups - 1) / kPartsInStage + 1;
  static_assert(kTurns || (kPartBytes <= kStageBytes && kPartStages < kStages));

  // Bias, and with LayerNorm gamma and beta.
  static constexpr int kVectors = kLayerNorm ? 3 : kTurns || kEpilogue == GemmEpilogue::kPartial ? 0 : 1;
  static constexpr size_t kVectorOffset = static_cast<size_t>(kStages) * kStageBytes;
  static constexpr size_t kBarrierOffset = kVectorOffset + static_cast<size_t>(kVectors) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + (kLayerNorm ? kWarpgroups : 0);
  static constexpr size_t kStatisticsOffset = kBarrierOffset + (kBarriers * 8 + 127) / 128 * 128;
  // Row statistics, of each block of the cluster row.
  static size_t SharedBytes(int cluster_n) {
    return kStatisticsOffset + (kLayerNorm ? static_cast<size_t>(cluster_n) * kM * sizeof(float2) : 0);
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_
