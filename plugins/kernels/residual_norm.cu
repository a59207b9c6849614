// LayerNorm and RMSNorm after a product, where the sum that they normalise is an output, too: of a pre-norm block. Of a
// block between two norms the product is normalised first.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t ResidualNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                         cudaStream_t stream) {
  using Rms = norms::WithTotal<norms::RmsNorm>;
  const bool rms = a.norm == NormKind::kRmsNorm;
  if (a.product_gamma != nullptr) {
    return rms ? LaunchNorm<norms::WithProductNorm<Rms>>(kernel, a, device, stream) : cudaErrorInvalidConfiguration;
  }
  return rms ? LaunchNorm<Rms>(kernel, a, device, stream)
             : LaunchNorm<norms::WithTotal<norms::LayerNorm>>(kernel, a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t ResidualNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
