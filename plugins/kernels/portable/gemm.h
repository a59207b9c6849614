// Products without tensor cores, which choose their tiles themselves.
#ifndef BERTFUSE_KERNELS_PORTABLE_GEMM_H_
#define BERTFUSE_KERNELS_PORTABLE_GEMM_H_

#include "kernels/gemm.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {

// With `float_product` null: y[m, n] = activation(product + bias), bias may be null.
// Otherwise `float_product`[m, n] gets the bare float32 product, and y, bias and activation are not used.
template <class T>
struct PortableGemm {
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
cudaError_t GemmSimt(const PortableGemm<T>& gemm, const Device& device, cudaStream_t stream);

// kComplete or kPartialSums.
template <class T>
PortableGemm<T> MakePortableGemm(GemmForm form, const GemmArguments<Elements<T>>& a) {
  float* const product = form == GemmForm::kPartialSums ? a.float_partials : nullptr;
  return {a.x, a.weight, a.bias, a.y, product, a.m, a.n, a.k, a.activation, a.packed};
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PORTABLE_GEMM_H_
