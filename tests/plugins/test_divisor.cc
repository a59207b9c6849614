// Division by a multiplication: every quotient is that of the processor's own division.
#include <gtest/gtest.h>

#include <climits>
#include <random>

#include "kernels/divisor.h"

namespace bertfuse::kernels {
namespace {

TEST(Divisor, DividesAsTheProcessorDoes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto number = [&] { return static_cast<int>(random() >> 1 >> random() % 31); };
  for (int i = 0; i < 20000; ++i) {
    const int d = i < 1000 ? i + 1 : i < 1031 ? static_cast<int>((1u << (i - 1000)) - (i > 1001)) : number() | 1;
    const Divisor divisor(d);
    for (int n : {0, 1, d - 1, d, INT_MAX / d * d, INT_MAX / d * d - 1, INT_MAX, number(), number()}) {
      ASSERT_EQ(divisor.Divide(n), n / d) << n << " / " << d;
    }
    if (d < INT_MAX) {
      ASSERT_EQ(divisor.Divide(d + 1), (d + 1) / d) << d;
    }
  }
}

}  // namespace
}  // namespace bertfuse::kernels
