// Norms after a product, where the next product reads their rows in 8 bits: they are written so beside themselves.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t QuantizingLayerNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                                cudaStream_t stream) {
  return LaunchNorm<norms::WithQuantized<norms::LayerNorm>>(kernel, a, device, stream);
}

template <class T>
cudaError_t QuantizingResidualNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                                   cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    const auto launch = [&](auto norm) {
      return LaunchNorm<norms::WithQuantized<norms::WithTotal<decltype(norm)>>>(kernel, a, device, stream);
    };
    return a.norm == NormKind::kRmsNorm ? launch(norms::RmsNorm()) : launch(norms::LayerNorm());
  }
  return cudaErrorInvalidConfiguration;
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                                       \
  template cudaError_t QuantizingLayerNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&,    \
                                           cudaStream_t);                                                      \
  template cudaError_t QuantizingResidualNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, \
                                              cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
