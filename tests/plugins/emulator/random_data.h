// Random inputs, and results held against the project's table of tolerances.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_RANDOM_DATA_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_RANDOM_DATA_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

#include "emulator/device_array.h"
#include "emulator/machine.h"
#include "kernels/elements.cuh"

namespace emulator {

struct Tolerance {
  const char *op, *dtype;
  double rtol, atol;
};
#include "tolerances.generated.h"

inline Tolerance ToleranceOf(const std::string& op, const std::string& dtype) {
  for (const Tolerance& row : kTolerances) {
    if (op == row.op && dtype == row.dtype) return row;
  }
  ADD_FAILURE() << "no tolerance for " << op << " in " << dtype;
  return {};
}

// Of the test, printed; BERTFUSE_EMULATOR_SEED repeats one.
inline uint64_t Seed() {
  const char* given = std::getenv("BERTFUSE_EMULATOR_SEED");
  const uint64_t seed = given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
  std::printf("BERTFUSE_EMULATOR_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

template <class T>
constexpr const char* kDtype = sizeof(T) == 4              ? "float32"
                               : std::is_same_v<T, __half> ? "float16"
                                                           : "bfloat16";

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(engine_); }
  bool OneIn(int64_t n) { return Between(1, n) == 1; }
  uint64_t Seed() { return engine_(); }

  template <class T>
  void Fill(const DeviceArray<T>& array, double deviation) {
    std::normal_distribution<double> normal(0, deviation);
    for (T& element : array) element = bertfuse::kernels::FromFloat<T>(static_cast<float>(normal(engine_)));
  }

 private:
  std::mt19937_64 engine_;
};

// The worst error in parts of what is allowed.
class Comparison {
 public:
  explicit Comparison(const Tolerance& tolerance) : tolerance_(tolerance) {}
  // What is not finite must be the same. `bound`: an error that a right kernel may have on these data, if that is more.
  void Add(double found, double expected, double bound = 0) {
    if (!std::isfinite(expected)) {
      if (!(found == expected) && !(std::isnan(found) && std::isnan(expected))) worst_ = INFINITY;
      return;
    }
    const double allowed = std::max(tolerance_.atol + tolerance_.rtol * std::abs(expected), bound);
    const double share = std::abs(found - expected) / allowed;
    if (!(share <= worst_)) worst_ = std::isnan(share) ? INFINITY : share;
  }
  double worst() const { return worst_; }

 private:
  Tolerance tolerance_;
  double worst_ = 0;
};

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_RANDOM_DATA_H_
