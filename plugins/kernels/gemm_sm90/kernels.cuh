// The configurations that are compiled, from the tables in gemm_sm90.h.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_

#include <utility>

#include "kernels/gemm_sm90/launch.cuh"

namespace bertfuse::kernels {
namespace gemm_sm90 {

template <class T, size_t kIndex>
using OneTile = OneTileConfig<Elements<T, T, T>, kOneTileBlocks[kIndex].m, kOneTileBlocks[kIndex].n,
                              kOneTileBlocks[kIndex].stages, kOneTileBlocks[kIndex].per_multiprocessor, false>;
template <class T, size_t kIndex>
using WithLayerNorm = OneTileConfig<Elements<T, T, T>, kLayerNormBlocks[kIndex].m, kLayerNormBlocks[kIndex].n,
                                    kLayerNormBlocks[kIndex].stages, kLayerNormBlocks[kIndex].per_multiprocessor, true>;
template <class T, size_t kIndex>
using SplitK = SplitKConfig<Elements<T, T, float>, kSplitKBlocks[kIndex].m, kSplitKBlocks[kIndex].n,
                            kSplitKBlocks[kIndex].stages, kSplitKBlocks[kIndex].per_multiprocessor>;
template <class T>
using Persistent = PersistentConfig<Elements<T, T, T>, kPersistentBlock.m, kPersistentBlock.n, kPersistentBlock.stages>;

// Calls launch(index as an integral_constant) with the place of that block in a table; cudaErrorInvalidConfiguration
// where it is not there.
template <size_t kCount, class Launch, size_t... kIndex>
cudaError_t WithBlock(const GemmSm90Block (&blocks)[kCount], const GemmSm90Block& block, Launch&& launch,
                      std::index_sequence<kIndex...>) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  ((blocks[kIndex] == block && (error = launch(std::integral_constant<size_t, kIndex>()), true)) || ...);
  return error;
}
template <size_t kCount, class Launch>
cudaError_t WithBlock(const GemmSm90Block (&blocks)[kCount], const GemmSm90Block& block, Launch&& launch) {
  return WithBlock(blocks, block, launch, std::make_index_sequence<kCount>());
}

}  // namespace gemm_sm90

template <class T>
cudaError_t GemmSm90Elementwise(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                                cudaStream_t stream) {
  using namespace gemm_sm90;
  if (tile.block == kPersistentBlock) return LaunchPersistent<Persistent<T>>(tile, a, device, stream);
  return WithBlock(kOneTileBlocks, tile.block, [&](auto index) {
    return LaunchOneTile<OneTile<T, decltype(index)::value>>(tile, a, device, stream);
  });
}

template <class T>
cudaError_t GemmSm90LayerNorm(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                              cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock(kLayerNormBlocks, tile.block, [&](auto index) {
    return LaunchOneTile<WithLayerNorm<T, decltype(index)::value>>(tile, a, device, stream);
  });
}

template <class T>
cudaError_t GemmSm90SplitK(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                           cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock(kSplitKBlocks, tile.block, [&](auto index) {
    return LaunchSplitK<SplitK<T, decltype(index)::value>>(tile, a, device, stream);
  });
}

#define BERTFUSE_INSTANTIATE(FUNCTION, T) \
  template cudaError_t FUNCTION(const GemmSm90Tile&, const GemmSm90Arguments<T>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_
