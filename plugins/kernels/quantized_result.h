// Where a kernel writes its rows in 8 bits: what QuantizeRows() gives of them as they are rounded to their type. A norm
// does so beside the rows themselves, a product and attention in place of them.
#ifndef BERTFUSE_KERNELS_QUANTIZED_RESULT_H_
#define BERTFUSE_KERNELS_QUANTIZED_RESULT_H_

#include <cstdint>

namespace bertfuse::kernels {

struct QuantizedResult {
  void* rows = nullptr;           // [rows, columns]; null: nowhere
  float* scales = nullptr;        // [rows]
  const float* smooth = nullptr;  // [columns], of QuantizeRowsArguments; may be null
  bool floats = false;            // e4m3, not integers
  // One for all rows, by whose inverse numbers are multiplied; of what has no whole rows, a product and attention,
  // always.
  const float* scale = nullptr;
  const int8_t* zero = nullptr;  // beside it, of integers: what 0 becomes; null: 0
  bool alone = false;            // a norm whose residual is a QuantizedResidual does not write the rows themselves
};

// A residual that was written so, as integers: numbers times their row's scale and their column's factor.
struct QuantizedResidual {
  const int8_t* rows = nullptr;   // [rows, columns]; null: there is none
  const float* scales = nullptr;  // [rows]
  const float* factor = nullptr;  // [columns]; may be null
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_QUANTIZED_RESULT_H_
