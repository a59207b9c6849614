#include "kernels/dependent_launch.cuh"
#include "kernels/gelu.cuh"
#include "kernels/layer_norm.h"
#include "kernels/row_norm.cuh"
#include "kernels/warp_row.cuh"

namespace bertfuse::kernels {
namespace {

// The rounded product, or zeros where the splits are to be summed up.
template <class T, int kVector>
__device__ __forceinline__ void LoadProduct(const LayerNormArguments<T>& a, int64_t at, float (&value)[kVector]) {
  Pack<T, kVector> part = {};
  if (a.product != nullptr) part = *reinterpret_cast<const Pack<T, kVector>*>(a.product + at);
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] = ToFloat(part.value[i]);
}

// Wider rows have no registers to spare.
constexpr bool TakesParts(int vector, int chunks) { return vector == 4 && chunks <= 2; }
static_assert(kMostColumnsInParts == 4 * 2 * MostRowThreads(2));

// Calls visit(part of the row) with what is to be added to the rounded product. Not unrolled: many rows have one part,
// and no registers to spare.
template <class T, class Visit>
__device__ __forceinline__ void ForEachPart(const LayerNormArguments<T>& a, int64_t row, Visit&& visit) {
  if (row < a.whole_rows) return;
  const int64_t stride = (a.rows - a.whole_rows) * a.columns;
  const T* part = a.parts + (row - a.whole_rows) * a.columns;
#pragma unroll 1
  for (int i = 0; i < a.more_parts; ++i, part += stride) visit(part);
}

template <class T, int kVector>
__device__ __forceinline__ void AddPart(const T* part, float (&value)[kVector]) {
  const auto more = *reinterpret_cast<const Pack<T, kVector>*>(part);
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] += ToFloat(more.value[i]);
}

template <class T, int kVector, int kChunks>
__global__ void __launch_bounds__(MostRowThreads(kChunks)) LayerNormKernel(LayerNormArguments<T> a) {
  __shared__ float3 scratch[32];
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * a.columns;
  const int64_t split_stride = a.rows * a.columns;
  const int columns = static_cast<int>(a.columns);
  LaunchNext();
  if (!a.vectors_are_constant) WaitForPrevious();
  RowVector<T, kVector, kChunks> bias(a.bias), gamma(a.gamma), beta(a.beta);
  bias.Load(columns), gamma.Load(columns), beta.Load(columns);
  WaitForPrevious();
  RowSlice<kVector, kChunks> row;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
    float (&value)[kVector] = row.value[chunk];
    const float* source = a.partial + offset + column;
    Pack<T, kVector> residual = {};
    if (a.residual != nullptr) residual = *reinterpret_cast<const Pack<T, kVector>*>(a.residual + offset + column);
    LoadProduct(a, offset + column, value);
    if constexpr (TakesParts(kVector, kChunks)) {
      ForEachPart(a, blockIdx.x, [&](const T* part) { AddPart(part + column, value); });
    }
#pragma unroll 4
    for (int split = 0; split < a.splits; ++split, source += split_stride) {
      const auto part = *reinterpret_cast<const Pack<float, kVector>*>(source);
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] += part.value[i];
    }
    const auto add = bias.Chunk(chunk, column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      value[i] = Activate(value[i] + ToFloat(add.value[i]), a.activation) + ToFloat(residual.value[i]);
    }
  });
  NormalizeAndStore(row, columns, gamma, beta, a.epsilon, a.y + offset, scratch);
}

// A warp for each row of up to 128 * kChunks columns: no barrier, all of a row's loads in flight at once.
template <class T, int kChunks>
__global__ void __launch_bounds__(256) LayerNormWarpKernel(LayerNormArguments<T> a) {
  constexpr int kVector = 4;
  const int lane = threadIdx.x % 32, columns = static_cast<int>(a.columns);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  LaunchNext();
  WaitForPrevious();
  if (at >= a.rows) return;
  const int64_t offset = at * a.columns, split_stride = a.rows * a.columns;
  float value[kChunks][kVector] = {};
  const auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = (chunk * 32 + lane) * kVector;
      if (column < columns) visit(value[chunk], column);
    }
  };
  for_each([&](float (&v)[kVector], int column) { LoadProduct(a, offset + column, v); });
  ForEachPart(a, at,
              [&](const T* part) { for_each([&](float (&v)[kVector], int column) { AddPart(part + column, v); }); });
#pragma unroll 2
  for (int split = 0; split < a.splits; ++split) {
    for_each([&](float (&v)[kVector], int column) {
      const auto part =
          *reinterpret_cast<const Pack<float, kVector>*>(a.partial + split * split_stride + offset + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) v[i] += part.value[i];
    });
  }
  float sum = 0.0f;
  for_each([&](float (&v)[kVector], int column) {
    const auto bias = *reinterpret_cast<const Pack<T, kVector>*>(a.bias + column);
    Pack<T, kVector> residual = {};
    if (a.residual != nullptr) residual = *reinterpret_cast<const Pack<T, kVector>*>(a.residual + offset + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = Activate(v[i] + ToFloat(bias.value[i]), a.activation) + ToFloat(residual.value[i]);
      sum += v[i];
    }
  });
  const float mean = WarpSum(sum) / columns;
  float squares = 0.0f;
  for_each([&](float (&v)[kVector], int) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += (v[i] - mean) * (v[i] - mean);
  });
  const float inverse = rsqrtf(WarpSum(squares) / columns + a.epsilon);
  for_each([&](float (&v)[kVector], int column) {
    const auto gamma = *reinterpret_cast<const Pack<T, kVector>*>(a.gamma + column);
    const auto beta = *reinterpret_cast<const Pack<T, kVector>*>(a.beta + column);
    Pack<T, kVector> out;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      out.value[i] = FromFloat<T>((v[i] - mean) * inverse * ToFloat(gamma.value[i]) + ToFloat(beta.value[i]));
    }
    *reinterpret_cast<Pack<T, kVector>*>(a.y + offset + column) = out;
  });
}

// A rounded product without an activation, a warp for each row.
template <class T, int kChunks>
__global__ void __launch_bounds__(kWarpRowThreads, kChunks > 3 ? 3 : 4)
    LayerNormProductKernel(LayerNormArguments<T> a) {
  const int columns = static_cast<int>(a.columns);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (kWarpRowThreads / 32);
  LaunchNext();
  if (!a.vectors_are_constant) WaitForPrevious();
  WarpRow<T, kChunks> rows[3], gamma, beta;
  WarpRow<T, kChunks>&product = rows[0], &bias = rows[1], &residual = rows[2];
  bias.Load(a.bias, columns), gamma.Load(a.gamma, columns), beta.Load(a.beta, columns);
  WaitForPrevious();
  const auto load = [&](int64_t row) {
    if (row >= a.rows) return;
    product.Load(a.product + row * columns, columns);
    if (a.residual != nullptr) residual.LoadOnce(a.residual + row * columns, columns);
  };
  int64_t row = static_cast<int64_t>(blockIdx.x) * (kWarpRowThreads / 32) + threadIdx.x / 32;
  for (load(row); row < a.rows; row += stride) {
    bias.KeepPacked(), gamma.KeepPacked(), beta.KeepPacked();
    const auto add_parts = [&](auto& value) {
      ForEachPart(a, row, [&](const T* data) {
        WarpRow<T, kChunks> part;
        part.Load(data, columns);
        part.AddTo(value);
      });
    };
    NormalizeSum(rows, columns, a.epsilon, gamma, beta, a.y + row * columns, add_parts, [&] { load(row + stride); });
  }
}

template <class T>
cudaError_t LaunchWarp(const LayerNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  const int warps = 8;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(CeilDiv(a.rows, warps)));
  config.block = dim3(32 * warps);
  config.stream = stream;
  config.device = &device;
  if (a.columns <= 384) return Launch(config, LayerNormWarpKernel<T, 3>, a);
  if (a.columns <= 768) return Launch(config, LayerNormWarpKernel<T, 6>, a);
  return Launch(config, LayerNormWarpKernel<T, 8>, a);
}

template <class T, int kVector>
cudaError_t LaunchVector(const LayerNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  const int threads = RowThreads(a.columns, kVector);
  config.grid = dim3(static_cast<unsigned>(a.rows));
  config.block = dim3(threads);
  config.stream = stream;
  config.device = &device;
  cudaError_t error = cudaErrorInvalidValue;
  SwitchChunks(a.columns, kVector, threads, [&](auto chunks) {
    constexpr int kChunks = decltype(chunks)::value;
    if (a.more_parts > 0 && !TakesParts(kVector, kChunks)) return;
    error = Launch(config, LayerNormKernel<T, kVector, kChunks>, a);
  });
  return error;
}

}  // namespace

template <class T>
cudaError_t LayerNorm(const LayerNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  const bool aligned = a.columns % 4 == 0 && IsAligned(a.partial, 16) && IsAligned(a.product, 4 * sizeof(T)) &&
                       IsAligned(a.parts, 4 * sizeof(T)) && IsAligned(a.bias, 4 * sizeof(T)) &&
                       IsAligned(a.residual, 4 * sizeof(T)) && IsAligned(a.gamma, 4 * sizeof(T)) &&
                       IsAligned(a.beta, 4 * sizeof(T)) && IsAligned(a.y, 4 * sizeof(T));
  // With few rows a whole block for each has more loads in flight.
  if constexpr (sizeof(T) == 2) {
    if (a.product != nullptr && a.activation == Activation::kNone &&
        WarpRowsFit(a.rows, a.columns, a.product, a.parts, a.bias, a.residual, a.gamma, a.beta, a.y)) {
      return WithWarpRowChunks(a.columns, [&](auto chunks) {
        return LaunchWarpRows(LayerNormProductKernel<T, decltype(chunks)::value>, a, device, stream);
      });
    }
  }
  if (aligned && a.columns <= 1024 && a.rows >= 2048) return LaunchWarp(a, device, stream);
  return aligned ? LaunchVector<T, 4>(a, device, stream) : LaunchVector<T, 1>(a, device, stream);
}

template cudaError_t LayerNorm(const LayerNormArguments<float>&, const Device&, cudaStream_t);
template cudaError_t LayerNorm(const LayerNormArguments<__half>&, const Device&, cudaStream_t);
template cudaError_t LayerNorm(const LayerNormArguments<__nv_bfloat16>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
