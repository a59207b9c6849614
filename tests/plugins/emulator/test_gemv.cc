// Products of a few rows by kernels/gemv, in the emulator.
#include <gtest/gtest.h>

#include "emulator/gemm_problem.h"
#include "kernels/gemv/gemm.h"

namespace bertfuse::kernels {
namespace {

template <class T>
void TestGemv() {
  emulator::Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < 12; ++i) {
    const int64_t m = random.Between(1, 8), n = random.Between(1, 150), k = random.Between(1, 300);
    GemmProblem<T> problem(&random, m, n, k, i % 3 == 0);
    const auto& a = problem.arguments;
    emulator::Settings& settings = emulator::TheSettings();
    settings.compute_capability = 90, settings.shared_bytes = 227 << 10, settings.seed = random.Seed();
    const Device device = {1, 90, 1, 227 << 10};
    SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k);
    problem.Prepare();
    const cudaError_t error = Gemv(a, device, nullptr);
    settings.dependencies_end = nullptr;
    ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
    EXPECT_FALSE(problem.wrote_early());
    const std::vector<double> product = problem.Product();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmGelu", emulator::kDtype<T>));
    for (int64_t j = 0; j < problem.rows() * n; ++j) {
      comparison.Add(ToFloat(a.y[j]), problem.AfterActivation(product[j], j % n));
    }
    EXPECT_LE(comparison.worst(), 1);
    worst = std::max(worst, comparison.worst());
  }
  std::printf("12 problems, the worst error is %.2f of what is allowed\n", worst);
}

TEST(EmulatedGemv, Float16) { TestGemv<__half>(); }
TEST(EmulatedGemv, Bfloat16) { TestGemv<__nv_bfloat16>(); }

}  // namespace
}  // namespace bertfuse::kernels
