// Rows of activations as 8-bit integers or floats, each with a scale: what a product of 8-bit operands reads.
#ifndef BERTFUSE_KERNELS_QUANTIZE_ROWS_H_
#define BERTFUSE_KERNELS_QUANTIZE_ROWS_H_

#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// The rule of graph_rewrite/dialect/quantized.py, in float32: x * smooth, where that is given; then either
// scale = max(|row|, 1e-30) / largest and round(x * (largest / max)), where a row whose magnitudes have no finite sum
// gets a scale of NaN; or, with `scale`, round(x / scale). `by_inverse` without `smooth` before:
// round(x * (smooth * (1 / scale))), of integers plus `zero`. `largest` is 127 of integers (with `scale` they go from
// -128 on) and 448 of floats, and what is beyond becomes it. Ties go to even. Of integers NaN becomes 0, `by_inverse`
// the least of them.
template <class T, class Quantized>
struct QuantizeRowsArguments {
  const T* x;            // [rows, columns]
  const float* smooth;   // [columns]; may be null
  const float* scale;    // one for all rows; null: each has its own
  Quantized* quantized;  // [rows, columns]
  float* row_scales;     // [rows]
  int64_t rows, columns;
  PackedRows packed;  // of the rows; nothing is written from *row_count on
  bool by_inverse = false;
  const int8_t* zero = nullptr;  // null: 0
};

template <class T, class Quantized>
cudaError_t QuantizeRows(const QuantizeRowsArguments<T, Quantized>& arguments, const Device& device,
                         cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_QUANTIZE_ROWS_H_
