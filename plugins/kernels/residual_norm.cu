// LayerNorm and RMSNorm after a product, where the sum that they normalise is an output, too: of a pre-norm block.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t ResidualNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                         cudaStream_t stream) {
  return a.norm == NormKind::kRmsNorm ? LaunchNorm<norms::WithTotal<norms::RmsNorm>>(kernel, a, device, stream)
                                      : LaunchNorm<norms::WithTotal<norms::LayerNorm>>(kernel, a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t ResidualNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
