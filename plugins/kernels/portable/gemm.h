// Products without tensor cores, which choose their tiles themselves.
#ifndef BERTFUSE_KERNELS_PORTABLE_GEMM_H_
#define BERTFUSE_KERNELS_PORTABLE_GEMM_H_

#include "kernels/gemm.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {

// With `float_product` null: y[m, n] = activation(product + bias), bias may be null.
// Otherwise `float_product`[m, n] gets the bare float32 product, and y, bias and activation are not used.
// 8-bit operands have scales, as GemmArguments says.
template <class Elements>
struct PortableGemm {
  const typename Elements::X* x;
  const typename Elements::Weight* weight;
  const typename Elements::Y* bias;
  typename Elements::Y* y;
  const float* row_scales;
  const float* weight_scales;
  float* float_product;
  int64_t m, n, k;
  Activation activation;
  PackedRows packed;              // of the m rows; nothing is written from *row_count on
  const int32_t* x_compensation;  // as in GemmArguments
};

// Any shape and alignment; multiplies in float32, without tensor cores. 8-bit operands are summed exactly, as long as
// 32 bits hold the sum.
template <class Elements>
cudaError_t GemmSimt(const PortableGemm<Elements>& gemm, const Device& device, cudaStream_t stream);

// kComplete or kPartialSums.
template <class Elements>
PortableGemm<Elements> MakePortableGemm(GemmForm form, const GemmArguments<Elements>& a) {
  float* const product = form == GemmForm::kPartialSums ? a.float_partials : nullptr;
  return {a.x, a.weight, a.bias, a.y,          a.row_scales, a.weight_scales, product,
          a.m, a.n,      a.k,    a.activation, a.packed,     a.x_compensation};
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PORTABLE_GEMM_H_
