#ifndef BERTFUSE_KERNELS_ADD_QKV_BIAS_H_
#define BERTFUSE_KERNELS_ADD_QKV_BIAS_H_

#include "kernels/launch.h"

namespace bertfuse::kernels {

// q, k, v[batch, heads, sequence, head_size]: the slices of qkv[batch, sequence, 3 * heads * head_size] + bias.
template <class T>
struct AddQkvBiasArguments {
  const T* qkv;
  const T* bias;
  T* out[3];
  int64_t batch, sequence, heads, head_size;
};

template <class T>
cudaError_t AddQkvBias(const AddQkvBiasArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ADD_QKV_BIAS_H_
