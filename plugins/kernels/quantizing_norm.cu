// LayerNorm after a product, where the next product reads its rows in 8 bits: they are written so beside themselves.
#include "kernels/layer_norm.cuh"

namespace bertfuse::kernels {

template <class T>
cudaError_t QuantizingLayerNorm(LayerNormKernel kernel, const LayerNormArguments<T>& a, const Device& device,
                                cudaStream_t stream) {
  return LaunchNorm<norms::WithQuantized<norms::LayerNorm>>(kernel, a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                                    \
  template cudaError_t QuantizingLayerNorm(LayerNormKernel, const LayerNormArguments<TYPE>&, const Device&, \
                                           cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
