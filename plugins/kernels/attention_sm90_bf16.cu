#include "kernels/attention_sm90_launch.cuh"

namespace bertfuse::kernels {

template <>
cudaError_t AttentionSm90(const AttentionArguments<__nv_bfloat16>& arguments, const Device& device,
                          cudaStream_t stream) {
  return DispatchAttentionSm90(arguments, device, stream);
}

}  // namespace bertfuse::kernels
