#include "kernels/layer_norm.h"

#include "kernels/dependent_launch.cuh"
#include "kernels/gelu.cuh"
#include "kernels/row_norm.cuh"

namespace bertfuse::kernels {
namespace {

template <class T, int kVector, int kChunks>
__global__ void __launch_bounds__(kChunks > 4 ? 1024 : 512) LayerNormKernel(LayerNormArguments<T> a) {
  __shared__ float scratch[32];
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * a.columns;
  const int64_t split_stride = a.rows * a.columns;
  const int columns = static_cast<int>(a.columns);
  LaunchNext();
  WaitForPrevious();
  RowSlice<kVector, kChunks> row;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
    float(&value)[kVector] = row.value[chunk];
    const float* source = a.partial + offset + column;
#pragma unroll
    for (int i = 0; i < kVector; ++i) value[i] = 0.0f;
#pragma unroll 4
    for (int split = 0; split < a.splits; ++split, source += split_stride) {
      const auto part = *reinterpret_cast<const Pack<float, kVector>*>(source);
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] += part.value[i];
    }
    const auto bias = *reinterpret_cast<const Pack<T, kVector>*>(a.bias + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) value[i] = Activate(value[i] + ToFloat(bias.value[i]), a.activation);
    if (a.residual != nullptr) {
      const auto residual = *reinterpret_cast<const Pack<T, kVector>*>(a.residual + offset + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] += ToFloat(residual.value[i]);
    }
  });
  NormalizeAndStore(row, columns, a.gamma, a.beta, a.epsilon, a.y + offset, scratch);
}

template <class T, int kVector>
cudaError_t LaunchVector(const LayerNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  const int threads = RowThreads(a.columns, kVector, a.columns > 512 * 4 * kVector ? 1024 : 512);
  config.grid = dim3(static_cast<unsigned>(a.rows));
  config.block = dim3(threads);
  config.stream = stream;
  config.device = &device;
  cudaError_t error = cudaErrorInvalidValue;
  SwitchChunks(a.columns, kVector, threads, [&](auto chunks) {
    error = Launch(config, LayerNormKernel<T, kVector, decltype(chunks)::value>, a);
  });
  return error;
}

}  // namespace

template <class T>
cudaError_t LayerNorm(const LayerNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  const bool aligned = a.columns % 4 == 0 && IsAligned(a.partial, 16) && IsAligned(a.bias, 4 * sizeof(T)) &&
                       IsAligned(a.residual, 4 * sizeof(T)) && IsAligned(a.gamma, 4 * sizeof(T)) &&
                       IsAligned(a.beta, 4 * sizeof(T)) && IsAligned(a.y, 4 * sizeof(T));
  return aligned ? LaunchVector<T, 4>(a, device, stream) : LaunchVector<T, 1>(a, device, stream);
}

template cudaError_t LayerNorm(const LayerNormArguments<float>&, const Device&, cudaStream_t);
template cudaError_t LayerNorm(const LayerNormArguments<__half>&, const Device&, cudaStream_t);
template cudaError_t LayerNorm(const LayerNormArguments<__nv_bfloat16>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
