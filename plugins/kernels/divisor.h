// Division by a number that the host knows, as a multiplication: by any other it takes a GPU 30 instructions, which a
// short kernel has to wait for before its first load.
#ifndef BERTFUSE_KERNELS_DIVISOR_H_
#define BERTFUSE_KERNELS_DIVISOR_H_

#include <cstdint>

namespace bertfuse::kernels {

// Of integers from 0 to 2^31 - 1. With 2^(l - 1) < d <= 2^l and m = ceil(2^(31 + l) / d), which is below 2^32, n / d is
// n * m / 2^(31 + l), rounded down (Granlund and Montgomery, Division by Invariant Integers using Multiplication,
// 1994).
class Divisor {
 public:
  Divisor() = default;
  // From 1 on.
  explicit Divisor(int divisor) : divisor_(divisor) {
    int bits = 0;
    while (int64_t{1} << bits < divisor) ++bits;
    const uint64_t power = uint64_t{1} << (31 + bits), d = static_cast<uint64_t>(divisor);
    multiplier_ = static_cast<uint32_t>((power + d - 1) / d);
    shift_ = bits - 1;
  }

  constexpr int Divide(int n) const {
    const auto high = static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(n)} * multiplier_ >> 32);
    return divisor_ == 1 ? n : static_cast<int>(high >> shift_);
  }

 private:
  int divisor_ = 1;
  uint32_t multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_DIVISOR_H_
