// Attention on the tensor cores of compute capability 8.0 and later (mma.sync, cp.async), without a score matrix in
// memory: the kernel, and launching it.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_KERNELS_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_KERNELS_CUH_

#include <algorithm>
#include <cfloat>
#include <iterator>
#include <type_traits>
#include <utility>

#include "kernels/dependent_launch.cuh"
#include "kernels/launch.h"
#include "kernels/mma/attention/mainloop.cuh"
#include "kernels/mma/attention/tile_scheduler.cuh"
#include "kernels/prefetch.cuh"
#include "kernels/ptx/shared.cuh"

namespace bertfuse::kernels {
namespace attention_mma {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    Kernel(const __grid_constant__ Parameters<typename Config::T> p) {
  __shared__ typename TileScheduler<Config>::Shared scheduler;
  alignas(16) __shared__ typename Config::T v_bias[Config::kBiasWords * Config::kPerWord];
  // Float32 of head size 256 has 16 bytes more, and wherever its 192 KiB fit, there is room.
  static_assert(sizeof(scheduler) + sizeof(v_bias) <= kStaticBytes || Config::kRowBytes == 1024);
  if constexpr (!kHasMma<typename Config::T>) return;
  LaunchDependents();
  WaitForDependencies();
  PrefetchByGrid(p.next);
  const TileScheduler<Config> tiles(p, scheduler);
  Tile tile = {};
#pragma unroll 1
  while (tiles.Find(tile)) {
    Mainloop<Config>(p, tile, DynamicShared(), scheduler.mask_words, v_bias).Compute();
    if (tiles.HasOneTile()) return;
    __syncthreads();  // results have left shared memory
  }
}

template <class T>
Parameters<T> MakeParameters(const AttentionArguments<T>& a) {
  const AttentionVariant<T>& variant = a.variant;
  const int64_t kv_heads = a.KvHeads(), size = a.head_size, q_columns = a.heads * size, k_columns = kv_heads * size;
  Parameters<T> p = {};
  p.q = a.qkv;
  p.k = p.q + q_columns;
  p.value_offset = static_cast<int>(k_columns);
  if (a.bias != nullptr) {
    p.q_bias = a.bias;
    p.k_bias = variant.soft_cap > 0 ? a.bias + q_columns : nullptr;
    p.v_bias = a.bias + q_columns + k_columns;
  }
  p.y = a.y;
  p.mask = a.packed.count > 0 ? nullptr : a.mask;  // the offsets stand in its place
  p.mask_is_int64 = a.mask_is_int64;
  p.next = a.next;
  p.batch = a.batch;
  p.pitch = static_cast<int>((q_columns + 2 * k_columns) * sizeof(T));
  p.y_pitch = static_cast<int>(q_columns * sizeof(T));
  p.sequence = static_cast<int>(a.sequence);
  p.heads = static_cast<int>(a.heads);
  p.kv_heads_per_head = static_cast<float>(kv_heads) / static_cast<float>(a.heads);
  p.head_size = static_cast<int>(size);
  p.packed = a.packed;
  p.scale_log2 = std::max(a.scale * kLog2E, FLT_MIN);
  p.window_left = WindowSide(variant.window_left);
  p.window_right = WindowSide(variant.window_right);
  p.soft_cap = variant.soft_cap;
  p.cap_exponent = variant.soft_cap > 0 ? 2.0f * kLog2E * a.scale / variant.soft_cap : 0.0f;
  p.cap_log2 = variant.soft_cap * kLog2E;
  if (variant.distance_bias != nullptr) {
    p.distance_bias = variant.distance_bias;
    p.bias_pitch = variant.bias_heads == 1 ? 0 : static_cast<int>(variant.bias_columns);
    p.bias_left = static_cast<int>(variant.bias_left);
    p.bias_last = static_cast<int>(variant.bias_columns - 1);
  }
  p.hidden_alike = variant.hidden_alike && p.mask != nullptr;
  if (variant.positions != nullptr) {
    p.positions = variant.positions;
    p.position_k_bias = a.bias == nullptr ? nullptr : a.bias + q_columns;
    p.position_left = static_cast<int>(variant.position_left);
    p.position_last = static_cast<int>(variant.position_rows - 1);
  }
  return p;
}

template <class Config>
cudaError_t LaunchConfigured(const AttentionArguments<typename Config::T>& a, const Device& device,
                             cudaStream_t stream) {
  constexpr int64_t kMaxGridYZ = 65535;
  SharedLayout layout = LayoutOn(Config::kShape, Config::kQueries, device.shared_bytes);
  if (Config::kPositions) layout = LayoutOf(Config::kShape, Config::kQueries, true);
  Parameters<typename Config::T> p = MakeParameters(a);
  p.query_offset = layout.query_offset;
  p.queries_apart = layout.queries_apart;
  p.position_offset = layout.bytes;
  LaunchConfig config;
  config.block = dim3(Config::kThreads);
  config.shared_bytes = layout.bytes + (Config::kPositions ? PositionBytes(Config::kShape) : 0);
  config.stream = stream;
  config.device = &device;
  if (a.packed.count > 0) {
    return LaunchResident(config, Kernel<Config>, MaxPackedTiles(a.packed, a.heads, Config::kQueries), 1, p);
  }
  const int64_t query_tiles = CeilDiv(a.sequence, Config::kQueries);
  config.grid = dim3(static_cast<unsigned>(query_tiles), static_cast<unsigned>(a.heads),
                     static_cast<unsigned>(std::min(a.batch, kMaxGridYZ)));
  return Launch(config, Kernel<Config>, p);
}

// Of the table's row kIndex; cudaErrorInvalidConfiguration where it has no such tile.
template <Math kMath, int kIndex, class T>
cudaError_t LaunchRow(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                      cudaStream_t stream) {
  constexpr TileShape kShape = ShapesOf<kMath>()[kIndex];
  if (!kShape.variants && !a.variant.IsPlain()) return cudaErrorInvalidConfiguration;
  if (a.variant.positions != nullptr) {
    if constexpr (HasPositions(kShape)) {
      if (tile == Narrow(kShape)) return LaunchConfigured<Config<T, kMath, kIndex, 1, true>>(a, device, stream);
    }
    return cudaErrorInvalidConfiguration;
  }
  if (tile == Narrow(kShape)) return LaunchConfigured<Config<T, kMath, kIndex, 1>>(a, device, stream);
  if constexpr (kShape.HasWide()) {
    if (tile == Wide(kShape)) return LaunchConfigured<Config<T, kMath, kIndex, 2>>(a, device, stream);
  }
  return cudaErrorInvalidConfiguration;
}

// Finds the table's row with that tile among those for the head size.
template <Math kMath, class T, size_t... kIndex>
cudaError_t LaunchAnySize(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                          cudaStream_t stream, std::index_sequence<kIndex...>) {
  const TileShape* shape = FindTileShape<kMath>(a.head_size);
  if (shape == nullptr) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidConfiguration;
  const auto launch_if_it_is = [&](auto index) {
    constexpr int kRow = decltype(index)::value;
    if (shape->head_size == ShapesOf<kMath>()[kRow].head_size && error == cudaErrorInvalidConfiguration) {
      error = LaunchRow<kMath, kRow>(a, tile, device, stream);
    }
  };
  (launch_if_it_is(std::integral_constant<size_t, kIndex>()), ...);
  return error;
}

template <Math kMath, class T>
cudaError_t LaunchMath(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                       cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads * a.head_size == 0) return cudaSuccess;
  constexpr auto kIndices = std::make_index_sequence<std::size(ShapesOf<kMath>())>();
  return LaunchAnySize<kMath>(a, tile, device, stream, kIndices);
}

}  // namespace attention_mma

template <class T>
cudaError_t AttentionMma(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                         cudaStream_t stream) {
  return attention_mma::LaunchMath<attention_mma::Math::kHalf>(a, tile, device, stream);
}

template <class T>
cudaError_t AttentionMmaTf32(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                             cudaStream_t stream) {
  return attention_mma::LaunchMath<attention_mma::Math::kTf32>(a, tile, device, stream);
}

template <class T>
cudaError_t AttentionMmaThreeTf32(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                                  cudaStream_t stream) {
  return attention_mma::LaunchMath<attention_mma::Math::kThreeTf32>(a, tile, device, stream);
}

#define BERTFUSE_INSTANTIATE(FUNCTION, T) \
  template cudaError_t FUNCTION(const AttentionArguments<T>&, const AttentionTile&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_KERNELS_CUH_
