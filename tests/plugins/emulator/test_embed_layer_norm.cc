// EmbedLayerNorm in the emulator, against sums in float64: words of floats or of 8-bit integers, alone or with
// token types, with positions or without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "emulator/gemm_problem.h"
#include "emulator/random_data.h"
#include "kernels/embed_layer_norm.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

constexpr Device kDevice = {0, 89, 5, 163 << 10};

template <class T>
void TestEmbedding(bool quantized, bool placed) {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < 6; ++i) {
    // Of columns that 8 divides, 16-bit rows go to the kernel with a warp for each row.
    const int64_t words = random.Between(2, 50), rows = random.Between(1, 30);
    const int64_t columns = random.OneIn(2) ? 8 * random.Between(1, 40) : random.Between(8, 300);
    const int64_t types = random.OneIn(2) ? random.Between(1, 4) : 0;
    SCOPED_TRACE(testing::Message() << words << " words, " << types << " types, " << rows << " x " << columns);
    DeviceArray<int8_t> integers(words * columns);
    DeviceArray<float> scales(words);
    DeviceArray<T> floats(words * columns), positions(rows * columns), gamma(columns), beta(columns), y(rows * columns);
    DeviceArray<T> type_table(types * columns);
    DeviceArray<int64_t> ids(rows), type_ids(rows);
    for (int8_t& element : integers) element = static_cast<int8_t>(random.Between(-127, 127));
    random.Fill(scales, 0.02), random.Fill(floats, 1), random.Fill(positions, 1), random.Fill(type_table, 1);
    random.Fill(gamma, 1), random.Fill(beta, 1);
    for (int64_t& id : ids) id = random.Between(-words, words - 1);
    for (int64_t& id : type_ids) id = types == 0 ? 0 : random.Between(0, types - 1);
    const int64_t outside = random.OneIn(2) ? random.Between(0, rows - 1) : -1;
    if (outside >= 0) ids[outside] = words;
    EmbedLayerNormArguments<T, int64_t> a = {};
    a.ids = ids.data(), a.gamma = gamma.data(), a.beta = beta.data(), a.y = y.data();
    if (quantized) {
      a.word_integers = integers.data(), a.word_scales = scales.data();
    } else {
      a.word_table = floats.data();
    }
    if (types != 0) a.token_type_ids = type_ids.data(), a.token_type_table = type_table.data(), a.token_types = types;
    if (placed) a.position_table = positions.data(), a.positions = rows;
    a.rows = a.sequence = rows, a.columns = columns, a.words = words, a.epsilon = 1e-5f;
    a.deterministic_rows = random.OneIn(2);
    emulator::TheSettings().seed = random.Seed();
    emulator::TheSettings().compute_capability = kDevice.compute_capability;
    emulator::TheSettings().shared_bytes = kDevice.shared_bytes;
    ASSERT_EQ(EmbedLayerNorm(a, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    emulator::Comparison comparison(emulator::ToleranceOf("EmbedLayerNorm", emulator::kDtype<T>));
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t id = ids[row] < 0 ? ids[row] + words : ids[row];
      std::vector<double> values(columns, NAN);
      double mean = 0, squares = 0;
      for (int64_t j = 0; j < columns && id < words; ++j) {
        const int64_t at = id * columns + j;
        values[j] = quantized ? static_cast<double>(integers[at]) * scales[id] : ToFloat(floats[at]);
        values[j] += types != 0 ? ToFloat(type_table[type_ids[row] * columns + j]) : 0.0f;
        values[j] += placed ? ToFloat(positions[row * columns + j]) : 0.0f;
        mean += values[j] / static_cast<double>(columns);
      }
      for (double value : values) squares += (value - mean) * (value - mean) / static_cast<double>(columns);
      for (int64_t j = 0; j < columns; ++j) {
        const double normal = (values[j] - mean) / std::sqrt(squares + a.epsilon);
        comparison.Add(ToFloat(y[row * columns + j]), normal * ToFloat(gamma[j]) + ToFloat(beta[j]));
      }
    }
    EXPECT_LE(comparison.worst(), 1);
    worst = std::max(worst, comparison.worst());
  }
  std::printf("6 problems, the worst error is %.2f of what is allowed\n", worst);
}

TEST(EmulatedEmbedding, Float16) { TestEmbedding<__half>(false, true); }
TEST(EmulatedEmbedding, Float16WithoutPositions) { TestEmbedding<__half>(false, false); }
TEST(EmulatedEmbedding, Float32WithoutPositions) { TestEmbedding<float>(false, false); }
TEST(EmulatedEmbedding, Int8Float16) { TestEmbedding<__half>(true, true); }
TEST(EmulatedEmbedding, Int8Float32) { TestEmbedding<float>(true, true); }
TEST(EmulatedEmbedding, Int8Float16WithoutPositions) { TestEmbedding<__half>(true, false); }

}  // namespace
}  // namespace bertfuse::kernels
