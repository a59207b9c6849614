// FusedRMSNorm's kernels in the emulator, against float64: aligned rows and others, padded and packed ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "emulator/late_array.h"
#include "emulator/random_data.h"
#include "kernels/rms_norm.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::LateArray;
using emulator::Random;

template <class T>
void TestRows() {
  Random random(emulator::Seed());
  double worst = 0;
  constexpr int kProblems = 24;
  for (int i = 0; i < kProblems; ++i) {
    // 8 columns at a time for a warp, 4 for a block, or one; some rows have more than a chunk for each thread.
    const int64_t kind = random.Between(0, 3);
    const int64_t columns = kind == 0   ? 8 * random.Between(1, 128)
                            : kind == 1 ? 4 * random.Between(1, 300)
                            : kind == 2 ? random.Between(1, 300)
                                        : random.Between(2040, 2100);
    const int64_t rows = random.Between(1, kind == 3 ? 8 : 40);
    const size_t offset = random.OneIn(3) ? random.Between(1, 8) : 0;
    const Device device = {0, random.OneIn(2) ? 90 : 80, static_cast<int>(random.Between(1, 8)), 163 << 10};
    const bool packed = random.OneIn(2);
    const int32_t real = static_cast<int32_t>(packed ? random.Between(0, rows) : rows);
    LateArray<T> x(rows * columns);
    LateArray<int32_t> count(1);
    DeviceArray<T> gamma(columns, random.OneIn(2) ? offset : 0), y(rows * columns, random.OneIn(2) ? offset : 0);
    x.Fill(&random, 1), random.Fill(gamma, 0.2);
    count.values()[0] = real;
    RmsNormArguments<T> a = {};
    a.x = x.array.data(), a.gamma = gamma.data(), a.y = y.data();
    a.rows = rows, a.columns = columns, a.epsilon = 1e-5f, a.gamma_offset = random.OneIn(2) ? 1.0f : 0.0f;
    a.deterministic_rows = random.OneIn(2);
    if (packed) a.packed = {count.array.data(), random.Between(1, rows)};
    SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", " << real << " real, offset " << offset);
    emulator::TheSettings().seed = random.Seed();
    emulator::TheSettings().compute_capability = device.compute_capability;
    emulator::TheSettings().shared_bytes = device.shared_bytes;
    // Neither the rows nor, where this is the first kernel to read it, how many there are may be there before.
    const bool overlaps = device.compute_capability >= 90;
    bool wrote_early = false;
    if (!overlaps) x.Appear(), count.Appear();
    emulator::TheSettings().dependencies_end = [&] {
      wrote_early = emulator::IsWritten(y);
      x.Appear(), count.Appear();
    };
    ASSERT_TRUE(RmsNormSupports(a));
    const cudaError_t error = RmsNorm(a, device, nullptr);
    emulator::TheSettings().dependencies_end = nullptr;
    ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
    EXPECT_FALSE(wrote_early) << "rows were written before the kernels before had ended";
    emulator::Comparison comparison(emulator::ToleranceOf("FusedRMSNorm", emulator::kDtype<T>));
    for (int64_t row = 0; row < rows; ++row) {
      double squares = 0;
      for (int64_t j = 0; j < columns; ++j) squares += x[row * columns + j] * x[row * columns + j];
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(columns) + a.epsilon);
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = row * columns + j;
        // Behind the real rows nothing is written.
        const double expected = row < real ? x[at] * inverse * (ToFloat(gamma[j]) + a.gamma_offset) : NAN;
        comparison.Add(ToFloat(y[at]), expected);
      }
    }
    EXPECT_LE(comparison.worst(), 1);
    worst = std::max(worst, comparison.worst());
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", kProblems, worst);
}

TEST(EmulatedRmsNorm, Float32) { TestRows<float>(); }
TEST(EmulatedRmsNorm, Float16) { TestRows<__half>(); }
TEST(EmulatedRmsNorm, Bfloat16) { TestRows<__nv_bfloat16>(); }

TEST(EmulatedRmsNorm, Limits) {
  constexpr Device kDevice = {0, 90, 1, 163 << 10};
  RmsNormArguments<__half> a = {};
  EXPECT_EQ(RmsNorm(a, kDevice, nullptr), cudaSuccess);  // no rows
  a.rows = 1, a.columns = 32768;
  EXPECT_TRUE(RmsNormSupports(a));
  a.columns = 32772;
  EXPECT_FALSE(RmsNormSupports(a));
  a.columns = 8191;
  EXPECT_TRUE(RmsNormSupports(a));
  a.columns = 8193;
  EXPECT_FALSE(RmsNormSupports(a));
  EXPECT_EQ(RmsNorm(a, kDevice, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace bertfuse::kernels
