// Cosines and sines of RoPE's angles.
#ifndef BERTFUSE_KERNELS_ROTARY_TABLES_H_
#define BERTFUSE_KERNELS_ROTARY_TABLES_H_

#include "kernels/launch.h"

namespace bertfuse::kernels {

// cos and sin [places, pairs]: scaling times cosine and sine of place * frequency, or place / frequency, as float32.
template <class T>
struct RotaryTablesArguments {
  const float* frequencies;  // [pairs]
  T* cos;
  T* sin;
  int64_t places, pairs;
  float scaling;
  bool divides;
  bool frequencies_are_constant;  // no kernel before this one writes them
};

template <class T>
cudaError_t RotaryTables(const RotaryTablesArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ROTARY_TABLES_H_
