// The gate's kernel in the emulator: every activation and type, random sizes.
#include <gtest/gtest.h>

#include "emulator/gemm_problem.h"
#include "kernels/gate.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

constexpr Device kDevice = {0, 80, 4, 163 << 10};

template <class T>
void TestGate() {
  Random random(emulator::Seed());
  emulator::Comparison comparison(emulator::ToleranceOf("FusedGatedGemm", emulator::kDtype<T>));
  for (int i = 0; i < 40; ++i) {
    const int64_t rows = random.Between(1, 60);
    const int64_t columns = random.OneIn(2) ? random.Between(1, 90) : random.Between(1, 90) * 8;
    const auto activation = static_cast<Activation>(i % 6);
    emulator::LateArray<T> product(2 * rows * columns), bias(2 * columns);
    product.Fill(&random, 1), bias.Fill(&random, 0.5);
    DeviceArray<T> y(rows * columns);
    DeviceArray<int32_t> row_count(1);
    const bool packed = random.OneIn(2), biased = random.OneIn(2), constant = random.OneIn(2);
    row_count[0] = static_cast<int32_t>(packed ? random.Between(0, rows) : rows);
    GateArguments<T> a = {
        product.array.data(), biased ? bias.array.data() : nullptr, y.data(), rows, columns, activation, constant, {}};
    if (packed) a.packed = {row_count.data(), random.Between(1, rows)};
    SCOPED_TRACE(testing::Message() << row_count[0] << " of " << rows << " x " << columns << ", " << i % 6);
    emulator::TheSettings().seed = random.Seed();
    if (constant) bias.Appear();
    emulator::TheSettings().dependencies_end = [&] { product.Appear(), bias.Appear(); };
    const cudaError_t error = Gate(a, kDevice, nullptr);
    emulator::TheSettings().dependencies_end = nullptr;
    ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const double found = ToFloat(y[row * columns + column]);
        if (row >= row_count[0]) {
          EXPECT_TRUE(std::isnan(found)) << "written behind the last real row";
          continue;
        }
        const auto factor = [&](int64_t at) { return product[2 * row * columns + at] + (biased ? bias[at] : 0.0); };
        comparison.Add(found, Activated(activation, factor(column)) * factor(columns + column));
      }
    }
  }
  EXPECT_LE(comparison.worst(), 1);
  std::printf("40 problems, the worst error is %.2f of what is allowed\n", comparison.worst());
}

TEST(EmulatedGate, Float32) { TestGate<float>(); }
TEST(EmulatedGate, Float16) { TestGate<__half>(); }
TEST(EmulatedGate, Bfloat16) { TestGate<__nv_bfloat16>(); }

}  // namespace
}  // namespace bertfuse::kernels
