// CUDA's element types, and those of a matrix product. dtypes.h lists which ones tensors have; on the device,
// elements.cuh has what kernels do with one.
#ifndef BERTFUSE_KERNELS_ELEMENTS_H_
#define BERTFUSE_KERNELS_ELEMENTS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace bertfuse::kernels {

// Each has a type of its own: the two operands, the result with what is added to it (bias, residual), the accumulators.
template <class X_, class Weight_ = X_, class Y_ = X_, class Accumulator_ = float>
struct Elements {
  using X = X_;
  using Weight = Weight_;
  using Y = Y_;
  using Accumulator = Accumulator_;
};

// 8-bit integers that scales make numbers of T of: quantised operands, summed exactly.
template <class T>
using Int8Elements = Elements<int8_t, int8_t, T, int32_t>;

// The same of 8-bit floats: 4 bits of exponent, 3 of mantissa, magnitudes up to 448, summed in float32.
template <class T>
using Fp8Elements = Elements<__nv_fp8_e4m3, __nv_fp8_e4m3, T, float>;

// 8-bit operands, which have scales by row and by column.
template <class Elements>
inline constexpr bool kIsQuantized = sizeof(typename Elements::X) == 1;

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ELEMENTS_H_
