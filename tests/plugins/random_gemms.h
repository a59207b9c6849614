// Matrix products of the tests of their tactics.
#ifndef BERTFUSE_TESTS_PLUGINS_RANDOM_GEMMS_H_
#define BERTFUSE_TESTS_PLUGINS_RANDOM_GEMMS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

inline constexpr int kH200 = 132;  // multiprocessors

// A Hopper GPU with so many multiprocessors; other numbers as an H200 has them.
inline const kernels::Device& Hopper(int multiprocessors = kH200) {
  static std::map<int, kernels::Device> devices;
  return devices
      .try_emplace(multiprocessors, kernels::Device{-1, 90, multiprocessors, 227 << 10, 228 << 10, 50 << 20, 1980,
                                                    36.4 * multiprocessors})
      .first->second;
}

inline GemmProblem Bert(int64_t m, int64_t n, int64_t k, bool layer_norm, int multiprocessors = kH200) {
  return {m, n, k, layer_norm, {Backend::kSm90, Backend::kMma, Backend::kSimt}, &Hopper(multiprocessors)};
}

inline std::string Name(const GemmProblem& problem) {
  return std::to_string(problem.m) + "x" + std::to_string(problem.n) + "x" + std::to_string(problem.k) +
         (problem.layer_norm ? " with LayerNorm on " : " on ") + std::to_string(problem.device->multiprocessors);
}

// The name without LayerNorm's kernel, which the number of rows alone chooses.
inline std::string ProductName(const GemmTactic& tactic) {
  return Describe(GemmTactic{tactic.backend, tactic.form, tactic.tile, {}});
}

inline kernels::BackendSet Portable(bool tensor_cores) {
  return tensor_cores ? kernels::BackendSet{Backend::kMma, Backend::kSimt} : kernels::BackendSet{Backend::kSimt};
}

template <class Visit>
void ForRandomProblems(Visit&& visit) {
  std::mt19937 random(1);
  const auto size = [&](int64_t most, int64_t multiple) {
    const double share = std::uniform_real_distribution<>(0, 1)(random);
    return std::max<int64_t>(static_cast<int64_t>(std::pow(static_cast<double>(most), share)) / multiple, 1) * multiple;
  };
  for (int i = 0; i < 3000; ++i) {
    const int multiprocessors[] = {kH200, 114, 78, 16, 1};
    const int64_t m = size(70000, 1), n = size(9000, i % 3 == 0 ? 8 : 96), k = size(9000, i % 2 == 0 ? 8 : 64);
    const GemmProblem problem = Bert(m, n, k, i % 4 != 0, multiprocessors[i % 5]);
    SCOPED_TRACE(Name(problem));
    visit(problem);
  }
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_TESTS_PLUGINS_RANDOM_GEMMS_H_
