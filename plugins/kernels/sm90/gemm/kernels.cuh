// The configurations that are compiled, from the tables in sm90/gemm.h.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_KERNELS_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_KERNELS_CUH_

#include <utility>

#include "kernels/sm90/gemm/launch.cuh"

namespace bertfuse::kernels {
namespace gemm_sm90 {

using Elementwise = Epilogue<AddBias, Activate<Activations>>;
using Gated = Epilogue<AddBias, Gate<GateActivations>>;
template <class Elements, size_t kIndex, bool kPacked>
using OneTile =
    OneTileConfig<Elements, kOneTileBlocks[kIndex].m, kOneTileBlocks[kIndex].n, kOneTileBlocks[kIndex].stages,
                  kOneTileBlocks[kIndex].per_multiprocessor, kPacked, Elementwise>;
template <class Elements, size_t kIndex, bool kPacked>
using WithLayerNorm =
    OneTileConfig<Elements, kLayerNormBlocks[kIndex].m, kLayerNormBlocks[kIndex].n, kLayerNormBlocks[kIndex].stages,
                  kLayerNormBlocks[kIndex].per_multiprocessor, kPacked,
                  Epilogue<AddBias, Activate<Activations>, AddResidual, Normalize<norms::LayerNorm>>>;
// Partial sums are stored as they are.
template <class E>
using Sums = Elements<typename E::X, typename E::Weight, typename E::Accumulator, typename E::Accumulator>;
template <class Elements, size_t kIndex, bool kPacked>
using SplitK = SplitKConfig<Sums<Elements>, kSplitKBlocks[kIndex].m, kSplitKBlocks[kIndex].n,
                            kSplitKBlocks[kIndex].stages, kSplitKBlocks[kIndex].per_multiprocessor, kPacked>;
template <class Elements, size_t kIndex, bool kPacked>
using Persistent = PersistentConfig<Elements, kPersistentBlocks[kIndex].m, kPersistentBlocks[kIndex].n,
                                    kPersistentBlocks[kIndex].stages, kPacked, Elementwise>;

template <class Elements, size_t kIndex, bool kPacked>
using GatedPersistent = PersistentConfig<Elements, kPersistentBlocks[kIndex].m, kPersistentBlocks[kIndex].n,
                                         kPersistentBlocks[kIndex].stages, kPacked, Gated>;
template <class Elements, size_t kIndex, bool kPacked>
using GatedOneTile =
    OneTileConfig<Elements, kGatedOneTileBlocks[kIndex].m, kGatedOneTileBlocks[kIndex].n,
                  kGatedOneTileBlocks[kIndex].stages, kGatedOneTileBlocks[kIndex].per_multiprocessor, kPacked, Gated>;

// Calls launch(packed as a bool_constant).
template <class Elements, class Launch>
cudaError_t WithPacked(const GemmArguments<Elements>& a, Launch&& launch) {
  return a.packed.row_count == nullptr ? launch(std::false_type()) : launch(std::true_type());
}

// Calls launch(index as an integral_constant, packed as a bool_constant), `index` being the block's place in the table;
// cudaErrorInvalidConfiguration if it is not there.
template <size_t kCount, class Elements, class Launch, size_t... kIndex>
cudaError_t WithBlock(const GemmBlock (&blocks)[kCount], const GemmBlock& block, const GemmArguments<Elements>& a,
                      Launch&& launch, std::index_sequence<kIndex...>) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  const auto with = [&](auto index) {
    error = WithPacked(a, [&](auto packed) { return launch(index, packed); });
    return true;
  };
  ((blocks[kIndex] == block && with(std::integral_constant<size_t, kIndex>())) || ...);
  return error;
}
template <size_t kCount, class Elements, class Launch>
cudaError_t WithBlock(const GemmBlock (&blocks)[kCount], const GemmBlock& block, const GemmArguments<Elements>& a,
                      Launch&& launch) {
  return WithBlock(blocks, block, a, launch, std::make_index_sequence<kCount>());
}

}  // namespace gemm_sm90

template <class Elements>
cudaError_t GemmSm90Elementwise(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                                cudaStream_t stream) {
  using namespace gemm_sm90;
  if (IsPersistent(tile.block)) {
    return WithBlock(kPersistentBlocks, tile.block, a, [&](auto index, auto packed) {
      return LaunchPersistent<Persistent<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                     stream);
    });
  }
  return WithBlock(kOneTileBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<OneTile<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device, stream);
  });
}

template <class Elements>
cudaError_t GemmSm90Gated(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                          cudaStream_t stream) {
  using namespace gemm_sm90;
  if (IsPersistent(tile.block)) {
    return WithBlock(kPersistentBlocks, tile.block, a, [&](auto index, auto packed) {
      return LaunchPersistent<GatedPersistent<Elements, decltype(index)::value, decltype(packed)::value>>(
          tile, a, device, stream);
    });
  }
  return WithBlock(kGatedOneTileBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<GatedOneTile<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                  stream);
  });
}

template <class Elements>
cudaError_t GemmSm90LayerNorm(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                              cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock(kLayerNormBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<WithLayerNorm<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                   stream);
  });
}

template <class Elements>
cudaError_t GemmSm90SplitK(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                           cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock(kSplitKBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchSplitK<SplitK<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device, stream);
  });
}

// For operands and result of one type.
#define BERTFUSE_INSTANTIATE(FUNCTION, T) \
  template cudaError_t FUNCTION(const GemmTile&, const GemmArguments<Elements<T>>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_GEMM_KERNELS_CUH_
