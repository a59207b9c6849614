// Attention on Hopper, without a score matrix in memory: a persistent kernel, whose producer warps run ahead of the
// consumers, across tiles; and launching it.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_KERNELS_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_KERNELS_CUH_

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/attention.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/prefetch.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/attention/consumer.cuh"
#include "kernels/sm90/attention/producer.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels {
namespace attention_sm90 {

// Fetches the bias and what results in 8 bits are computed with. A warpgroup reads them when it has its registers,
// which is when the kernels before this one have ended, and results are computed right behind the values' product: what
// is not in the cache by then is waited for. Called by one thread of each block.
template <class Config>
__device__ __forceinline__ void PrefetchConstants(const typename Config::LaunchParameters& p) {
  int kv_heads = p.heads;
  if constexpr (Config::kVariant) kv_heads = p.kv_heads;
  const int head_bytes = Config::kHeadSize * static_cast<int>(sizeof(typename Config::T));
  PrefetchByBlocks(p.bias, (p.heads + 2 * kv_heads) * head_bytes);
  PrefetchByBlocks(p.quantized.smooth, p.heads * Config::kHeadSize * static_cast<int>(sizeof(float)));
  if (blockIdx.x == 0) PrefetchScale(p.quantized);
}

// Grid: as many blocks as are resident at a time, or fewer.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    Kernel(const __grid_constant__ typename Config::LaunchParameters p) {
  BERTFUSE_DYNAMIC_SHARED(shared);  // DynamicShared() would change how packed sequences' kernels are scheduled
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4;
  if (warp < Config::kPipelines && threadIdx.x % 32 == 0) {
    PrefetchTensorMap(&p.qkv_map);
    Pipeline<Config>(p, shared, warp).InitBarriers();
    FenceBarrierInit();
  }
  LaunchDependents();
  __syncthreads();
  const int role = warp % 4 / Config::kPipelines;
  if (group == Config::kConsumers) {
    const bool loads = role == 0 && threadIdx.x % 32 == 0;
    if (loads && warp % Config::kPipelines == 0) PrefetchConstants<Config>(p);
    // The offsets of packed sequences can be read before the preceding kernels have ended (packed_rows.cuh), so the
    // first tiles are found early.
    if (!(Config::kPacked && role == 1)) WaitForDependencies();
    DeallocateRegisters<Config::kProducerRegisters>();
    const Producer<Config> producer(p, shared, warp % Config::kPipelines);
    if (loads) producer.Load();
    if (role == 1) producer.Plan();
  } else {
    // All else that consumers read or overwrite, they touch after the producer has waited and loaded their queries.
    // (They get their registers after it has waited, too.)
    if (!p.bias_is_constant) WaitForDependencies();
    AllocateRegisters<Config::kConsumerRegisters>();
    Consumer<Config>(p, shared, group).Compute();
  }
}

// What of the parameters depends on nothing but the call.
template <class Config>
typename Config::LaunchParameters MakeParameters(const AttentionArguments<typename Config::T>& a) {
  typename Config::LaunchParameters p = {};
  p.bias = a.bias;
  p.bias_is_constant = a.bias_is_constant;
  p.heads = static_cast<int>(a.heads);
  p.scale_log2 = std::max(a.scale * 1.44269504088896341f, FLT_MIN);
  p.quantized = a.quantized;
  if constexpr (Config::kVariant) {
    p.window_left = WindowSide(a.variant.window_left);
    p.window_right = WindowSide(a.variant.window_right);
    p.kv_heads = static_cast<int>(a.KvHeads());
    p.kv_heads_per_head = static_cast<float>(a.KvHeads()) / static_cast<float>(a.heads);
    p.cos = a.variant.cos, p.sin = a.variant.sin;
    p.places = static_cast<int>(std::min<int64_t>(a.variant.places, INT32_MAX));
  }
  return p;
}

template <class T>
const T* ValuesOf(const AttentionArguments<T>& a) {
  return a.values == nullptr ? a.qkv : a.values;
}

template <class Config>
cudaError_t LaunchPacked(const AttentionArguments<typename Config::T>& a, const Device& device, cudaStream_t stream) {
  constexpr TensorMapElement kType = kTensorMapType<typename Config::T>;
  const int64_t hidden = a.heads * a.head_size, columns = hidden + 2 * a.KvHeads() * a.head_size;
  auto p = MakeParameters<Config>(a);
  p.packed = a.packed;
  p.y = a.y;
  MatrixView view = {a.qkv, a.packed.rows, columns, columns, 64, Config::kTileColumns};
  MatrixView few_rows = view;
  few_rows.box_rows = kFewRows;
  cudaError_t error = MakeTensorMap(view, kType, &p.qkv_map);
  if (error == cudaSuccess) error = MakeTensorMap(few_rows, kType, &p.few_rows_map);
  if (error != cudaSuccess) return error;
  if constexpr (Config::kVariant) {
    view.data = few_rows.data = ValuesOf(a);
    error = MakeTensorMap(view, kType, &p.values_map);
    if (error == cudaSuccess) error = MakeTensorMap(few_rows, kType, &p.few_values_map);
    if (error != cudaSuccess) return error;
  }
  view = {a.y, a.packed.rows, hidden, hidden, 64, Config::kTileColumns};
  error = MakeTensorMap(view, kType, &p.y_map);
  if (error != cudaSuccess) return error;

  LaunchConfig config;
  config.block = dim3(Config::kThreads);
  config.shared_bytes = Config::SharedBytes(0);
  config.stream = stream;
  config.device = &device;
  const int64_t tiles = MaxPackedTiles(a.packed, a.heads, Config::kQueries);
  return LaunchResident(config, Kernel<Config>, tiles, Config::kPipelines, p);
}

template <class Config>
cudaError_t LaunchConfigured(const AttentionArguments<typename Config::T>& a, const Device& device,
                             cudaStream_t stream) {
  constexpr TensorMapElement kType = kTensorMapType<typename Config::T>;
  if constexpr (Config::kPacked) return LaunchPacked<Config>(a, device, stream);
  auto p = MakeParameters<Config>(a);
  p.mask = a.mask;
  p.mask_is_int64 = a.mask_is_int64;
  p.sequence = static_cast<int>(a.sequence);
  p.query_tiles = static_cast<int>(CeilDiv(a.sequence, Config::kQueries));
  p.inverse_query_tiles = 1.0f / p.query_tiles;
  p.inverse_heads = 1.0f / p.heads;
  p.tiles = static_cast<int>(p.query_tiles * a.heads * a.batch);
  const int64_t hidden = a.heads * a.head_size, columns = hidden + 2 * a.KvHeads() * a.head_size;
  MatrixView view = {a.qkv, a.sequence, columns, columns, 64, Config::kTileColumns, a.batch};
  cudaError_t error = MakeTensorMap(view, kType, &p.qkv_map);
  if (error != cudaSuccess) return error;
  if constexpr (Config::kVariant) {
    view.data = ValuesOf(a);
    error = MakeTensorMap(view, kType, &p.values_map);
    if (error != cudaSuccess) return error;
  }
  view = {a.y, a.sequence, hidden, hidden, 64, Config::kTileColumns, a.batch};
  error = MakeTensorMap(view, kType, &p.y_map);
  if (error != cudaSuccess) return error;

  LaunchConfig config;
  config.block = dim3(Config::kThreads);
  config.shared_bytes = Config::SharedBytes(a.sequence);
  config.stream = stream;
  config.device = &device;
  int blocks = 0;
  error = ResidentClusters(config, BERTFUSE_KERNEL_HANDLE(Kernel<Config>), &blocks);
  if (error != cudaSuccess) return error;
  config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, CeilDiv(p.tiles, Config::kPipelines))));
  const int step = static_cast<int>(config.grid.x) * Config::kPipelines, step_head = step / p.query_tiles;
  p.step_first_query = step % p.query_tiles * Config::kQueries;
  p.step_head = step_head % p.heads;
  p.step_batch = step_head / p.heads;
  return Launch(config, Kernel<Config>, p);
}

// Calls launch(Config()) with the configuration of a tile; attention.h has the table of those that are compiled.
template <class T, int kHeadSize, bool kPacked, bool kVariant, class Launch, size_t... kIndex>
cudaError_t WithConfig(const AttentionTile& tile, Launch&& launch, std::index_sequence<kIndex...>) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  const auto launch_if_it_is = [&](auto index) {
    constexpr AttentionTile kTile = kAttentionTiles[decltype(index)::value];
    if constexpr (HasAttentionTile(kTile, kHeadSize, kPacked)) {
      constexpr int kBlocks = kTile.queries == 64 && kHeadSize != 128 ? 2 : 1;
      using Config =
          AttentionConfig<T, kHeadSize, kTile.keys, kTile.pipelines, kTile.queries / 64, kBlocks, kPacked, kVariant>;
      if (tile == kTile) error = launch(Config());
    }
  };
  (launch_if_it_is(std::integral_constant<size_t, kIndex>()), ...);
  return error;
}

}  // namespace attention_sm90

template <class T>
cudaError_t AttentionSm90(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device,
                          cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads == 0) return cudaSuccess;
  const auto launch = [&](auto config) {
    return attention_sm90::LaunchConfigured<decltype(config)>(a, device, stream);
  };
  const auto with_size = [&](auto head_size) {
    using attention_sm90::WithConfig;
    constexpr int kHeadSize = decltype(head_size)::value;
    constexpr auto kIndices = std::make_index_sequence<std::size(attention_sm90::kAttentionTiles)>();
    const bool packed = a.packed.count > 0;
    if (!a.variant.IsPlain()) {
      return packed ? WithConfig<T, kHeadSize, true, true>(tile, launch, kIndices)
                    : WithConfig<T, kHeadSize, false, true>(tile, launch, kIndices);
    }
    return packed ? WithConfig<T, kHeadSize, true, false>(tile, launch, kIndices)
                  : WithConfig<T, kHeadSize, false, false>(tile, launch, kIndices);
  };
  switch (a.head_size) {
    case 32:
      return with_size(std::integral_constant<int, 32>());
    case 64:
      return with_size(std::integral_constant<int, 64>());
    case 128:
      return with_size(std::integral_constant<int, 128>());
    default:
      return cudaErrorInvalidValue;
  }
}

#define BERTFUSE_INSTANTIATE(FUNCTION, T) \
  template cudaError_t FUNCTION(const AttentionArguments<T>&, const AttentionTile&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_KERNELS_CUH_
