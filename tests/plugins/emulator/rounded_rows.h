// Rows in 8 bits by the rule of graph_rewrite/dialect/quantized.py.
#ifndef BERTFUSE_TESTS_EMULATOR_ROUNDED_ROWS_H_
#define BERTFUSE_TESTS_EMULATOR_ROUNDED_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace bertfuse::kernels {

template <class X>
constexpr bool kIsInteger = std::is_same_v<X, int8_t>;

// A row of x as the rule rounds it.
struct Row {
  std::vector<double> numbers;
  double scale;
};

// To the nearest of 8 bits, ties to even, what is beyond the ends to the end.
template <class X>
double Rounded(float x, float least) {
  if (kIsInteger<X>) {
    const float whole = std::nearbyint(x);
    return std::isnan(whole) ? 0 : std::clamp(whole, least, 127.0f);
  }
  int exponent = 0;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 4, -9));
  return std::isnan(x)   ? NAN
         : std::isinf(x) ? std::copysign(448, x)
                         : std::clamp(std::nearbyint(x / step) * step, -448.0, 448.0);
}

template <class X>
Row RoundedRow(std::vector<float> x, const float* smooth, const float* scale) {
  constexpr float kLargest = kIsInteger<X> ? 127.0f : 448.0f;
  float largest = 0, total = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (smooth != nullptr) x[i] *= smooth[i];
    if (!(std::fabs(x[i]) <= largest)) largest = std::fabs(x[i]);
    total += std::fabs(x[i]);
  }
  const float bounded = std::isnan(largest) || largest > 1e-30f ? largest : 1e-30f, inverse = kLargest / bounded;
  Row row = {{}, scale != nullptr ? *scale : bounded / kLargest + (total - total)};
  for (float value : x) {
    row.numbers.push_back(
        Rounded<X>(scale != nullptr ? value / *scale : value * inverse, scale != nullptr ? -128 : -127));
  }
  return row;
}

// What 14 bits of a sum may cost, where tensor cores sum up `stage_k` products: each step of 32 cuts off what is added,
// 13 bits behind the largest of it. Errors of either sign grow as the root of the steps does; what the sum itself loses
// is always of one.
template <class ProductAt>
double CutOff(int64_t count, int64_t stage_k, ProductAt&& product_at) {
  double bound = 0, sum = 0, largest = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double product = product_at(k);
    sum = k % stage_k == 0 ? product : sum + product;
    largest = std::max(k % stage_k == 0 ? 0 : largest, std::max(std::abs(sum), std::abs(product)));
    if ((k + 1) % stage_k != 0 && k + 1 < count) continue;
    const double steps = std::ceil(static_cast<double>(std::min(stage_k, count)) / 32);
    bound += (steps + 8 * std::sqrt(steps)) * largest / 4096;
  }
  return bound;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_TESTS_EMULATOR_ROUNDED_ROWS_H_
