// The table of configurations that are compiled, and which one a tile means.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_

#include "kernels/gemm_sm90/launch.cuh"

namespace bertfuse::kernels {
namespace gemm_sm90 {

template <class Config>
bool IsOf(const GemmSm90Tile& tile) {
  return tile.block_m == Config::kM && tile.block_n == Config::kN;
}

// Whether the grid has a multiprocessor for each block.
template <class Config, class T>
bool HasMultiprocessorEach(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device) {
  const auto blocks = [](int64_t size, int64_t block, int64_t cluster) {
    return CeilDiv(size, block * cluster) * cluster;
  };
  return blocks(a.m, Config::kM, tile.cluster_m) * blocks(a.n, Config::kN, tile.cluster_n) <= device.multiprocessors;
}

// Calls launch(Config()) with the tile's configuration. Of two with its size the first has more stages, and a
// multiprocessor for itself: for no more blocks than there are multiprocessors.
template <class Config, class... Others, class T, class Launch>
cudaError_t WithConfig(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device, Launch&& launch) {
  constexpr bool kComesAgain = ((Others::kM == Config::kM && Others::kN == Config::kN) || ...);
  if (IsOf<Config>(tile) && (!kComesAgain || HasMultiprocessorEach<Config>(tile, a, device))) return launch(Config());
  if constexpr (sizeof...(Others) > 0) {
    return WithConfig<Others...>(tile, a, device, launch);
  } else {
    return cudaErrorInvalidConfiguration;
  }
}

// Rows and columns of a block, stages of its pipeline, blocks on a multiprocessor.
template <class T, int kM, int kN, int kStages, int kBlocks>
using Plain = OneTileConfig<Elements<T, T, T>, kM, kN, kStages, kBlocks, false>;
template <class T, int kM, int kN, int kStages, int kBlocks>
using WithLayerNorm = OneTileConfig<Elements<T, T, T>, kM, kN, kStages, kBlocks, true>;
template <class T, int kM, int kN, int kStages, int kBlocks>
using SplitK = SplitKConfig<Elements<T, T, float>, kM, kN, kStages, kBlocks>;

}  // namespace gemm_sm90

template <class T>
cudaError_t GemmSm90Elementwise(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                                cudaStream_t stream) {
  using namespace gemm_sm90;
  using Persistent = PersistentConfig<Elements<T, T, T>, 128, 192, 5>;
  if (IsOf<Persistent>(tile)) return LaunchPersistent<Persistent>(tile, a, device, stream);
  return WithConfig<Plain<T, 128, 128, 7, 1>, Plain<T, 128, 128, 3, 2>, Plain<T, 128, 96, 8, 1>,
                    Plain<T, 128, 96, 4, 2>, Plain<T, 64, 64, 12, 1>, Plain<T, 64, 96, 10, 1>>(
      tile, a, device, [&](auto config) { return LaunchOneTile<decltype(config)>(tile, a, device, stream); });
}

template <class T>
cudaError_t GemmSm90LayerNorm(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                              cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithConfig<WithLayerNorm<T, 128, 128, 3, 2>, WithLayerNorm<T, 64, 96, 5, 2>, WithLayerNorm<T, 64, 128, 4, 2>>(
      tile, a, device, [&](auto config) { return LaunchOneTile<decltype(config)>(tile, a, device, stream); });
}

template <class T>
cudaError_t GemmSm90SplitK(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                           cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithConfig<SplitK<T, 128, 128, 3, 2>, SplitK<T, 64, 96, 10, 1>>(
      tile, a, device, [&](auto config) { return LaunchSplitK<decltype(config)>(tile, a, device, stream); });
}

#define BERTFUSE_INSTANTIATE(FUNCTION, T) \
  template cudaError_t FUNCTION(const GemmSm90Tile&, const GemmSm90Arguments<T>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_
