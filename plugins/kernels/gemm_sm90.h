#ifndef BERTFUSE_KERNELS_GEMM_SM90_H_
#define BERTFUSE_KERNELS_GEMM_SM90_H_

#include "kernels/activation.h"
#include "kernels/elements.h"
#include "kernels/last_wave.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// Bytes of k that a pipeline stage holds of each row of x and weight: the width that TMA swizzles over.
constexpr int kStageRowBytes = 128;
template <class X>
constexpr int kStageK = kStageRowBytes / sizeof(X);  // in elements

constexpr int kMaxCluster = 8;  // blocks that every Hopper device takes in a cluster

// What one thread block of a product is: its tile and its pipeline (CUTLASS: TileShape and StageCount).
struct GemmSm90Block {
  int m, n;                // the tile of y; along k a stage always has kStageK
  int stages;              // of the ring in shared memory
  int per_multiprocessor;  // blocks that are resident at a time
};

constexpr bool operator==(const GemmSm90Block& a, const GemmSm90Block& b) {
  return a.m == b.m && a.n == b.n && a.stages == b.stages && a.per_multiprocessor == b.per_multiprocessor;
}

// What is compiled. Where two one-tile blocks have the same size, the one with more stages takes a multiprocessor to
// itself: for grids of no more blocks than there are multiprocessors.
namespace gemm_sm90 {
// {m, n, stages, per_multiprocessor}
inline constexpr GemmSm90Block kPersistentBlocks[] = {{128, 192, 5, 1}, {192, 128, 5, 1}, {128, 128, 6, 1}};
inline constexpr GemmSm90Block kOneTileBlocks[] = {{128, 128, 7, 1}, {128, 128, 3, 2}, {128, 96, 8, 1}, {128, 96, 4, 2},
                                                   {64, 64, 12, 1},  {64, 96, 10, 1},  {192, 192, 4, 1}};
inline constexpr GemmSm90Block kLayerNormBlocks[] = {{128, 128, 3, 2}, {64, 96, 5, 2}, {64, 128, 4, 2}};
inline constexpr GemmSm90Block kSplitKBlocks[] = {{64, 96, 10, 1}};

constexpr bool IsPersistent(const GemmSm90Block& block) {
  for (const GemmSm90Block& persistent : kPersistentBlocks) {
    if (block == persistent) return true;
  }
  return false;
}
}  // namespace gemm_sm90

// How the product x[m, k] * weight[n, k] transposed is tiled: a block, and clusters of cluster_m x cluster_n blocks
// (CUTLASS: ClusterShape), which multicast what they load. k is split `splits` ways: by GemmSm90SplitK for all rows, by
// GemmSm90Elementwise (with kPersistentBlocks only) for the rows of the last wave.
struct GemmSm90Tile {
  GemmSm90Block block;
  int cluster_m;
  int cluster_n;
  int splits;
};

template <class Elements>
struct GemmSm90Arguments {
  using X = typename Elements::X;
  using Weight = typename Elements::Weight;
  using Y = typename Elements::Y;

  const X* x;
  const Weight* weight;
  const Y* bias;      // may be null, except with LayerNorm
  const Y* residual;  // may be null
  const Y* gamma;
  const Y* beta;
  Y* y;
  float* float_partials;
  // GemmSm90Elementwise with `splits` > 1: for the rows after last_wave's full panels, y gets the first split's partial
  // sums, and this gets the others': [splits - 1, partial_rows, n].
  Y* partials;
  LastWave last_wave;
  int64_t partial_rows;
  int64_t m, n, k;
  PackedRows packed;  // of the m rows; y's rows from *row_count on are unspecified
  float epsilon;
  Activation activation;
  // No kernel that may still be running writes weight, bias, gamma or beta, so they may be read before the preceding
  // kernels have ended.
  bool weights_are_constant;
  // Begin with the last rows. If x is larger than the L2 cache, these are the rows still in it, provided that the
  // kernel that wrote x began with the first ones.
  bool backwards;
};

// Whether shapes and pointers suit TMA (rows on 16-byte boundaries) and, with LayerNorm, the kernel after the product,
// which reads four elements at a time.
template <class Elements>
bool GemmSm90Supports(const GemmSm90Arguments<Elements>& a, const Device& device) {
  constexpr int64_t kMax = int64_t{1} << 31;
  constexpr int kOperandColumns = 16 / sizeof(typename Elements::X), kColumns = 16 / sizeof(typename Elements::Y);
  const int vector_bytes = (a.gamma == nullptr ? 2 : 4) * static_cast<int>(sizeof(typename Elements::Y));
  return device.hopper && a.k % kOperandColumns == 0 && a.n % kColumns == 0 && a.m < kMax && a.n < kMax && a.k < kMax &&
         IsAligned(a.x, 16) && IsAligned(a.weight, 16) && IsAligned(a.residual, 16) && IsAligned(a.y, 16) &&
         IsAligned(a.bias, vector_bytes) && IsAligned(a.gamma, vector_bytes) && IsAligned(a.beta, vector_bytes) &&
         IsAligned(a.float_partials, 16) && IsAligned(a.partials, 16);
}

// All three return cudaErrorInvalidConfiguration for a tile that no kernel was compiled for.

// y[m, n] = activation(product + bias). `splits` > 1 takes the bare product only: null bias, no activation.
template <class Elements>
cudaError_t GemmSm90Elementwise(const GemmSm90Tile& tile, const GemmSm90Arguments<Elements>& arguments,
                                const Device& device, cudaStream_t stream);

// y[m, n] = LayerNorm(activation(product + bias) + residual); n = cluster_n * block_n.
template <class Elements>
cudaError_t GemmSm90LayerNorm(const GemmSm90Tile& tile, const GemmSm90Arguments<Elements>& arguments,
                              const Device& device, cudaStream_t stream);

// float_partials[splits, m, n] = the float32 product over each split of k.
template <class Elements>
cudaError_t GemmSm90SplitK(const GemmSm90Tile& tile, const GemmSm90Arguments<Elements>& arguments, const Device& device,
                           cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_H_
