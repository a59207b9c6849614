// In place of CUTLASS's header: the class of it that kernels/sm90 takes.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_CUTLASS_FAST_MATH_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_CUTLASS_FAST_MATH_H_

namespace cutlass {

class FastDivmod {
 public:
  FastDivmod() = default;
  explicit FastDivmod(int divisor) : divisor_(divisor) {}
  void operator()(int& quotient, int& remainder, int dividend) const {
    quotient = dividend / divisor_, remainder = dividend % divisor_;
  }

 private:
  int divisor_ = 1;
};

}  // namespace cutlass
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_CUTLASS_FAST_MATH_H_
