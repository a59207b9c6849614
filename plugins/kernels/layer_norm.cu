// LayerNorm after a product whose sum nothing else reads: of a post-norm block.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t LayerNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                      cudaStream_t stream) {
  if (!CanQuantize(a)) return cudaErrorInvalidConfiguration;
  if (a.quantized_residual.rows != nullptr) return NormOfQuantizedResidual(kernel, a, device, stream);
  if (a.total != nullptr) {
    return a.quantized.rows == nullptr ? ResidualNorm(kernel, a, device, stream)
                                       : QuantizingResidualNorm(kernel, a, device, stream);
  }
  if (a.norm != NormKind::kLayerNorm || a.beta == nullptr || a.product_gamma != nullptr) {
    return cudaErrorInvalidConfiguration;
  }
  if (a.quantized.rows != nullptr) return QuantizingLayerNorm(kernel, a, device, stream);
  return LaunchNorm<norms::LayerNorm>(kernel, a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t LayerNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
