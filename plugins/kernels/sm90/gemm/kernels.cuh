// The configurations that are compiled, from the tables in sm90/gemm.h.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_KERNELS_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_KERNELS_CUH_

#include <iterator>
#include <type_traits>
#include <utility>

#include "kernels/sm90/gemm/launch.cuh"
#include "kernels/sm90/gemm/rotate.cuh"

namespace bertfuse::kernels {
namespace gemm_sm90 {

// 8-bit operands have scales.
template <class Elements, class... Steps>
using Scaled = std::conditional_t<kIsQuantized<Elements>, Epilogue<Scale, Steps...>, Epilogue<Steps...>>;
template <class Elements>
using Elementwise = Scaled<Elements, AddBias, Activate<Activations>>;
template <class Elements>
using Gated = Scaled<Elements, AddBias, Gate<GateActivations>>;

// What is compiled for X, as constants.
template <class X>
inline constexpr Blocks kBlocksOf = BlocksOf<X>();

template <class Elements, size_t kIndex, bool kPacked>
struct PersistentOf {
  static constexpr GemmBlock kBlock = kBlocksOf<typename Elements::X>.persistent.first[kIndex];
  using Config = PersistentConfig<Elements, kBlock.m, kBlock.n, kBlock.stages, kPacked, Elementwise<Elements>>;
};
template <class Elements>
using Quantizing = Scaled<Elements, AddBias, Activate<Activations>, Quantize<typename Elements::Y>>;
template <class Elements, size_t kIndex, bool kPacked>
struct QuantizingOf {
  static constexpr GemmBlock kBlock = kBlocksOf<typename Elements::X>.persistent.first[kIndex];
  using Config = PersistentConfig<Elements, kBlock.m, kBlock.n, kBlock.stages, kPacked, Quantizing<Elements>,
                                  QuantizingTeam(kBlock)>;
};
template <class Elements, size_t kIndex, bool kPacked>
using StationaryOf = StationaryConfig<Elements, kStationaryBlocks[kIndex].n, kStationaryBlocks[kIndex].stages, kPacked,
                                      Quantizing<Elements>>;
template <class Elements, size_t kIndex, bool kPacked>
using QuantizingOneTile =
    OneTileConfig<Elements, kQuantizingOneTileBlocks[kIndex].m, kQuantizingOneTileBlocks[kIndex].n,
                  kQuantizingOneTileBlocks[kIndex].stages, kQuantizingOneTileBlocks[kIndex].per_multiprocessor, kPacked,
                  Quantizing<Elements>>;
template <class Elements, size_t kIndex, bool kPacked>
struct OneTileOf {
  static constexpr GemmBlock kBlock = kBlocksOf<typename Elements::X>.one_tile.first[kIndex];
  using Config = OneTileConfig<Elements, kBlock.m, kBlock.n, kBlock.stages, kBlock.per_multiprocessor, kPacked,
                               Elementwise<Elements>, kBlock.promotes>;
};
template <class Elements, size_t kIndex, bool kPacked>
using WithLayerNorm =
    OneTileConfig<Elements, kLayerNormBlocks[kIndex].m, kLayerNormBlocks[kIndex].n, kLayerNormBlocks[kIndex].stages,
                  kLayerNormBlocks[kIndex].per_multiprocessor, kPacked,
                  Epilogue<AddBias, Activate<Activations>, AddResidual, Normalize<norms::LayerNorm>>>;
// Partial sums are stored in float32.
template <class E>
using Sums = Elements<typename E::X, typename E::Weight, float, typename E::Accumulator>;
template <class Elements, size_t kIndex, bool kPacked>
using SplitK =
    SplitKConfig<Sums<Elements>, kSplitKBlocks[kIndex].m, kSplitKBlocks[kIndex].n, kSplitKBlocks[kIndex].stages,
                 kSplitKBlocks[kIndex].per_multiprocessor, kPacked, Scaled<Elements>>;

template <class Elements, size_t kIndex, bool kPacked, class Epilogue>
struct GatedPersistent {
  static constexpr GemmBlock kBlock = kBlocksOf<typename Elements::X>.persistent.first[kIndex];
  static constexpr int kTeam = kIsQuantized<Elements> ? QuantizingTeam(kBlock) : 1;
  using Config = PersistentConfig<Elements, kBlock.m, kBlock.n, kBlock.stages, kPacked, Epilogue, kTeam>;
};
template <class Elements>
using QuantizingGated = Epilogue<Scale, AddBias, Gate<GateActivations>, Quantize<typename Elements::Y>>;
template <class Elements, size_t kIndex, bool kPacked>
using GatedOneTile = OneTileConfig<Elements, kGatedOneTileBlocks[kIndex].m, kGatedOneTileBlocks[kIndex].n,
                                   kGatedOneTileBlocks[kIndex].stages, kGatedOneTileBlocks[kIndex].per_multiprocessor,
                                   kPacked, Gated<Elements>>;

template <class Elements>
using Rotated = Scaled<Elements, AddBias, Rotate<typename Elements::Y>>;
template <class Elements, size_t kIndex, bool kPacked>
using RotatingPersistent =
    PersistentConfig<Elements, kRotatingPersistentBlocks[kIndex].m, kRotatingPersistentBlocks[kIndex].n,
                     kRotatingPersistentBlocks[kIndex].stages, kPacked, Rotated<Elements>>;
template <class Elements, size_t kIndex, bool kPacked>
using RotatingOneTile = OneTileConfig<Elements, kRotatingOneTileBlocks[kIndex].m, kRotatingOneTileBlocks[kIndex].n,
                                      kRotatingOneTileBlocks[kIndex].stages,
                                      kRotatingOneTileBlocks[kIndex].per_multiprocessor, kPacked, Rotated<Elements>>;

template <class Elements, size_t kIndex, bool kPacked>
using WithResidual =
    OneTileConfig<Elements, kResidualBlocks[kIndex].m, kResidualBlocks[kIndex].n, kResidualBlocks[kIndex].stages,
                  kResidualBlocks[kIndex].per_multiprocessor, kPacked, Epilogue<AddBias, AddResidual>>;

// Calls launch(packed as a bool_constant).
template <class Elements, class Launch>
cudaError_t WithPacked(const GemmArguments<Elements>& a, Launch&& launch) {
  return a.packed.row_count == nullptr ? launch(std::false_type()) : launch(std::true_type());
}

// Calls launch(index as an integral_constant, packed as a bool_constant), `index` being the block's place in the table;
// cudaErrorInvalidConfiguration if it is not there.
template <class Elements, class Launch, size_t... kIndex>
cudaError_t WithBlock(const BlockList& blocks, const GemmBlock& block, const GemmArguments<Elements>& a,
                      Launch&& launch, std::index_sequence<kIndex...>) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  const auto with = [&](auto index) {
    error = WithPacked(a, [&](auto packed) { return launch(index, packed); });
    return true;
  };
  ((blocks.first[kIndex] == block && with(std::integral_constant<size_t, kIndex>())) || ...);
  return error;
}
template <size_t kCount, class Elements, class Launch>
cudaError_t WithBlock(const BlockList& blocks, const GemmBlock& block, const GemmArguments<Elements>& a,
                      Launch&& launch) {
  return WithBlock(blocks, block, a, launch, std::make_index_sequence<kCount>());
}

}  // namespace gemm_sm90

template <class Elements>
cudaError_t GemmSm90Elementwise(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                                cudaStream_t stream) {
  using namespace gemm_sm90;
  constexpr Blocks kBlocks = BlocksOf<typename Elements::X>();
  if (IsPersistent(tile.block)) {
    return WithBlock<kBlocks.persistent.count>(kBlocks.persistent, tile.block, a, [&](auto index, auto packed) {
      using Kernel = PersistentOf<Elements, decltype(index)::value, decltype(packed)::value>;
      return LaunchPersistent<typename Kernel::Config>(tile, a, device, stream);
    });
  }
  return WithBlock<kBlocks.one_tile.count>(kBlocks.one_tile, tile.block, a, [&](auto index, auto packed) {
    using Kernel = OneTileOf<Elements, decltype(index)::value, decltype(packed)::value>;
    return LaunchOneTile<typename Kernel::Config>(tile, a, device, stream);
  });
}

template <class Elements>
cudaError_t GemmSm90Quantizing(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                               cudaStream_t stream) {
  using namespace gemm_sm90;
  constexpr Blocks kBlocks = BlocksOf<typename Elements::X>();
  if (tile.splits > 1 || a.quantized.scale == nullptr) return cudaErrorInvalidConfiguration;
  if (IsStationary(tile.block)) {
    return WithBlock<std::size(kStationaryBlocks)>(kStationaryBlocks, tile.block, a, [&](auto index, auto packed) {
      return LaunchStationary<StationaryOf<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                       stream);
    });
  }
  if (!IsPersistent(tile.block)) {
    constexpr size_t kCount = std::size(kQuantizingOneTileBlocks);
    return WithBlock<kCount>(kQuantizingOneTileBlocks, tile.block, a, [&](auto index, auto packed) {
      return LaunchOneTile<QuantizingOneTile<Elements, decltype(index)::value, decltype(packed)::value>>(
          tile, a, device, stream);
    });
  }
  return WithBlock<kBlocks.persistent.count>(kBlocks.persistent, tile.block, a, [&](auto index, auto packed) {
    using Kernel = QuantizingOf<Elements, decltype(index)::value, decltype(packed)::value>;
    return LaunchPersistent<typename Kernel::Config>(tile, a, device, stream);
  });
}

template <class Elements>
cudaError_t GemmSm90Gated(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                          cudaStream_t stream) {
  using namespace gemm_sm90;
  constexpr BlockList kPersistent = kBlocksOf<typename Elements::X>.persistent;
  const auto launch = [&](auto epilogue) {
    return WithBlock<kPersistent.count>(kPersistent, tile.block, a, [&](auto index, auto packed) {
      using Kernel = GatedPersistent<Elements, decltype(index)::value, decltype(packed)::value, decltype(epilogue)>;
      return LaunchPersistent<typename Kernel::Config>(tile, a, device, stream);
    });
  };
  if constexpr (kIsQuantized<Elements>) {
    if (tile.splits > 1) return cudaErrorInvalidConfiguration;
    if (a.quantized.rows == nullptr) return launch(Gated<Elements>());
    return a.quantized.scale == nullptr ? cudaErrorInvalidConfiguration : launch(QuantizingGated<Elements>());
  } else {
    if (IsPersistent(tile.block)) return launch(Gated<Elements>());
    return WithBlock<std::size(kGatedOneTileBlocks)>(kGatedOneTileBlocks, tile.block, a, [&](auto index, auto packed) {
      return LaunchOneTile<GatedOneTile<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                    stream);
    });
  }
}

template <class Elements>
cudaError_t GemmSm90Rotating(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                             cudaStream_t stream) {
  using namespace gemm_sm90;
  if (tile.splits > 1) return cudaErrorInvalidConfiguration;
  if (IsPersistent(tile.block)) {
    constexpr size_t kCount = std::size(kRotatingPersistentBlocks);
    return WithBlock<kCount>(kRotatingPersistentBlocks, tile.block, a, [&](auto index, auto packed) {
      return LaunchPersistent<RotatingPersistent<Elements, decltype(index)::value, decltype(packed)::value>>(
          tile, a, device, stream);
    });
  }
  static_assert(kOneTileBlocks8[0] == kRotatingOneTileBlocks[0], "the one of 8-bit operands comes first");
  constexpr size_t kCount = kIsQuantized<Elements> ? 1 : std::size(kRotatingOneTileBlocks);
  return WithBlock<kCount>(kRotatingOneTileBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<RotatingOneTile<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                     stream);
  });
}

template <class Elements>
cudaError_t GemmSm90Residual(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                             cudaStream_t stream) {
  using namespace gemm_sm90;
  if (a.activation != Activation::kNone) return cudaErrorInvalidValue;
  return WithBlock<std::size(kResidualBlocks)>(kResidualBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<WithResidual<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                  stream);
  });
}

template <class Elements>
cudaError_t GemmSm90LayerNorm(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                              cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock<std::size(kLayerNormBlocks)>(kLayerNormBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchOneTile<WithLayerNorm<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device,
                                                                                                   stream);
  });
}

template <class Elements>
cudaError_t GemmSm90QuantizingNorm(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                                   cudaStream_t stream) {
  using namespace gemm_sm90;
  if (a.quantized.rows == nullptr || a.quantized.scale != nullptr || a.activation != Activation::kNone ||
      a.total != nullptr) {
    return cudaErrorInvalidConfiguration;
  }
  constexpr size_t kCount = std::size(kStationaryBlocks);
  return WithBlock<kCount>(kStationaryBlocks, tile.block, a, [&](auto index, auto packed) {
    constexpr GemmBlock kBlock = kStationaryBlocks[decltype(index)::value];
    constexpr bool kPacked = decltype(packed)::value;
    if (a.quantized_residual.rows == nullptr) {
      using Config = StationaryNormConfig<Elements, kBlock.n, kBlock.stages, kPacked, false>;
      return LaunchStationaryNorm<Config>(tile, a, device, stream);
    }
    if constexpr (std::is_same_v<typename Elements::X, int8_t>) {
      using Config = StationaryNormConfig<Elements, kBlock.n, kBlock.stages, kPacked, true>;
      return LaunchStationaryNorm<Config>(tile, a, device, stream);
    }
    return cudaErrorInvalidConfiguration;
  });
}

template <class Elements>
cudaError_t GemmSm90SplitK(const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                           cudaStream_t stream) {
  using namespace gemm_sm90;
  return WithBlock<std::size(kSplitKBlocks)>(kSplitKBlocks, tile.block, a, [&](auto index, auto packed) {
    return LaunchSplitK<SplitK<Elements, decltype(index)::value, decltype(packed)::value>>(tile, a, device, stream);
  });
}

// For operands and result of one type, and of 8-bit operands and a result of type T.
#define BERTFUSE_INSTANTIATE(FUNCTION, T) BERTFUSE_INSTANTIATE_##FUNCTION(T)
#define BERTFUSE_INSTANTIATE_FOR(FUNCTION, ELEMENTS) \
  template cudaError_t FUNCTION(const GemmTile&, const GemmArguments<ELEMENTS>&, const Device&, cudaStream_t);
#define BERTFUSE_INSTANTIATE_GemmSm90Elementwise(T) BERTFUSE_INSTANTIATE_FOR(GemmSm90Elementwise, Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90Gated(T) BERTFUSE_INSTANTIATE_FOR(GemmSm90Gated, Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90Rotating(T) BERTFUSE_INSTANTIATE_FOR(GemmSm90Rotating, Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90Residual(T) BERTFUSE_INSTANTIATE_FOR(GemmSm90Residual, Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90LayerNorm(T) BERTFUSE_INSTANTIATE_FOR(GemmSm90LayerNorm, Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90SplitK(T) BERTFUSE_INSTANTIATE_FOR(GemmSm90SplitK, Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90Int8(T)                        \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Elementwise, Int8Elements<T>)    \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Quantizing, Int8Elements<T>)     \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Gated, Int8Elements<T>)          \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Rotating, Int8Elements<T>)       \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90QuantizingNorm, Int8Elements<T>) \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90SplitK, Int8Elements<T>)
#define BERTFUSE_INSTANTIATE_GemmSm90Fp8(T)                        \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Elementwise, Fp8Elements<T>)    \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Quantizing, Fp8Elements<T>)     \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Gated, Fp8Elements<T>)          \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90Rotating, Fp8Elements<T>)       \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90QuantizingNorm, Fp8Elements<T>) \
  BERTFUSE_INSTANTIATE_FOR(GemmSm90SplitK, Fp8Elements<T>)

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_GEMM_KERNELS_CUH_
