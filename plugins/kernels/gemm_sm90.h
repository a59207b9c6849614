#ifndef BERTFUSE_KERNELS_GEMM_SM90_H_
#define BERTFUSE_KERNELS_GEMM_SM90_H_

#include "kernels/activation.h"
#include "kernels/elements.h"
#include "kernels/last_wave.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// A stage of the pipeline holds that much of k of every row of x and weight: what TMA swizzles over.
constexpr int kStageRowBytes = 128;
template <class X>
constexpr int kStageK = kStageRowBytes / sizeof(X);  // in elements

constexpr int kMostCluster = 8;  // blocks that every Hopper device takes in a cluster

// A block computes m x n outputs at a time; its pipeline has that many stages, and so many blocks share a
// multiprocessor.
struct GemmSm90Block {
  int m, n;
  int stages;
  int per_multiprocessor;
};

constexpr bool operator==(const GemmSm90Block& a, const GemmSm90Block& b) {
  return a.m == b.m && a.n == b.n && a.stages == b.stages && a.per_multiprocessor == b.per_multiprocessor;
}

// Those that are compiled. Of two of the same size the one with more stages has a multiprocessor for itself: for grids
// of no more blocks than there are multiprocessors.
namespace gemm_sm90 {
inline constexpr GemmSm90Block kPersistentBlock = {128, 192, 5, 1};
inline constexpr GemmSm90Block kOneTileBlocks[] = {{128, 128, 7, 1}, {128, 128, 3, 2}, {128, 96, 8, 1},
                                                   {128, 96, 4, 2},  {64, 64, 12, 1},  {64, 96, 10, 1}};
inline constexpr GemmSm90Block kLayerNormBlocks[] = {{128, 128, 3, 2}, {64, 96, 5, 2}, {64, 128, 4, 2}};
inline constexpr GemmSm90Block kSplitKBlocks[] = {{64, 96, 10, 1}};
}  // namespace gemm_sm90

// How the product x[m, k] * weight[n, k] transposed is cut up: a block's share, and the blocks of a cluster, cluster_m
// x cluster_n of them, which multicast what they load. k is cut into `splits`: for all rows by GemmSm90SplitK, for
// those of the last wave by GemmSm90Elementwise, with the persistent kernel's block alone.
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
  const Y* bias;      // may be null, but with LayerNorm
  const Y* residual;  // may be null
  const Y* gamma;
  const Y* beta;
  Y* y;
  float* float_partials;
  // GemmSm90Elementwise with `splits` > 1: of the rows after last_wave's full panels y gets the first split's sum, this
  // the others': [splits - 1, partial_rows, n].
  Y* partials;
  LastWave last_wave;
  int64_t partial_rows;
  int64_t m, n, k;
  PackedRows packed;  // of the m rows; what y gets from *row_count on is not specified
  float epsilon;
  Activation activation;
  // No kernel that may still run writes weight, bias, gamma or beta: they are then read before the kernels before this
  // one have ended.
  bool weights_are_constant;
  // The last rows first: of an x larger than the L2 cache they are what is left there, if the kernel that wrote it
  // began with the first.
  bool backwards;
};

// Whether shapes and pointers fit TMA: 16-byte rows; and those of LayerNorm the kernel after it, which
// reads four elements at a time.
template <class Elements>
bool GemmSm90Takes(const GemmSm90Arguments<Elements>& a, const Device& device) {
  constexpr int64_t kMost = int64_t{1} << 31;
  constexpr int kOperandColumns = 16 / sizeof(typename Elements::X), kColumns = 16 / sizeof(typename Elements::Y);
  const int vector_bytes = (a.gamma == nullptr ? 2 : 4) * static_cast<int>(sizeof(typename Elements::Y));
  return device.hopper && a.k % kOperandColumns == 0 && a.n % kColumns == 0 && a.m < kMost && a.n < kMost &&
         a.k < kMost && IsAligned(a.x, 16) && IsAligned(a.weight, 16) && IsAligned(a.residual, 16) &&
         IsAligned(a.y, 16) && IsAligned(a.bias, vector_bytes) && IsAligned(a.gamma, vector_bytes) &&
         IsAligned(a.beta, vector_bytes) && IsAligned(a.float_partials, 16) && IsAligned(a.partials, 16);
}

// All three: cudaErrorInvalidConfiguration where no kernel was compiled for that tile.

// y[m, n] = activation(product + bias). With `splits` > 1 the bare product: bias null, no activation.
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
