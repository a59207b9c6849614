// The configurations that are compiled, from the tables in gemm_sm90.h.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_

#include <utility>

#include "kernels/gemm_sm90/launch.cuh"

namespace bertfuse::kernels {
namespace gemm_sm90 {

template <class T, size_t kIndex, bool kPacked>
using OneTile = OneTileConfig<Elements<T, T, T>, kOneTileBlocks[kIndex].m, kOneTileBlocks[kIndex].n,
                              kOneTileBlocks[kIndex].stages, kOneTileBlocks[kIndex].per_multiprocessor, kPacked, false>;
template <class T, size_t kIndex, bool kPacked>
using WithLayerNorm =
    OneTileConfig<Elements<T, T, T>, kLayerNormBlocks[kIndex].m, kLayerNormBlocks[kIndex].n,
                  kLayerNormBlocks[kIndex].stages, kLayerNormBlocks[kIndex].per_multiprocessor, kPacked, true>;
template <class T, size_t kIndex, bool kPacked>
using SplitK = SplitKConfig<Elements<T, T, float>, kSplitKBlocks[kIndex].m, kSplitKBlocks[kIndex].n,
                            kSplitKBlocks[kIndex].stages, kSplitKBlocks[kIndex].per_multiprocessor, kPacked>;
template <class T, bool kPacked>
using Persistent =
    PersistentConfig<Elements<T, T, T>, kPersistentBlock.m, kPersistentBlock.n, kPersistentBlock.stages, kPacked>;

// Calls launch(packed as a bool_constant).
template <class T, class Launch>
cudaError_t WithPacked(const GemmSm90Arguments<T>& a, Launch&& launch) {
  return a.packed.row_count == nullptr ? launch(std::false_type()) : launch(std::true_type());
}

// Calls launch(index as an integral_constant, packed as a bool_constant) with the place of that block in a table;
// cudaErrorInvalidConfiguration where it is not there.
template <size_t kCount, class T, class Launch, size_t... kIndex>
cudaError_t WithBlock(const GemmSm90Block (&blocks)[kCount], const GemmSm90Block& block, const GemmSm90Arguments<T>& a,
                      Launch&& launch, std::index_sequence<kIndex...>) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  const auto with = [&](auto index) {
    error = WithPacked(a, [&](auto packed) { return launch(index, packed); });
    return true;
  };
  ((blocks[kIndex] == block && with(std::integral_constant<size_t, kIndex>())) || ...);
  return error;
}
template <size_t kCount, class T, class Launch>
cudaError_t WithBlock(const GemmSm90Block (&blocks)[kCount], const GemmSm90Block& block, const GemmSm90Arguments<T>& a,
                      Launch&& launch) {
  return WithBlock(blocks, block, a, launch, std::make_index_sequence<kCount>());
}

}  // namespace gemm_sm90

template <class T>
cudaError_t GemmSm90Elementwise(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                                cudaStream_t stream) {
  using namespace gemm_sm90;
  if (tile.block == kPersistentBlock) {
    return WithPacked(a, [&](auto packed) {
      return LaunchPersistent<Persistent<T, decltype(packed)::value>>(tile, a, device, stream);
    });
  }
  return WithBlock(kOneTileBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<OneTile<T, decltype(index)::value, decltype(packed)::value>>(tile, a, device, stream);
  });
}

template <class T>
cudaError_t GemmSm90LayerNorm(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                              cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock(kLayerNormBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<WithLayerNorm<T, decltype(index)::value, decltype(packed)::value>>(tile, a, device, stream);
  });
}

template <class T>
cudaError_t GemmSm90SplitK(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& a, const Device& device,
                           cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock(kSplitKBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchSplitK<SplitK<T, decltype(index)::value, decltype(packed)::value>>(tile, a, device, stream);
  });
}

#define BERTFUSE_INSTANTIATE(FUNCTION, T) \
  template cudaError_t FUNCTION(const GemmSm90Tile&, const GemmSm90Arguments<T>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_KERNELS_CUH_
