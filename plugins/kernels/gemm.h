#ifndef BERTFUSE_KERNELS_GEMM_H_
#define BERTFUSE_KERNELS_GEMM_H_

#include "kernels/activation.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// x[m, k] times weight[n, k] transposed. With `float_product` null: y[m, n] = activation(product + bias), bias may be
// null. Otherwise `float_product`[m, n] gets the bare float32 product, and y, bias and activation are not used.
template <class T>
struct GemmArguments {
  const T* x;
  const T* weight;
  const T* bias;
  T* y;
  float* float_product;
  int64_t m, n, k;
  Activation activation;
  PackedRows packed;  // of the m rows; nothing is written from *row_count on
};

// Any shape and alignment; multiplies in float32, without tensor cores.
template <class T>
cudaError_t GemmSimt(const GemmArguments<T>& arguments, const Device& device, cudaStream_t stream);

// On the tensor cores of compute capability 8.0 and later; float32 operands are rounded to TF32's 11 bits. Needs
// GemmMmaSupports().
template <class T>
cudaError_t GemmMma(const GemmArguments<T>& arguments, const Device& device, cudaStream_t stream);

// Whether every row starts on a 16-byte boundary.
template <class T>
bool GemmMmaSupports(const GemmArguments<T>& a) {
  return a.k % (16 / sizeof(T)) == 0 && IsAligned(a.x, 16) && IsAligned(a.weight, 16);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_H_
