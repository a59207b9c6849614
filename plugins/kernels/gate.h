#ifndef BERTFUSE_KERNELS_GATE_H_
#define BERTFUSE_KERNELS_GATE_H_

#include "core/activation.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"
#include "kernels/quantized_result.h"

namespace bertfuse::kernels {

// y[rows, columns] = activation(gate + its bias) * (up + its bias), after a product that has no epilogue for it.
template <class T>
struct GateArguments {
  const T* product;  // [rows, 2 columns]: a row's gate, then its up
  const T* bias;     // [2 columns], may be null
  T* y;
  int64_t rows, columns;
  Activation activation;
  bool bias_is_constant;  // no kernel that may still be running writes it, so it is read before these have ended
  PackedRows packed;      // of the rows; nothing is written from *row_count on
  QuantizedResult quantized = {};  // of one scale: in place of y, which is not written
};

// cudaErrorInvalidConfiguration where the activation has no kernel, or `quantized` no scale.
template <class T>
cudaError_t Gate(const GateArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GATE_H_
