// Where a norm writes its rows in 8 bits, beside themselves: what QuantizeRows() gives of them.
#ifndef BERTFUSE_KERNELS_QUANTIZED_RESULT_H_
#define BERTFUSE_KERNELS_QUANTIZED_RESULT_H_

#include <cstdint>

namespace bertfuse::kernels {

struct QuantizedResult {
  void* rows = nullptr;           // [rows, columns]; null: nowhere
  float* scales = nullptr;        // [rows]
  const float* smooth = nullptr;  // [columns], of QuantizeRowsArguments; may be null
  bool floats = false;            // e4m3, not integers
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_QUANTIZED_RESULT_H_
