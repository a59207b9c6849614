#include <algorithm>

#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_rows.cuh"
#include "kernels/quantize_rows.h"
#include "kernels/quantized_row.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;

// What a lane has of a row, kVector elements at a time: up to kChunks of them, in registers, all loaded before the
// first is needed. 0: of a row of any length, loaded at every visit, the second time from the L1 cache.
template <class T, int kVector, int kChunks>
class LaneOfRow {
 public:
  __device__ __forceinline__ LaneOfRow(const T* row, const float* smooth, int64_t columns)
      : row_(row), smooth_(smooth), columns_(columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) chunks_[i] = LoadIf<kVector>(First(i) < columns, row + First(i));
  }
  // Calls visit(column, values as float32) for each kVector elements.
  template <class Visit>
  __device__ __forceinline__ void ForEach(Visit&& visit) const {
    if constexpr (kChunks > 0) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (First(i) < columns_) VisitOne(First(i), chunks_[i], visit);
      }
    } else {
      for (int64_t column = First(0); column < columns_; column += 32 * kVector) {
        VisitOne(column, *reinterpret_cast<const Pack<T, kVector>*>(row_ + column), visit);
      }
    }
  }

 private:
  __device__ __forceinline__ static int First(int chunk) { return (chunk * 32 + threadIdx.x % 32) * kVector; }
  template <class Visit>
  __device__ __forceinline__ void VisitOne(int64_t column, const Pack<T, kVector>& loaded, Visit&& visit) const {
    float values[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = ToFloat(loaded.value[i]);
    if (smooth_ != nullptr) {
      const auto factors = *reinterpret_cast<const Pack<float, kVector>*>(smooth_ + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= factors.value[i];
    }
    visit(column, values);
  }

  const T* row_;
  const float* smooth_;
  int64_t columns_;
  Pack<T, kVector> chunks_[kChunks > 0 ? kChunks : 1];
};

// A warp for each row.
template <class T, class Quantized, int kVector, int kChunks>
__global__ void __launch_bounds__(32 * kWarps) QuantizeRowsKernel(QuantizeRowsArguments<T, Quantized> a) {
  LaunchDependents();
  WaitForDependencies();
  const int64_t rows = RealRows(a.packed, a.rows), stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; at < rows; at += stride) {
    const LaneOfRow<T, kVector, kChunks> row(a.x + at * a.columns, a.smooth, a.columns);
    Quantized* const to = a.quantized + at * a.columns;
    float scale;
    if (a.scale == nullptr) {
      float largest = 0.0f, total = 0.0f;
      row.ForEach([&](int64_t, const float (&values)[kVector]) {
#pragma unroll
        for (float value : values) largest = fmaxf(largest, fabsf(value)), total += fabsf(value);
      });
      largest = fmaxf(WarpMax(largest), kLeastMagnitude), total = WarpSum(total);
      const float inverse = kLargestQuantized<Quantized> / largest;
      row.ForEach([&](int64_t column, float (&values)[kVector]) {
      // (The largest times the inverse may be a little more than `largest`, which rounds to it.)
#pragma unroll
        for (float& value : values) value *= inverse;
        *reinterpret_cast<Pack<Quantized, kVector>*>(to + column) = Rounded<Quantized>(values);
      });
      scale = largest / kLargestQuantized<Quantized> + (total - total);
    } else {
      scale = *a.scale;
      const float inverse = 1.0f / scale;
      row.ForEach([&](int64_t column, float (&values)[kVector]) {
#pragma unroll
        for (float& value : values) value = a.by_inverse ? value * inverse : value / scale;
        *reinterpret_cast<Pack<Quantized, kVector>*>(to + column) = Rounded<Quantized>(values);
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
  constexpr int kWide = 16 / sizeof(T);  // elements of 16 bytes
  const auto suits = [&](int vector) {
    return a.columns % vector == 0 && IsAligned(a.x, vector * sizeof(T)) && IsAligned(a.quantized, vector) &&
           IsAligned(a.smooth, vector * sizeof(float));
  };
  if (suits(kWide) && a.columns <= 4 * 32 * kWide) return Launch(config, QuantizeRowsKernel<T, Quantized, kWide, 4>, a);
  if (suits(kWide) && a.columns <= 16 * 32 * kWide)
    return Launch(config, QuantizeRowsKernel<T, Quantized, kWide, 16>, a);
  return suits(4) ? Launch(config, QuantizeRowsKernel<T, Quantized, 4, 0>, a)
                  : Launch(config, QuantizeRowsKernel<T, Quantized, 1, 0>, a);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                                      \
  template cudaError_t QuantizeRows(const QuantizeRowsArguments<TYPE, int8_t>&, const Device&, cudaStream_t); \
  template cudaError_t QuantizeRows(const QuantizeRowsArguments<TYPE, __nv_fp8_e4m3>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
