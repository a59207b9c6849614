// LayerNorm after a product, whose residual comes as the integers that another norm has written.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t NormOfQuantizedResidual(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                                    cudaStream_t stream) {
  const bool is_plain =
      a.total == nullptr && a.norm == NormKind::kLayerNorm && a.product_gamma == nullptr && a.beta != nullptr;
  if constexpr (sizeof(T) == 2) {
    using norms::LayerNorm, norms::WithQuantized, norms::WithQuantizedResidual;
    if (is_plain && a.residual == nullptr) {
      return a.quantized.rows == nullptr
                 ? LaunchNorm<WithQuantizedResidual<LayerNorm>>(kernel, a, device, stream)
                 : LaunchNorm<WithQuantizedResidual<WithQuantized<LayerNorm>>>(kernel, a, device, stream);
    }
  }
  return cudaErrorInvalidConfiguration;
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                                        \
  template cudaError_t NormOfQuantizedResidual(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, \
                                               cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
