#include <algorithm>

#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_rows.cuh"
#include "kernels/quantize_rows.h"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;
constexpr float kLeast = 1e-30f;
template <class Quantized>
constexpr float kLargest = std::is_same_v<Quantized, int8_t> ? 127.0f : 448.0f;

// Calls visit(column, values as float32) for the elements that this lane has of a row, kVector at a time.
template <int kVector, class T, class Visit>
__device__ __forceinline__ void ForLane(const T* row, const float* smooth, int64_t columns, Visit&& visit) {
  for (int64_t column = threadIdx.x % 32 * kVector; column < columns; column += 32 * kVector) {
    const auto loaded = *reinterpret_cast<const Pack<T, kVector>*>(row + column);
    float values[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = ToFloat(loaded.value[i]);
    if (smooth != nullptr) {
      const auto factors = *reinterpret_cast<const Pack<float, kVector>*>(smooth + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= factors.value[i];
    }
    visit(column, values);
  }
}

// A warp for each row, which it reads twice: the second time from the L1 cache.
template <class T, class Quantized, int kVector>
__global__ void __launch_bounds__(32 * kWarps) QuantizeRowsKernel(QuantizeRowsArguments<T, Quantized> a) {
  LaunchDependents();
  WaitForDependencies();
  const int64_t rows = RealRows(a.packed, a.rows), stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; at < rows; at += stride) {
    const T* const row = a.x + at * a.columns;
    Quantized* const to = a.quantized + at * a.columns;
    const auto store = [&](int64_t column, const Pack<Quantized, kVector>& pack) {
      *reinterpret_cast<Pack<Quantized, kVector>*>(to + column) = pack;
    };
    float scale;
    if (a.scale == nullptr) {
      float largest = 0.0f, total = 0.0f;
      ForLane<kVector>(row, a.smooth, a.columns, [&](int64_t, const float (&values)[kVector]) {
#pragma unroll
        for (float value : values) largest = fmaxf(largest, fabsf(value)), total += fabsf(value);
      });
      largest = fmaxf(WarpMax(largest), kLeast), total = WarpSum(total);
      const float inverse = kLargest<Quantized> / largest;
      ForLane<kVector>(row, a.smooth, a.columns, [&](int64_t column, const float (&values)[kVector]) {
        Pack<Quantized, kVector> pack;
        // (The largest times the inverse may be a little more than `largest`, which rounds to it.)
#pragma unroll
        for (int i = 0; i < kVector; ++i) pack.value[i] = FromFloat<Quantized>(values[i] * inverse);
        store(column, pack);
      });
      scale = largest / kLargest<Quantized> + (total - total);
    } else {
      scale = *a.scale;
      ForLane<kVector>(row, a.smooth, a.columns, [&](int64_t column, const float (&values)[kVector]) {
        Pack<Quantized, kVector> pack;
#pragma unroll
        for (int i = 0; i < kVector; ++i) pack.value[i] = FromFloat<Quantized>(values[i] / scale);
        store(column, pack);
      });
    }
    if (threadIdx.x % 32 == 0) a.row_scales[at] = scale;
  }
}

}  // namespace

template <class T, class Quantized>
cudaError_t QuantizeRows(const QuantizeRowsArguments<T, Quantized>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(a.packed.ForGrid(a.rows), kWarps), INT32_MAX)));
  config.block = dim3(32 * kWarps);
  config.stream = stream;
  config.device = &device;
  const bool vectorised =
      a.columns % 4 == 0 && IsAligned(a.x, 4 * sizeof(T)) && IsAligned(a.smooth, 16) && IsAligned(a.quantized, 4);
  return vectorised ? Launch(config, QuantizeRowsKernel<T, Quantized, 4>, a)
                    : Launch(config, QuantizeRowsKernel<T, Quantized, 1>, a);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                                      \
  template cudaError_t QuantizeRows(const QuantizeRowsArguments<TYPE, int8_t>&, const Device&, cudaStream_t); \
  template cudaError_t QuantizeRows(const QuantizeRowsArguments<TYPE, __nv_fp8_e4m3>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
