#include "kernels/activation.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/gate.h"
#include "kernels/packed_rows.cuh"
#include "kernels/quantized_row.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kRowsAtOnce = 4;       // whose loads are in flight together
constexpr int64_t kResident = 1024;  // threads of a multiprocessor at a time, by their registers

template <class T, int kVector>
__device__ __forceinline__ void AddPacks(const Pack<T, kVector>& x, const Pack<T, kVector>& bias, float (&v)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) v[i] = ToFloat(x.value[i]) + ToFloat(bias.value[i]);
}

template <class T, int kVector>
__device__ __forceinline__ void Activated(float (&v)[kVector], Activation activation) {
  if constexpr (sizeof(T) == 2) {
    GateActivations::For16Bits<kVector>(v, activation);
  } else {
    GateActivations::Exact<kVector>(v, activation);
  }
}

// Numbers of y in 8 bits, in place of y: of some columns, whose factors over the result's scale it keeps.
template <int kVector>
class QuantizedColumns {
 public:
  __device__ __forceinline__ QuantizedColumns(const QuantizedResult& to, int64_t column)
      : to_(to), is_first_(column == 0) {
    scale_ = *to.scale, zero_ = ZeroOf(to);
    const float inverse = InverseOfScale(scale_);
    factors_ = LoadIf<kVector>(to.smooth != nullptr, to.smooth + column);
#pragma unroll
    for (float& factor : factors_.value) factor = to.smooth == nullptr ? inverse : factor * inverse;
  }
  // `at`: the first one's place among all rows' numbers.
  template <class T>
  __device__ __forceinline__ void Store(const Pack<T, kVector>& y, int64_t row, int64_t at) const {
    float scaled[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) scaled[i] = ToFloat(y.value[i]) * factors_.value[i];
    StoreRounded(to_, at, scaled, zero_);
    if (is_first_) to_.scales[row] = scale_;
  }

 private:
  const QuantizedResult& to_;
  Pack<float, kVector> factors_;
  float scale_;
  int zero_;
  bool is_first_;
};

// A thread has kVector columns of y (x), whose biases it keeps, of every gridDim.y-th group of rows.
template <class T, int kVector, bool kQuantizes>
__global__ void __launch_bounds__(kMaxThreads) GateKernel(GateArguments<T> a) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kVector;
  const bool exists = column < a.columns, biased = exists && a.bias != nullptr;
  LaunchDependents();
  if (!a.bias_is_constant) WaitForDependencies();
  const auto gate_bias = LoadIf<kVector>(biased, a.bias + column);
  const auto up_bias = LoadIf<kVector>(biased, a.bias + a.columns + column);
  WaitForDependencies();
  if (!exists) return;
  const int64_t rows = RealRows(a.packed, a.rows);
  const auto store = [&] {
    if constexpr (kQuantizes) {
      return [columns = QuantizedColumns<kVector>(a.quantized, column)](const Pack<T, kVector>& y, int64_t row,
                                                                        int64_t at) { columns.Store(y, row, at); };
    } else {
      return [to = a.y](const Pack<T, kVector>& y, int64_t, int64_t at) {
        *reinterpret_cast<Pack<T, kVector>*>(to + at) = y;
      };
    }
  }();
#pragma unroll 1
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * kRowsAtOnce; first < rows;
       first += static_cast<int64_t>(gridDim.y) * kRowsAtOnce) {
    const T* const product = a.product + 2 * first * a.columns + column;
    Pack<T, kVector> gate[kRowsAtOnce], up[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      gate[i] = LoadIf<kVector>(first + i < rows, product + 2 * i * a.columns);
      up[i] = LoadIf<kVector>(first + i < rows, product + (2 * i + 1) * a.columns);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i >= rows) break;
      float v[kVector], factor[kVector];
      AddPacks(gate[i], gate_bias, v), AddPacks(up[i], up_bias, factor);
      Activated<T>(v, a.activation);
      Pack<T, kVector> y;
#pragma unroll
      for (int j = 0; j < kVector; ++j) y.value[j] = FromFloat<T>(v[j] * factor[j]);
      store(y, first + i, (first + i) * a.columns + column);
    }
  }
}

template <class T, int kVector>
cudaError_t LaunchVector(const GateArguments<T>& a, const Device& device, cudaStream_t stream) {
  const int64_t vectors = CeilDiv(a.columns, kVector), across = CeilDiv(vectors, kMaxThreads);
  if (across > INT32_MAX) return cudaErrorInvalidValue;
  const int64_t threads = CeilDiv(CeilDiv(vectors, across), 32) * 32;  // as few as possible without a column
  const int64_t groups = CeilDiv(a.packed.LaunchRows(a.rows), kRowsAtOnce);
  const int64_t resident = CeilDiv(kResident / threads * device.multiprocessors, across);
  LaunchConfig config;
  config.grid =
      dim3(static_cast<unsigned>(across), static_cast<unsigned>(std::min<int64_t>({groups, resident, 65535})));
  config.block = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.device = &device;
  return Launch(config, a.quantized.rows == nullptr ? GateKernel<T, kVector, false> : GateKernel<T, kVector, true>, a);
}

}  // namespace

template <class T>
cudaError_t Gate(const GateArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (!GateActivations::Has(a.activation)) return cudaErrorInvalidConfiguration;
  if (a.quantized.rows != nullptr && a.quantized.scale == nullptr) return cudaErrorInvalidConfiguration;
  constexpr int kVector = 16 / sizeof(T);
  const bool aligned = a.columns % kVector == 0 && IsAligned(a.product, 16) && IsAligned(a.y, 16) &&
                       IsAligned(a.bias, 16) && IsAligned(a.quantized.rows, kVector) &&
                       IsAligned(a.quantized.smooth, kVector * sizeof(float));
  return aligned ? LaunchVector<T, kVector>(a, device, stream) : LaunchVector<T, 1>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t Gate(const GateArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
