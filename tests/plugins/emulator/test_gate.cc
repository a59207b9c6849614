// The gate's kernel in the emulator: every activation and type, random sizes; in 8 bits what QuantizeRows() makes of y.
#include <gtest/gtest.h>

#include <cstring>

#include "emulator/gemm_problem.h"
#include "kernels/gate.h"
#include "kernels/quantize_rows.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

constexpr Device kDevice = {0, 80, 4, 163 << 10};

// The same call again, with results in 8 bits in place of y, of which the other call had `y`.
template <class Quantized, class T>
void CheckInEightBits(Random& random, GateArguments<T> a, const DeviceArray<T>& y, const DeviceArray<int32_t>& count) {
  const int64_t all = a.rows * a.columns;
  DeviceArray<float> scale(1), smooth(a.columns), scales(a.rows), expected_scales(a.rows);
  DeviceArray<int8_t> zero(1);
  DeviceArray<Quantized> numbers(all), expected(all);
  DeviceArray<T> unwritten(all);
  scale[0] = static_cast<float>(random.Between(1, 40)) / 1000;
  zero[0] = static_cast<int8_t>(random.Between(-128, 127));
  for (float& factor : smooth) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
  const bool is_integer = std::is_same_v<Quantized, int8_t>, moved = is_integer && random.OneIn(2);
  const float* const factors = random.OneIn(2) ? smooth.data() : nullptr;
  const int8_t* const zero_point = moved ? zero.data() : nullptr;
  a.y = unwritten.data();
  a.quantized = {numbers.data(), scales.data(), factors, !is_integer, scale.data(), zero_point};
  ASSERT_EQ(Gate(a, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
  EXPECT_FALSE(emulator::IsWritten(unwritten));
  GateArguments<T> without = a;
  without.quantized.scale = nullptr;
  EXPECT_EQ(Gate(without, kDevice, nullptr), cudaErrorInvalidConfiguration);
  const QuantizeRowsArguments<T, Quantized> rows = {
      y.data(),  factors,  scale.data(), expected.data(), expected_scales.data(), a.rows,
      a.columns, a.packed, true,         zero_point};
  ASSERT_EQ(QuantizeRows(rows, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
  EXPECT_EQ(std::memcmp(numbers.data(), expected.data(), all), 0) << "other numbers";
  for (int64_t row = 0; row < count[0]; ++row) EXPECT_EQ(scales[row], scale[0]) << row;
}

template <class T>
void TestGate() {
  Random random(emulator::Seed());
  emulator::Comparison comparison(emulator::ToleranceOf("FusedGatedGemm", emulator::kDtype<T>));
  for (int i = 0; i < 40; ++i) {
    const int64_t rows = random.Between(1, 60);
    const int64_t columns = random.OneIn(2) ? random.Between(1, 90) : random.Between(1, 90) * 8;
    const auto activation = static_cast<Activation>(i % 5);
    emulator::LateArray<T> product(2 * rows * columns), bias(2 * columns);
    product.Fill(&random, 1), bias.Fill(&random, 0.5);
    DeviceArray<T> y(rows * columns);
    DeviceArray<int32_t> row_count(1);
    const bool packed = random.OneIn(2), biased = random.OneIn(2), constant = random.OneIn(2);
    row_count[0] = static_cast<int32_t>(packed ? random.Between(0, rows) : rows);
    GateArguments<T> a = {
        product.array.data(), biased ? bias.array.data() : nullptr, y.data(), rows, columns, activation, constant, {}};
    if (packed) a.packed = {row_count.data(), random.Between(1, rows)};
    SCOPED_TRACE(testing::Message() << row_count[0] << " of " << rows << " x " << columns << ", " << i % 5);
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
    if (i % 2 == 0) CheckInEightBits<int8_t>(random, a, y, row_count);
    if (i % 2 == 1) CheckInEightBits<__nv_fp8_e4m3>(random, a, y, row_count);
  }
  EXPECT_LE(comparison.worst(), 1);
  std::printf("40 problems, the worst error is %.2f of what is allowed\n", comparison.worst());
}

TEST(EmulatedGate, Float32) { TestGate<float>(); }
TEST(EmulatedGate, Float16) { TestGate<__half>(); }
TEST(EmulatedGate, Bfloat16) { TestGate<__nv_bfloat16>(); }

}  // namespace
}  // namespace bertfuse::kernels
