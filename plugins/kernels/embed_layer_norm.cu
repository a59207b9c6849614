#include "kernels/dependent_launch.cuh"
#include "kernels/embed_layer_norm.h"
#include "kernels/row_norm.cuh"

namespace bertfuse::kernels {
namespace {

// The table's row, or null where the id is outside it.
template <class T>
__device__ __forceinline__ const T* Row(const T* table, int64_t id, int64_t size, int64_t columns) {
  id += id < 0 ? size : 0;
  return id >= 0 && id < size ? table + id * columns : nullptr;
}

template <class T, class Index, int kVector, int kChunks>
__global__ void __launch_bounds__(kChunks > 4 ? 1024 : 512) EmbedLayerNormKernel(EmbedLayerNormArguments<T, Index> a) {
  __shared__ float3 scratch[32];
  const int64_t at = blockIdx.x;
  const int columns = static_cast<int>(a.columns);
  LaunchNext();
  WaitForPrevious();
  RowVector<T, kVector, kChunks> gamma(a.gamma), beta(a.beta);
  gamma.Load(columns), beta.Load(columns);
  const T* tables[3];
  tables[0] = Row(a.word_table, a.ids[at], a.words, a.columns);
  const int64_t position = a.position_ids != nullptr ? static_cast<int64_t>(a.position_ids[at]) : at % a.sequence;
  tables[1] = Row(a.position_table, position, a.positions, a.columns);
  const bool typed = a.token_type_ids != nullptr;
  tables[2] = typed ? Row(a.token_type_table, a.token_type_ids[at], a.token_types, a.columns) : nullptr;
  const bool inside = tables[0] != nullptr && tables[1] != nullptr && (tables[2] != nullptr || !typed);
  RowSlice<kVector, kChunks> row;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) row.value[chunk][i] = inside ? 0.0f : __int_as_float(0x7fffffff);
    if (!inside) return;
#pragma unroll
    for (int table = 0; table < 3; ++table) {
      if (table == 2 && !typed) continue;
      const auto part = *reinterpret_cast<const Pack<T, kVector>*>(tables[table] + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) row.value[chunk][i] += ToFloat(part.value[i]);
    }
  });
  NormalizeAndStore(row, columns, gamma, beta, a.epsilon, a.y + at * a.columns, scratch);
}

template <class T, class Index, int kVector>
cudaError_t LaunchVector(const EmbedLayerNormArguments<T, Index>& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  const int threads = RowThreads(a.columns, kVector, a.columns > 512 * 4 * kVector ? 1024 : 512);
  config.grid = dim3(static_cast<unsigned>(a.rows));
  config.block = dim3(threads);
  config.stream = stream;
  config.device = &device;
  cudaError_t error = cudaErrorInvalidValue;
  SwitchChunks(a.columns, kVector, threads, [&](auto chunks) {
    error = Launch(config, EmbedLayerNormKernel<T, Index, kVector, decltype(chunks)::value>, a);
  });
  return error;
}

}  // namespace

template <class T, class Index>
cudaError_t EmbedLayerNorm(const EmbedLayerNormArguments<T, Index>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  const uintptr_t bytes = 4 * sizeof(T);
  const bool aligned = a.columns % 4 == 0 && IsAligned(a.word_table, bytes) && IsAligned(a.token_type_table, bytes) &&
                       IsAligned(a.position_table, bytes) && IsAligned(a.gamma, bytes) && IsAligned(a.beta, bytes) &&
                       IsAligned(a.y, bytes);
  return aligned ? LaunchVector<T, Index, 4>(a, device, stream) : LaunchVector<T, Index, 1>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(T)                                                                                 \
  template cudaError_t EmbedLayerNorm(const EmbedLayerNormArguments<T, int32_t>&, const Device&, cudaStream_t); \
  template cudaError_t EmbedLayerNorm(const EmbedLayerNormArguments<T, int64_t>&, const Device&, cudaStream_t);
BERTFUSE_INSTANTIATE(float)
BERTFUSE_INSTANTIATE(__half)
BERTFUSE_INSTANTIATE(__nv_bfloat16)
#undef BERTFUSE_INSTANTIATE

}  // namespace bertfuse::kernels
