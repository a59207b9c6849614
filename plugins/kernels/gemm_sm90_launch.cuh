// Launching the Hopper matrix product: tensor maps, cluster and grid, and the choice among the shapes that a file
// holds.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_LAUNCH_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_LAUNCH_CUH_

#include <algorithm>
#include <limits>

#include "kernels/gemm_sm90.cuh"

namespace bertfuse::kernels {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    GemmSm90Main(const __grid_constant__ GemmSm90Parameters parameters) {
  extern __shared__ __align__(1024) char shared[];  // tiles are swizzled by address bits
  GemmSm90Kernel<Shape>(parameters, shared).Run();
}

template <class Shape>
cudaError_t LaunchGemmSm90(const GemmSm90Tile& tile, const GemmSm90Arguments<typename Shape::T>& a,
                           const Device& device, cudaStream_t stream) {
  constexpr bool kBfloat16 = std::is_same_v<typename Shape::T, __nv_bfloat16>;
  const int cluster = tile.cluster_m * tile.cluster_n;
  if (cluster < 1 || cluster > kMostCluster || tile.splits < 1 || Shape::kN / 8 % tile.cluster_m != 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (Shape::kTurns && (a.n % kDealtRows != 0 || Shape::kN / tile.cluster_m % kDealtRows != 0)) {
    return cudaErrorInvalidConfiguration;
  }
  if (Shape::kLayerNorm && a.n != static_cast<int64_t>(Shape::kN) * tile.cluster_n)
    return cudaErrorInvalidConfiguration;
  GemmSm90Parameters p;
  p.bias = a.bias;
  p.gamma = a.gamma;
  p.beta = a.beta;
  p.partial = a.partial;
  p.y = a.y;
  p.parts = a.parts;
  p.m = static_cast<int>(a.m);
  p.n = static_cast<int>(a.n);
  p.k_stages = static_cast<int>(CeilDiv(a.k, kStageK));
  p.stages_per_split = static_cast<int>(CeilDiv(p.k_stages, tile.splits));
  p.cluster_m = tile.cluster_m;
  p.cluster_n = tile.cluster_n;
  // A part of x must be a multiple of the swizzle's 8 rows.
  p.x_sharers = 1;
  while (p.x_sharers * 2 <= tile.cluster_n && Shape::kM / (p.x_sharers * 2) % 8 == 0) p.x_sharers *= 2;
  // Counted in 64 bits first: a launch takes no more blocks.
  const int64_t tiles_m = CeilDiv(a.m, static_cast<int64_t>(tile.cluster_m) * Shape::kM);
  const int64_t tiles_n = CeilDiv(a.n, static_cast<int64_t>(tile.cluster_n) * Shape::kN);
  if (tiles_m * tiles_n * tile.splits * cluster > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  p.tiles_m = static_cast<int>(tiles_m);
  p.tiles_n = static_cast<int>(tiles_n);
  // Without parts all tiles are whole; with kPartial none is.
  p.whole_rows = p.m;
  p.whole_tiles = Shape::kEpilogue == GemmEpilogue::kPartial ? 0 : p.tiles_m * p.tiles_n;
  if (Shape::kEpilogue != GemmEpilogue::kPartial && tile.splits > 1) {
    if (!Shape::kTurns) return cudaErrorInvalidConfiguration;
    const int64_t panel = static_cast<int64_t>(tile.cluster_m) * Shape::kM;
    if (a.whole_rows % panel != 0 || a.whole_rows >= a.m || a.parts == nullptr) return cudaErrorInvalidValue;
    if (a.bias != nullptr || a.activation != Activation::kNone) return cudaErrorInvalidValue;
    p.whole_rows = static_cast<int>(a.whole_rows);
    p.whole_tiles = static_cast<int>(a.whole_rows / panel * tiles_n);
  }
  p.tiles = p.whole_tiles + (p.tiles_m * p.tiles_n - p.whole_tiles) * tile.splits;
  p.epsilon = a.epsilon;
  p.activation = a.activation;
  p.has_residual = a.residual != nullptr;
  p.weights_are_constant = a.weights_are_constant;
  p.backwards = a.backwards;
  if ((tile.splits - 1) * p.stages_per_split >= p.k_stages) return cudaErrorInvalidConfiguration;

  cudaError_t error = MakeTensorMap({a.x, a.m, a.k, a.k, Shape::kM / p.x_sharers, kStageK}, kBfloat16, &p.x_map);
  if (error != cudaSuccess) return error;
  const MatrixView weight = {a.weight, a.n, a.k, a.k, Shape::kN / tile.cluster_m, kStageK};
  error = (Shape::kTurns ? MakeDealtRowsMap : MakeTensorMap)(weight, kBfloat16, &p.weight_map);
  if (error != cudaSuccess) return error;
  if (Shape::kEpilogue != GemmEpilogue::kPartial && !Shape::kTurns) {
    error = MakeTensorMap({a.y, a.m, a.n, a.n, 64, Shape::kBufferColumns}, kBfloat16, &p.y_map);
    if (error != cudaSuccess) return error;
  }
  if (Shape::kLayerNorm && p.has_residual) {
    error = MakeTensorMap({a.residual, a.m, a.n, a.n, 64, Shape::kBufferColumns}, kBfloat16, &p.residual_map);
    if (error != cudaSuccess) return error;
  }
  LaunchConfig config;
  config.block = dim3(Shape::kThreads);
  config.shared_bytes = Shape::SharedBytes(tile.cluster_n);
  config.cluster = static_cast<unsigned>(cluster);
  config.stream = stream;
  config.device = &device;
  p.clusters = p.tiles;
  if (Shape::kTurns) {
    error = ResidentClusters(config, reinterpret_cast<const void*>(GemmSm90Main<Shape>), &p.clusters);
    if (error != cudaSuccess) return error;
    p.clusters = std::min(p.clusters, p.tiles);
  }
  config.grid = dim3(static_cast<unsigned>(p.clusters * cluster));
  return Launch(config, GemmSm90Main<Shape>, p);
}

// Launches the first shape that has the tile's block_m and block_n. Of two that do the first has more stages and a
// multiprocessor for itself, which is for no more blocks than there are multiprocessors.
template <class Shape, class... Others>
cudaError_t LaunchFitting(const GemmSm90Tile& tile, const GemmSm90Arguments<typename Shape::T>& arguments,
                          const Device& device, cudaStream_t stream) {
  constexpr bool kComesAgain = ((Others::kM == Shape::kM && Others::kN == Shape::kN) || ...);
  const auto fits = [&] {
    const auto blocks = [](int64_t size, int64_t block, int64_t cluster) {
      return CeilDiv(size, block * cluster) * cluster;
    };
    return blocks(arguments.m, Shape::kM, tile.cluster_m) * blocks(arguments.n, Shape::kN, tile.cluster_n) <=
           device.multiprocessors;
  };
  if (tile.block_m == Shape::kM && tile.block_n == Shape::kN && (!kComesAgain || fits())) {
    return LaunchGemmSm90<Shape>(tile, arguments, device, stream);
  }
  if constexpr (sizeof...(Others) > 0) {
    return LaunchFitting<Others...>(tile, arguments, device, stream);
  } else {
    return cudaErrorInvalidConfiguration;
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_LAUNCH_CUH_
