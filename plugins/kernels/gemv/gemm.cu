#include "kernels/activation.cuh"
#include "kernels/elements.cuh"
#include "kernels/gemv/gemm.h"
#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels {

template <class Elements>
__global__ void __launch_bounds__(128) GemvKernel(GemmArguments<Elements> a) {
  const int64_t column = int64_t{blockIdx.x} * 4 + threadIdx.x / 32, row = blockIdx.y;
  LaunchDependents();
  WaitForDependencies();
  if (column >= a.n || row >= RealRows(a.packed, a.m)) return;
  typename Elements::Accumulator sum = 0;
  for (int64_t k = threadIdx.x % 32; k < a.k; k += 32) {
    // A product of two integers of 8 bits is exact.
    sum += static_cast<decltype(sum)>(ToFloat(a.x[row * a.k + k]) * ToFloat(a.weight[column * a.k + k]));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  float y = static_cast<float>(sum);
  if (kIsQuantized<Elements>) y *= a.row_scales[row] * a.weight_scales[column];
  if (a.bias != nullptr) y += ToFloat(a.bias[column]);
  Activations::Exact<1>(&y, a.activation);
  if (threadIdx.x % 32 == 0) a.y[row * a.n + column] = FromFloat<typename Elements::Y>(y);
}

template <class Elements>
cudaError_t Gemv(const GemmArguments<Elements>& a, const Device& device, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(a.n, 4)), static_cast<unsigned>(a.m));
  return Launch({grid, dim3(128), 0, 1, stream, &device}, GemvKernel<Elements>, a);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                            \
  template cudaError_t Gemv(const GemmArguments<Elements<TYPE>>&, const Device&, cudaStream_t);     \
  template cudaError_t Gemv(const GemmArguments<Int8Elements<TYPE>>&, const Device&, cudaStream_t); \
  template cudaError_t Gemv(const GemmArguments<Fp8Elements<TYPE>>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
