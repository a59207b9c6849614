// The kernel of a product by mma.sync, and its launch.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_KERNELS_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_KERNELS_CUH_

#include <cmath>
#include <optional>

#include "kernels/dependent_launch.cuh"
#include "kernels/mma/gemm/epilogue.cuh"
#include "kernels/mma/gemm/mainloop.cuh"
#include "kernels/prefetch.cuh"

namespace bertfuse::kernels {
namespace gemm_mma {

// Sets a warp's sums of integers to what is taken off them at its columns, from `first` on.
template <class Config>
__device__ __forceinline__ void StartFromCompensation(int32_t (&sum)[Config::kI][Config::kJ][4],
                                                      const int32_t* compensation, int first, int columns) {
#pragma unroll
  for (int j = 0; j < Config::kJ; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = first + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e;
      const int32_t start = column < columns ? -compensation[column] : 0;
#pragma unroll
      for (int i = 0; i < Config::kI; ++i) sum[i][j][e] = sum[i][j][2 + e] = start;
    }
  }
}

// Grid: a block for each tile and split; of packed rows, for as many as are expected, and blocks loop if there are
// more.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    GemmMmaKernel(const __grid_constant__ Parameters<typename Config::Elements> p) {
  using Y = typename Config::Y;
  if constexpr (!Config::kRuns) return;
  constexpr bool kScaled = IsQuantized(Config::kMath);
  LaunchDependents();
  int rows = p.m;
  if (p.row_count != nullptr) {
    const int64_t left = int64_t{LoadRowCount(p.row_count)} - p.rows_before;
    rows = static_cast<int>(min(max(left, int64_t{0}), int64_t{p.m}));
  }
  const TileScheduler<Config::kM, Config::kN, typename Config::Elements> tiles(p, rows);
  if (static_cast<int>(blockIdx.x) >= tiles.tiles()) return LeaveEarly(blockIdx.x == 0);

  constexpr int kSlices = Config::kSlices, kWarpsOfSlice = Config::kThreadsOfSlice / 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int slice = kSlices == 1 ? 0 : static_cast<int>(threadIdx.x / Config::kThreadsOfSlice);
  const int of_slice = warp - slice * kWarpsOfSlice;
  const int warp_m = of_slice / Config::kWarpsN * Config::kWarpM, warp_n = of_slice % Config::kWarpsN * Config::kWarpN;
  char* const shared = DynamicShared();
  const uint32_t rings = SharedAddress(shared), ring = rings + slice * p.stages * StageBytes(Config::kTile);
  float* const bias = reinterpret_cast<float*>(shared + Config::RingBytesOf(p.stages));
  const Scales scales = {bias + Config::kN + warp_n, p.row_scales};
  const FragmentReader<Config> reader(warp_m, warp_n);
  bool waited = false;
#pragma unroll 1
  for (int number = static_cast<int>(blockIdx.x); number < tiles.tiles(); number += static_cast<int>(gridDim.x)) {
    const TileAt tile = tiles[number];
    const int first_stage = tile.split * p.stages_per_split, all_stages = (p.k + Config::kStageK - 1) / Config::kStageK;
    const int stages_of_split = min(all_stages - first_stage, p.stages_per_split);
    const int count = (stages_of_split - slice + kSlices - 1) / kSlices;
    const int most = (stages_of_split + kSlices - 1) / kSlices;
    const int first_k = (first_stage + slice) * Config::kStageK;
    CopyOf<Config, Config::kM> x(p.x, p.k, tile.first_row, rows, first_k);
    CopyOf<Config, Config::kN> weight(p.weight, p.k, tile.first_column, p.n, first_k);
    typename Config::Accumulator sum[Config::kI][Config::kJ][4] = {};
    const auto before_x = [&] {
      if (!waited) WaitForDependencies();
      waited = true;
    };
    if constexpr (Config::kMath == Math::kInt8) {
      if (p.x_compensation != nullptr && tile.split == 0) {
        if (!p.fetch_weights_first) before_x();  // a preceding kernel may write it
        StartFromCompensation<Config>(sum, p.x_compensation, tile.first_column + warp_n, p.n);
      }
    }
    // Under way while the main loop runs, which waits for neither, where there are registers for them: in larger tiles'
    // loops a single one more made the compiler compute addresses anew, 15% of a stage's instructions.
    constexpr bool kKeepsVectors = kSlices > 1;
    static_assert(Config::kN <= Config::kThreads);
    Y add = FromFloat<Y>(0.0f);
    float scale = 0.0f;
    const auto load_vectors = [&] {
      const int column = tile.first_column + static_cast<int>(threadIdx.x);
      if (static_cast<int>(threadIdx.x) >= Config::kN || column >= p.n) return;
      if (p.bias != nullptr) add = p.bias[column];
      if constexpr (kScaled) scale = p.weight_scales[column];
    };
    const auto store_vectors = [&] {
      if (static_cast<int>(threadIdx.x) >= Config::kN) return;
      bias[threadIdx.x] = ToFloat(add);
      if constexpr (kScaled) bias[Config::kN + threadIdx.x] = scale;
    };
    const auto after_first_copies = [&] {
      if (number == static_cast<int>(blockIdx.x)) PrefetchByGrid(p.next);
      load_vectors();
      if (!kKeepsVectors) store_vectors();
    };
    WithStages<MinStages(Config::kTile), MaxStages(Config::kTile)>(p.stages, [&](auto stages) {
      MultiplyTile<Config, decltype(stages)::value>(x, weight, reader, slice, ring, count, most, p.fetch_weights_first,
                                                    sum, before_x, after_first_copies);
    });
    if (kKeepsVectors) store_vectors();
    // The ring becomes the warps' staging: others may still read what is behind the last stage.
    __syncthreads();
    const int first_row = tile.first_row + warp_m, first_column = tile.first_column + warp_n;
    float* const partials =
        p.float_partials == nullptr ? nullptr : p.float_partials + static_cast<int64_t>(tile.split) * p.m * p.n;
    if constexpr (Config::kSlices > 1) {
      if (partials != nullptr) {
        StoreSlices<float, Config>(sum, slice, warp_m, warp_n, nullptr, Activation::kNone, rings, partials,
                                   tile.first_row, rows, tile.first_column, p.n, p.vectorised);
      } else {
        StoreSlices<Y, Config>(sum, slice, warp_m, warp_n, bias, p.activation, rings, p.y, tile.first_row, rows,
                               tile.first_column, p.n, p.vectorised);
      }
    } else if (p.float_partials != nullptr) {
      StoreTile<float, Config>(sum, scales, nullptr, Activation::kNone,
                               ring + warp * StagedRows<float, Config::kWarpN>::kBytes, partials, first_row, rows,
                               first_column, p.n, p.vectorised);
    } else {
      StoreTile<Y, Config>(sum, scales, bias + warp_n, p.activation,
                           ring + warp * StagedRows<Y, Config::kWarpN>::kBytes, p.y, first_row, rows, first_column, p.n,
                           p.vectorised);
    }
    __syncthreads();  // the next tile takes the ring and the bias
  }
}

// Rows of tiles in a group: so many that a wave of blocks is about as high as it is wide.
inline int GroupOf(const Tile& tile, int resident_blocks, int64_t tiles_m) {
  const double rows = std::sqrt(static_cast<double>(resident_blocks) * tile.n / tile.m);
  return static_cast<int>(std::clamp<int64_t>(std::llround(rows), 1, std::max<int64_t>(tiles_m, 1)));
}

template <class Config>
cudaError_t LaunchTile(GemmForm form, const GemmTile& tile, const GemmArguments<typename Config::Elements>& a,
                       const Device& device, cudaStream_t stream) {
  using Y = typename Config::Y;
  const bool partial = form == GemmForm::kPartialSums;
  Parameters<typename Config::Elements> p = {};
  p.x = a.x, p.weight = a.weight, p.bias = a.bias, p.y = a.y;
  p.row_scales = a.row_scales, p.weight_scales = a.weight_scales, p.x_compensation = a.x_compensation;
  p.float_partials = partial ? a.float_partials : nullptr;
  p.m = static_cast<int>(a.m), p.n = static_cast<int>(a.n), p.k = static_cast<int>(a.k);
  p.stages = tile.block.stages;
  if (p.stages < MinStages(Config::kTile) || p.stages > MaxStages(Config::kTile)) return cudaErrorInvalidConfiguration;
  const int64_t k_stages = CeilDiv(a.k, Config::kStageK);
  p.splits = tile.splits;
  p.stages_per_split = static_cast<int>(CeilDiv(k_stages, tile.splits));
  if ((tile.splits - 1) * int64_t{p.stages_per_split} >= k_stages) return cudaErrorInvalidConfiguration;
  const int64_t tiles_n = CeilDiv(a.n, Config::kN), tiles_m = CeilDiv(a.m, Config::kM);
  if (tiles_m * tiles_n * tile.splits > INT32_MAX - INT32_MAX / 2) return cudaErrorInvalidConfiguration;
  p.tiles_n = static_cast<int>(tiles_n);
  p.group = GroupOf(Config::kTile, device.multiprocessors * tile.block.per_multiprocessor, tiles_m);
  p.of_split = Divisor(static_cast<int>(tiles_m * tiles_n)), p.of_group = Divisor(p.group * p.tiles_n);
  p.height = Divisor(p.group), p.last_height = Divisor(std::max(static_cast<int>(tiles_m % p.group), 1));
  p.row_count = a.packed.row_count, p.rows_before = static_cast<int>(a.rows_before);
  p.activation = a.activation;
  p.vectorised =
      partial ? a.n % 4 == 0 && IsAligned(a.float_partials, 16) : a.n % (16 / sizeof(Y)) == 0 && IsAligned(a.y, 16);
  p.fetch_weights_first = a.weights_are_constant;
  p.last_rows_first = a.last_rows_first;
  p.next = a.next;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(CeilDiv(a.packed.LaunchRows(a.m), Config::kM) * tiles_n * tile.splits));
  config.block = dim3(Config::kThreads);
  config.shared_bytes = static_cast<size_t>(SharedBytes(Config::kMath, Config::kTile, tile.block.stages));
  config.stream = stream;
  config.device = &device;
  return Launch(config, GemmMmaKernel<Config>, p);
}

// By the block's size.
template <Math kMath, int kIndex = 0, class Elements>
cudaError_t LaunchMath(GemmForm form, const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                       cudaStream_t stream) {
  if constexpr (kIndex == std::extent_v<std::remove_reference_t<decltype(TilesOf<kMath>())>>) {
    return cudaErrorInvalidConfiguration;
  } else {
    using Tiled = Config<Elements, kMath, kIndex>;
    constexpr bool kLong = Tiled::kTile.has_long_stages();
    if (tile.block.m == Tiled::kM && tile.block.n == Tiled::kN && tile.block.long_stages == kLong) {
      return LaunchTile<Tiled>(form, tile, a, device, stream);
    }
    return LaunchMath<kMath, kIndex + 1>(form, tile, a, device, stream);
  }
}

// What no kernel is launched for: success where there is nothing to compute.
template <class Elements>
std::optional<cudaError_t> WithoutLaunch(GemmForm form, const GemmTile& tile, const GemmArguments<Elements>& a,
                                         const Device& device) {
  if (a.m == 0 || a.n == 0) return cudaSuccess;
  if (!Activations::Has(a.activation)) return cudaErrorInvalidValue;
  const bool splits = tile.splits == 1 || (tile.splits > 1 && form == GemmForm::kPartialSums);
  return splits && RunsOn(device, tile.block.long_stages) ? std::nullopt : std::optional(cudaErrorInvalidConfiguration);
}

}  // namespace gemm_mma

template <class T>
cudaError_t GemmMma(GemmForm form, const GemmTile& tile, const GemmArguments<Elements<T>>& a, const Device& device,
                    cudaStream_t stream) {
  using gemm_mma::Math;
  if (const auto error = gemm_mma::WithoutLaunch(form, tile, a, device)) return *error;
  if constexpr (!std::is_same_v<T, float>) {
    return gemm_mma::LaunchMath<Math::kHalf>(form, tile, a, device, stream);
  } else if (a.allow_tf32) {
    return gemm_mma::LaunchMath<Math::kTf32>(form, tile, a, device, stream);
  } else {
    return gemm_mma::LaunchMath<Math::kThreeTf32>(form, tile, a, device, stream);
  }
}

template <class T>
cudaError_t GemmMmaInt8(GemmForm form, const GemmTile& tile, const GemmArguments<Int8Elements<T>>& a,
                        const Device& device, cudaStream_t stream) {
  if (const auto error = gemm_mma::WithoutLaunch(form, tile, a, device)) return *error;
  return gemm_mma::LaunchMath<gemm_mma::Math::kInt8>(form, tile, a, device, stream);
}

template <class T>
cudaError_t GemmMmaFp8(GemmForm form, const GemmTile& tile, const GemmArguments<Fp8Elements<T>>& a,
                       const Device& device, cudaStream_t stream) {
  if (const auto error = gemm_mma::WithoutLaunch(form, tile, a, device)) return *error;
  return gemm_mma::LaunchMath<gemm_mma::Math::kFp8>(form, tile, a, device, stream);
}

template <class T>
using GemmMmaElements = Elements<T>;
template <class T>
using GemmMmaInt8Elements = Int8Elements<T>;
template <class T>
using GemmMmaFp8Elements = Fp8Elements<T>;
#define BERTFUSE_INSTANTIATE(FUNCTION, T)                                                                  \
  template cudaError_t FUNCTION<T>(GemmForm, const GemmTile&, const GemmArguments<FUNCTION##Elements<T>>&, \
                                   const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_MMA_GEMM_KERNELS_CUH_
