// LayerNorm and RMSNorm after a product, where the sum that they normalise is an output, too: of a pre-norm block. Of a
// block between two norms the product is normalised first.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t ResidualNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                         cudaStream_t stream) {
  const auto launch = [&](auto norm) {
    using Norm = norms::WithTotal<decltype(norm)>;
    return a.product_gamma == nullptr ? LaunchNorm<Norm>(kernel, a, device, stream)
                                      : LaunchNorm<norms::WithProductNorm<Norm>>(kernel, a, device, stream);
  };
  return a.norm == NormKind::kRmsNorm ? launch(norms::RmsNorm()) : launch(norms::LayerNorm());
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t ResidualNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
