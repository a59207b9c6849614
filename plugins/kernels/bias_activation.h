#ifndef BERTFUSE_KERNELS_BIAS_ACTIVATION_H_
#define BERTFUSE_KERNELS_BIAS_ACTIVATION_H_

#include "core/activation.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// y[rows, columns] = activation(y + bias), in place, after a product that has no epilogue for it.
template <class T>
struct BiasActivationArguments {
  T* y;
  const T* bias;  // may be null
  int64_t rows, columns;
  Activation activation;
  bool bias_is_constant;  // no kernel that may still be running writes it, so it is read before these have ended
  PackedRows packed;      // of the rows; nothing is written from *row_count on
};

// cudaErrorInvalidConfiguration where the activation has no kernel.
template <class T>
cudaError_t BiasActivation(const BiasActivationArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_BIAS_ACTIVATION_H_
