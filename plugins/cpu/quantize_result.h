// A result in 8 bits, beside itself: what an op that has whole rows writes for the product that reads them.
#ifndef BERTFUSE_CPU_QUANTIZE_RESULT_H_
#define BERTFUSE_CPU_QUANTIZE_RESULT_H_

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/float8_gemm.h"

namespace bertfuse::cpu {

// A number that RoundedToFloat8() gave, as its bits.
inline uint8_t Float8Bits(float x) {
  const int sign = std::signbit(x) ? 128 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude != magnitude) return static_cast<uint8_t>(sign | 127);
  if (magnitude < 0.015625f) return static_cast<uint8_t>(sign | static_cast<int>(magnitude * 512.0f));
  const int exponent = std::ilogb(magnitude);
  return static_cast<uint8_t>(sign | (exponent + 7) << 3 | (static_cast<int>(std::ldexp(magnitude, 3 - exponent)) - 8));
}

// Rows of y by the rule of graph_rewrite/dialect/quantized.py, from y as it was rounded to its type. `Op` has the
// outputs y, y_quantized and y_scale and the inputs y_zero_point and y_smooth. `given`: one scale for all rows, beside
// which integers have a zero point; null: each has its own.
template <class Op>
void QuantizeResult(const bertfuse_call& call, int64_t rows, const float* given = nullptr) {
  if (call.num_outputs <= Op::Out::y_quantized) return;
  const bertfuse_tensor &y = call.outputs[Op::Out::y], &to = call.outputs[Op::Out::y_quantized],
                        &smooth = call.inputs[Op::In::y_smooth];
  if (smooth.dtype != BERTFUSE_ABSENT && smooth.shape[0] != 1) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'y_smooth' has %lld rows, expected 1", Op::kName,
         static_cast<long long>(smooth.shape[0]));
  }
  const int64_t columns = y.shape[y.rank - 1];
  const float* const factors = FloatData(smooth);
  auto* const scales = static_cast<float*>(call.outputs[Op::Out::y_scale].data);
  const bool integers = to.dtype == BERTFUSE_INT8;
  const float most = integers ? 127.0f : kLargestFloat8;
  const bool moved = integers && given != nullptr;
  const float inverse_given = given == nullptr ? 1.0f : 1.0f / *given;
  const float zero = moved ? *static_cast<const int8_t*>(call.inputs[Op::In::y_zero_point].data) : 0.0f;
  ParallelFor(call, rows, GrainFor(4 * columns), [&](int64_t begin, int64_t end) {
    constexpr int64_t kChunk = 256;
    float values[kChunk];
    for (int64_t row = begin; row < end; ++row) {
      const auto for_each = [&](auto&& visit) {
        for (int64_t first = 0; first < columns; first += kChunk) {
          const int64_t count = std::min(kChunk, columns - first), at = row * columns + first;
          ToFloat(y.dtype, ElementAt(y, at), values, count);
          for (int64_t i = 0; i < count; ++i) {
            visit(at + i, values[i] * (factors == nullptr ? inverse_given : factors[first + i] * inverse_given));
          }
        }
      };
      float largest = 0, total = 0;
      for_each([&](int64_t, float v) { largest = std::max(largest, std::fabs(v)), total += std::fabs(v); });
      const float bounded = std::max(largest, 1e-30f), inverse = given == nullptr ? most / bounded : 1.0f;
      for_each([&](int64_t at, float v) {
        if (integers) {
          const float whole = std::nearbyint(v * inverse) + zero;
          const float clamped = whole == whole ? std::min(std::max(whole, -128.0f), 127.0f) : zero;
          static_cast<int8_t*>(to.data)[at] = static_cast<int8_t>(clamped);
        } else {
          static_cast<uint8_t*>(to.data)[at] = Float8Bits(RoundedToFloat8(v * inverse));
        }
      });
      scales[row] = given == nullptr ? bounded / most + (total - total) : *given;
    }
  });
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_QUANTIZE_RESULT_H_
