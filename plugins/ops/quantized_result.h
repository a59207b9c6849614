// Results in 8 bits: where a call wants them, and a kernel of its own that makes them of results in the op's type.
#ifndef BERTFUSE_OPS_QUANTIZED_RESULT_H_
#define BERTFUSE_OPS_QUANTIZED_RESULT_H_

#include "kernels/quantize_rows.h"
#include "kernels/quantized_result.h"
#include "ops/call.h"

namespace bertfuse::cuda {

// From the outputs y_quantized and y_scale, and the inputs y_smooth, y_tensor_scale and y_zero_point (read beside
// y_tensor_scale alone), of which each may be null; with no rows where the call does not want them. Throws
// INVALID_ARGUMENT where y_smooth is not one row.
inline kernels::QuantizedResult QuantizedResultOf(const char* op, const bertfuse_tensor* rows,
                                                  const bertfuse_tensor* scales, const bertfuse_tensor* smooth,
                                                  const bertfuse_tensor* scale, const bertfuse_tensor* zero_point) {
  if (rows == nullptr) return {};
  const auto floats = [](const bertfuse_tensor* t) { return t == nullptr ? nullptr : Data<const float>(*t); };
  if (floats(smooth) != nullptr && smooth->shape[0] != 1) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'y_smooth' has %lld rows, expected 1", op,
         static_cast<long long>(smooth->shape[0]));
  }
  const bool moved = floats(scale) != nullptr && rows->dtype == BERTFUSE_INT8 && zero_point != nullptr;
  return {rows->data,     Data<float>(*scales),
          floats(smooth), rows->dtype == BERTFUSE_FLOAT8E4M3FN,
          floats(scale),  moved ? Data<const int8_t>(*zero_point) : nullptr};
}

// y[rows, columns] in 8 bits.
template <class T>
void QuantizeResult(const bertfuse_call& call, const char* op, const kernels::QuantizedResult& to, const T* y,
                    int64_t rows, int64_t columns, const kernels::PackedRows& packed) {
  const auto quantize = [&](auto quantized) {
    using Quantized = decltype(quantized);
    const kernels::QuantizeRowsArguments<T, Quantized> a = {
        y, to.smooth, to.scale, static_cast<Quantized*>(to.rows), to.scales, rows, columns, packed, true, to.zero};
    CheckCuda(kernels::QuantizeRows(a, DeviceOf(call), StreamOf(call)), op);
  };
  if (to.floats) {
    quantize(__nv_fp8_e4m3());
  } else {
    quantize(int8_t());
  }
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_QUANTIZED_RESULT_H_
