#include "kernels/activation.cuh"
#include "kernels/bias_activation.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsAtOnce = 4;     // whose loads are in flight together
constexpr int64_t kResident = 16;  // blocks of a multiprocessor at a time, by their threads

template <class T, int kVector>
__device__ __forceinline__ Pack<T, kVector> Activate(const Pack<T, kVector>& x, const Pack<T, kVector>& bias,
                                                     Activation activation) {
  float v[kVector];
  Pack<T, kVector> y;
#pragma unroll
  for (int i = 0; i < kVector; ++i) v[i] = ToFloat(x.value[i]) + ToFloat(bias.value[i]);
  if constexpr (sizeof(T) == 2) {
    Activations::For16Bits<kVector>(v, activation);
  } else {
    Activations::Exact<kVector>(v, activation);
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) y.value[i] = FromFloat<T>(v[i]);
  return y;
}

// A thread has kVector columns (x), whose bias it keeps, of every gridDim.y-th group of rows.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) BiasActivationKernel(BiasActivationArguments<T> a) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  const bool exists = column < a.columns;
  LaunchDependents();
  if (!a.bias_is_constant) WaitForDependencies();
  const auto bias = LoadIf<kVector>(exists && a.bias != nullptr, a.bias + column);
  WaitForDependencies();
  if (!exists) return;
  const int64_t rows = RealRows(a.packed, a.rows);
#pragma unroll 1
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * kRowsAtOnce; first < rows;
       first += static_cast<int64_t>(gridDim.y) * kRowsAtOnce) {
    T* const y = a.y + first * a.columns + column;
    Pack<T, kVector> x[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) x[i] = LoadIf<kVector>(first + i < rows, y + i * a.columns);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i < rows) {
        *reinterpret_cast<Pack<T, kVector>*>(y + i * a.columns) = Activate(x[i], bias, a.activation);
      }
    }
  }
}

template <class T, int kVector>
cudaError_t LaunchVector(const BiasActivationArguments<T>& a, const Device& device, cudaStream_t stream) {
  const int64_t across = CeilDiv(a.columns, kVector * kThreads);
  if (across > INT32_MAX) return cudaErrorInvalidValue;
  const int64_t groups = CeilDiv(a.packed.LaunchRows(a.rows), kRowsAtOnce);
  const int64_t resident = CeilDiv(kResident * device.multiprocessors, across);
  LaunchConfig config;
  config.grid =
      dim3(static_cast<unsigned>(across), static_cast<unsigned>(std::min<int64_t>({groups, resident, 65535})));
  config.block = dim3(kThreads);
  config.stream = stream;
  config.device = &device;
  return Launch(config, BiasActivationKernel<T, kVector>, a);
}

}  // namespace

template <class T>
cudaError_t BiasActivation(const BiasActivationArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (!Activations::Has(a.activation)) return cudaErrorInvalidConfiguration;
  constexpr int kVector = 16 / sizeof(T);
  const bool aligned = a.columns % kVector == 0 && IsAligned(a.y, 16) && IsAligned(a.bias, 16);
  return aligned ? LaunchVector<T, kVector>(a, device, stream) : LaunchVector<T, 1>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t BiasActivation(const BiasActivationArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
