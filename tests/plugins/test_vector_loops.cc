// The inner loops of this machine's widest instruction set; BERTFUSE_CPU_ISA=baseline or avx2 runs the others.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/vector_loops.h"

namespace bertfuse::cpu {
namespace {

double ExactGelu(double x, bool tanh) {
  if (tanh) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

TEST(Gelu, WithinAFewRoundingsEverywhere) {
  std::vector<float> x;
  for (int i = -120000; i <= 120000; ++i) x.push_back(static_cast<float>(i) * 1e-4f);
  const std::vector<float> zeros(x.size());
  for (bool tanh : {false, true}) {
    const Activation gelu = tanh ? Activation::kGeluTanh : Activation::kGeluErf;
    std::vector<float> y = x;
    Loops().activate(y.data(), zeros.data(), static_cast<int64_t>(y.size()), gelu);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = ExactGelu(x[i], tanh);
      worst = std::max(worst, std::fabs(y[i] - expected) / (1 + std::fabs(expected)));
    }
    EXPECT_LT(worst, 3e-7) << (tanh ? "tanh" : "erf");
  }
}

TEST(Gelu, ExtremesAndNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  for (bool tanh : {false, true}) {
    const Activation gelu = tanh ? Activation::kGeluTanh : Activation::kGeluErf;
    for (int64_t n : {1, 3, 8, 16, 31}) {
      std::vector<float> y(static_cast<size_t>(n), 1e30f), zeros(static_cast<size_t>(n));
      Loops().activate(y.data(), zeros.data(), n, gelu);
      for (float value : y) EXPECT_EQ(value, 1e30f);
      for (float& value : y) value = -1e30f;
      Loops().activate(y.data(), zeros.data(), n, gelu);
      for (float value : y) EXPECT_EQ(value, 0.0f);
      for (float& value : y) value = std::nanf("");
      Loops().activate(y.data(), zeros.data(), n, gelu);
      for (float value : y) EXPECT_TRUE(std::isnan(value));
      for (float& value : y) value = inf;
      Loops().activate(y.data(), zeros.data(), n, gelu);
      for (float value : y) EXPECT_EQ(value, inf);
      for (float& value : y) value = -inf;  // times 0, as in the op's body
      Loops().activate(y.data(), zeros.data(), n, gelu);
      for (float value : y) EXPECT_TRUE(std::isnan(value));
      for (float& value : y) value = -50.0f;
      Loops().activate(y.data(), zeros.data(), n, gelu);
      for (float value : y) EXPECT_EQ(value, 0.0f);
    }
  }
}

struct Product {
  int64_t rows, columns, k, stride;
  std::vector<float> x, weight;

  Product(std::mt19937& random, int64_t rows, int64_t columns, int64_t k)
      : rows(rows), columns(columns), k(k), stride(columns + static_cast<int64_t>(random() % 3)) {
    std::uniform_real_distribution<float> value(-1, 1);
    for (int64_t i = 0; i < rows * k; ++i) x.push_back(value(random));
    for (int64_t i = 0; i < columns * k; ++i) weight.push_back(value(random));
  }

  // Of `count` rows from `row` on; what lies between the columns and the stride keeps its 7.
  std::vector<float> Run(decltype(VectorLoops::gemm) multiply, int64_t row, int64_t count) const {
    std::vector<float> y(static_cast<size_t>(count * stride), 7.0f);
    multiply(x.data() + row * k, weight.data(), y.data(), count, columns, k, stride);
    return y;
  }
};

// Of at most so many rows and columns, by tiles of all sizes.
void CheckProducts(decltype(VectorLoops::gemm) multiply, int64_t max_rows, int64_t max_columns) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const int64_t depths[] = {0, 1, 7, 16, 33, 96, 255, 257, 767, 768, 769, 1536, 1553, 2305};
  for (int64_t k : depths) {
    for (int times = 0; times < 4; ++times) {
      const auto below = [&](int64_t most) { return 1 + static_cast<int64_t>(random()) % most; };
      const Product p(random, below(max_rows), below(max_columns), k);
      const std::vector<float> y = p.Run(multiply, 0, p.rows);
      for (int64_t i = 0; i < p.rows; ++i) {
        const std::vector<float> alone = p.Run(multiply, i, 1);
        for (int64_t j = 0; j < p.stride; ++j) {
          const float got = y[static_cast<size_t>(i * p.stride + j)];
          EXPECT_EQ(got, alone[static_cast<size_t>(j)]) << p.rows << "x" << p.columns << "x" << k;
          double want = 0, size = 0;
          if (j >= p.columns) want = 7;
          for (int64_t at = 0; at < k && j < p.columns; ++at) {
            const double term =
                double(p.x[static_cast<size_t>(i * k + at)]) * p.weight[static_cast<size_t>(j * k + at)];
            want += term;
            size += std::fabs(term);
          }
          // k roundings in sequence would be 6e-8 k of `size`; in lanes they are k / 4 at most, and far fewer than the
          // 256 of a panel add up to their bound.
          EXPECT_NEAR(got, want, 6e-8 * size * (8 + double(k) / 4)) << p.rows << "x" << p.columns << "x" << k;
        }
      }
    }
  }
}

TEST(Gemm, AnySizeAgreesWithDoubleAndARowDoesNotDependOnTheOthers) { CheckProducts(Loops().gemm, 20, 23); }

TEST(Gemm, PanelsOfAnySizeAgreeWithDoubleAndARowDoesNotDependOnTheOthers) {
  CheckProducts(Loops().gemm_panels, 30, 70);
  CheckProducts(Loops().gemm_panels, 3, 420);  // several chunks of columns
}

TEST(Norm, EveryLengthAgreesWithDouble) {
  for (int64_t n = 1; n <= 70; ++n) {
    for (const bool rms : {false, true}) {
      const bool shifts = n % 2 == 1, adds = n % 3 != 0;
      const float offset = n % 5 == 0 ? 0.0f : 0.5f;  // of RMSNorms alone
      std::vector<float> y(static_cast<size_t>(n)), bias(y), residual(y), gamma(y), beta(y), total(y);
      double mean = 0, variance = 0;
      std::vector<double> sum(static_cast<size_t>(n));
      for (size_t i = 0; i < sum.size(); ++i) {
        const float at = static_cast<float>(i);
        y[i] = (rms ? 0 : 100) + std::sin(at);  // a mean far from zero: what E[x²] - E[x]² fails at
        bias[i] = std::cos(at * 3);
        residual[i] = std::sin(at * 5);
        gamma[i] = 1 + 0.1f * at;
        beta[i] = at;
        sum[i] = double(y[i]) + (adds ? double(bias[i]) + residual[i] : 0);
        mean += rms ? 0 : sum[i] / double(n);
      }
      for (double value : sum) variance += (value - mean) * (value - mean) / double(n);
      Loops().norm({y.data(), adds ? bias.data() : nullptr, adds ? residual.data() : nullptr, gamma.data(),
                    shifts ? beta.data() : nullptr, total.data(), n, 1e-2f, rms, nullptr, offset});
      for (size_t i = 0; i < sum.size(); ++i) {
        const double factor = double(gamma[i]) + (rms ? offset : 0.0f);
        const double expected = (sum[i] - mean) / std::sqrt(variance + 1e-2) * factor + (shifts ? double(beta[i]) : 0);
        EXPECT_NEAR(y[i], expected, 2e-4 * (1 + std::fabs(expected))) << n << " " << i << " " << rms;
        EXPECT_NEAR(total[i], sum[i], 1e-6 * (1 + std::fabs(sum[i]))) << n << " " << i << " " << rms;
      }
    }
  }
}

float HalfValue(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nanf("") : static_cast<float>(sign) * INFINITY;
  return static_cast<float>(sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24)));
}

TEST(Conversion, EveryHalfRoundTrips) {
  std::vector<uint16_t> halves(65536), back(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> values(halves.size());
  // One at a time takes the scalar path, all at once the vector path: both have to be right.
  for (int64_t step : {int64_t{1}, int64_t{65536}}) {
    for (int64_t i = 0; i < 65536; i += step) {
      Loops().float16_to_float(&halves[i], &values[i], step);
      Loops().float_to_float16(&values[i], &back[i], step);
    }
    for (size_t i = 0; i < halves.size(); ++i) {
      const float expected = HalfValue(halves[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(values[i])) << i;
        EXPECT_TRUE(std::isnan(HalfValue(back[i]))) << i;
      } else {
        EXPECT_EQ(values[i], expected) << i;
        EXPECT_EQ(back[i], halves[i]) << i;
      }
    }
  }
}

TEST(Conversion, RoundsToNearestEven) {
  struct Pair {
    float from;
    float half, bfloat;
  };
  const Pair pairs[] = {
      {1.0f + 1.0f / 2048, 1.0f, 1.0f},                      // a tie goes to the even one
      {1.0f + 3.0f / 2048, 1.0f + 4.0f / 2048, 1.0f},        // and up where that is even
      {65519.0f, 65504.0f, 65536.0f},                        // the largest that is not infinite in float16
      {65520.0f, INFINITY, 65536.0f},                        //
      {std::ldexp(1.0f, -25), 0.0f, std::ldexp(1.0f, -25)},  // half of the smallest subnormal
      {std::ldexp(1.5f, -25), std::ldexp(1.0f, -24), std::ldexp(1.5f, -25)},
      {-3.3895314e38f, -INFINITY, -3.3895314e38f},
  };
  for (const Pair& pair : pairs) {
    // Eight copies and one more, so that vector and scalar paths both see it.
    const std::vector<float> in(9, pair.from);
    std::vector<uint16_t> bits(9);
    std::vector<float> out(9);
    Loops().float_to_float16(in.data(), bits.data(), 9);
    Loops().float16_to_float(bits.data(), out.data(), 9);
    for (float value : out) EXPECT_EQ(value, pair.half) << pair.from;
    Loops().float_to_bfloat16(in.data(), bits.data(), 9);
    Loops().bfloat16_to_float(bits.data(), out.data(), 9);
    for (float value : out) EXPECT_EQ(value, pair.bfloat) << pair.from;
  }
}

}  // namespace
}  // namespace bertfuse::cpu
