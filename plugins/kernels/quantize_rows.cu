#include <algorithm>

#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_rows.cuh"
#include "kernels/quantize_rows.h"
#include "kernels/quantized_row.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;   // of a block
constexpr int kChunks = 4;  // that a thread keeps of a row, in registers

// What a thread has of a row that kThreads share, times `smooth` times `inverse`, kVector elements at a time. kKeeps:
// all of it in registers, loaded before the first is needed. Else of a row of any length, loaded at every visit, the
// second time from the L1 cache.
template <class T, int kVector, int kThreads, bool kKeeps>
class PartOfRow {
 public:
  __device__ __forceinline__ PartOfRow(const T* row, const float* smooth, int64_t columns, float inverse)
      : row_(row), smooth_(smooth), columns_(columns), inverse_(inverse) {
    if constexpr (kKeeps) {
      Pack<T, kVector> loaded[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) loaded[i] = LoadIf<kVector>(First(i) < columns, row + First(i));
      Pack<float, kVector> factors[kChunks];
      if (smooth != nullptr) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) factors[i] = LoadIf<kVector>(First(i) < columns, smooth + First(i));
      }
#pragma unroll
      for (int i = 0; i < kChunks * kVector; ++i) {
        const float factor = smooth == nullptr ? inverse : factors[i / kVector].value[i % kVector] * inverse;
        kept_[i / kVector][i % kVector] = ToFloat(loaded[i / kVector].value[i % kVector]) * factor;
      }
    }
  }
  // Calls visit(column, values as float32) for each kVector elements.
  template <class Visit>
  __device__ __forceinline__ void ForEach(Visit&& visit) const {
    if constexpr (kKeeps) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (First(i) < columns_) visit(First(i), kept_[i]);
      }
    } else {
      for (int64_t column = First(0); column < columns_; column += kThreads * kVector) {
        const auto loaded = *reinterpret_cast<const Pack<T, kVector>*>(row_ + column);
        float values[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          values[i] = ToFloat(loaded.value[i]) * (smooth_ == nullptr ? inverse_ : smooth_[column + i] * inverse_);
        }
        visit(column, values);
      }
    }
  }

 private:
  __device__ __forceinline__ static int First(int chunk) {
    return (chunk * kThreads + static_cast<int>(threadIdx.x) % kThreads) * kVector;
  }

  const T* row_;
  const float* smooth_;
  int64_t columns_;
  float inverse_;
  float kept_[kKeeps ? kChunks : 1][kVector];
};

// The greatest magnitude of a whole row, in all of its threads. Called by the whole block where that has one row.
template <int kThreads>
__device__ __forceinline__ float GreatestOfRow(float magnitude) {
  float all = GreatestOfWarp(magnitude);
  if constexpr (kThreads > 32) {
    __shared__ float warps[kThreads / 32];
    __syncthreads();  // the row before has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = all;
    __syncthreads();
    all = 0.0f;
#pragma unroll
    for (const float warp : warps) all = GreaterMagnitude(all, warp);
  }
  return all;
}

// A warp for each row, or a block: a warp alone has too few loads on their way for long rows. With 3072 columns an H200
// took 16 us for 1,024 rows, each by a warp.
template <class T, class Quantized, int kVector, int kThreads, bool kKeeps>
__global__ void __launch_bounds__(32 * kWarps) QuantizeRowsKernel(QuantizeRowsArguments<T, Quantized> a) {
  constexpr int kRows = 32 * kWarps / kThreads;  // of a block
  LaunchDependents();
  WaitForDependencies();
  const float given = a.scale == nullptr ? 1.0f : *a.scale, inverse = a.by_inverse ? 1.0f / given : 1.0f;
  const int64_t rows = RealRows(a.packed, a.rows), stride = static_cast<int64_t>(gridDim.x) * kRows;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads; at < rows; at += stride) {
    const PartOfRow<T, kVector, kThreads, kKeeps> row(a.x + at * a.columns, a.smooth, a.columns, inverse);
    Quantized* const to = a.quantized + at * a.columns;
    float scale;
    const auto store = [&](auto&& scaled, int zero = 0) {
      row.ForEach([&](int64_t column, const float (&values)[kVector]) {
        float numbers[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) numbers[i] = scaled(values[i]);
        *reinterpret_cast<QuantizedPack<Quantized, kVector>*>(to + column) = Rounded<Quantized>(numbers, zero);
      });
    };
    if (a.scale == nullptr) {
      float part = 0.0f;
      row.ForEach([&](int64_t, const float (&values)[kVector]) {
#pragma unroll
        for (float value : values) part = GreaterMagnitude(part, value);
      });
      const float greatest = GreatestOfRow<kThreads>(part);
      const float times = kLargestQuantized<Quantized> / fmaxf(greatest, kLeastMagnitude);
      // (The largest times that may be a little more than the largest number, which it is rounded to.)
      store([&](float value) { return value * times; });
      scale = ScaleOfRow(greatest, kLargestQuantized<Quantized>);
    } else {
      scale = given;
      const auto scaled = [&](float value) {
        if (a.by_inverse) return value;
        const float multiple = value / scale;
        return std::is_same_v<Quantized, int8_t> && multiple != multiple ? 0.0f : multiple;
      };
      store(scaled, a.zero == nullptr ? 0 : *a.zero);
    }
    if (threadIdx.x % kThreads == 0) a.row_scales[at] = scale;
  }
}

}  // namespace

template <class T, class Quantized>
cudaError_t QuantizeRows(const QuantizeRowsArguments<T, Quantized>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  constexpr int kWide = 16 / sizeof(T);  // elements of 16 bytes
  const auto suits = [&](int vector) {
    return a.columns % vector == 0 && IsAligned(a.x, vector * sizeof(T)) && IsAligned(a.quantized, vector) &&
           IsAligned(a.smooth, vector * sizeof(float));
  };
  const auto launch = [&](int rows_of_block, auto kernel) {
    LaunchConfig config;
    const int64_t blocks = CeilDiv(a.packed.LaunchRows(a.rows), rows_of_block);
    config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX)));
    config.block = dim3(32 * kWarps);
    config.stream = stream;
    config.device = &device;
    return Launch(config, kernel, a);
  };
  if (suits(kWide) && a.columns <= kChunks * 32 * kWide) {
    return launch(kWarps, QuantizeRowsKernel<T, Quantized, kWide, 32, true>);
  }
  if (suits(kWide) && a.columns <= kChunks * 32 * kWarps * kWide) {
    return launch(1, QuantizeRowsKernel<T, Quantized, kWide, 32 * kWarps, true>);
  }
  return suits(4) ? launch(1, QuantizeRowsKernel<T, Quantized, 4, 32 * kWarps, false>)
                  : launch(1, QuantizeRowsKernel<T, Quantized, 1, 32 * kWarps, false>);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                                      \
  template cudaError_t QuantizeRows(const QuantizeRowsArguments<TYPE, int8_t>&, const Device&, cudaStream_t); \
  template cudaError_t QuantizeRows(const QuantizeRowsArguments<TYPE, __nv_fp8_e4m3>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
