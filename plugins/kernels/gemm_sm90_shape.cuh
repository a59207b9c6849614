// What the parts of the Hopper matrix product agree on: parameters of a launch, compile-time shape and layout of shared
// memory, position in the ring of stages.
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
  int tiles_m, tiles_n;                 // in clusters
  float epsilon;
  Activation activation;
  bool has_residual, weight_is_constant;
};

// Compile-time shape of a kernel, and what it puts where in shared memory: the ring of stages, float32 vectors of the
// block's columns, barriers, row statistics. Residual and result pass through the ring: one stage for each warpgroup.
template <class T_, GemmEpilogue kEpilogue_, int kM_, int kN_, int kStages_, int kBlocks_>
struct GemmSm90Shape {
  using T = T_;
  static constexpr GemmEpilogue kEpilogue = kEpilogue_;
  static constexpr bool kLayerNorm = kEpilogue == GemmEpilogue::kLayerNorm;
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;     // on a multiprocessor at a time
  static constexpr int kWarpgroups = kM / 64;  // that multiply, 64 rows each; one warp more loads
  static constexpr int kThreads = 128 * kWarpgroups + 32;
  static constexpr int kXBytes = kM * kStageK * 2;
  static constexpr int kStageBytes = kXBytes + kN * kStageK * 2;

  // The tile on its way out (and in: residual) is cut into buffers, as wide as the copy engine's swizzle allows.
  static constexpr int kBufferColumns = kN % 64 == 0 ? 64 : 32;
  static constexpr int kBufferBytes = 64 * kBufferColumns * 2;
  static constexpr int kBuffers = kN / kBufferColumns;  // of each warpgroup
  static_assert(kEpilogue == GemmEpilogue::kPartial ||
                (kBuffers * kBufferBytes <= kStageBytes && kWarpgroups <= kStages));

  static constexpr int kVectors = kLayerNorm                                ? 3
                                  : kEpilogue == GemmEpilogue::kElementwise ? 1
                                                                            : 0;  // bias, gamma, beta
  static constexpr size_t kVectorOffset = static_cast<size_t>(kStages) * kStageBytes;
  static constexpr size_t kBarrierOffset = kVectorOffset + static_cast<size_t>(kVectors) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + 2 * kWarpgroups;
  static constexpr size_t kStatisticsOffset = kBarrierOffset + (kBarriers * 8 + 127) / 128 * 128;
  static size_t SharedBytes(int cluster_n) {
    return kStatisticsOffset + (kLayerNorm ? static_cast<size_t>(cluster_n) * kM * sizeof(float2) : 0);
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

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_SHAPE_CUH_
