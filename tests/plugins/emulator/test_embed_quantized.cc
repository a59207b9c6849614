// EmbedLayerNorm with word embeddings of 8-bit integers, in the emulator, against sums in float64.
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
void TestEmbedding() {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < 6; ++i) {
    const int64_t words = random.Between(2, 50), columns = random.Between(8, 300), rows = random.Between(1, 30);
    SCOPED_TRACE(testing::Message() << words << " words, " << rows << " x " << columns);
    DeviceArray<int8_t> table(words * columns);
    DeviceArray<float> scales(words);
    DeviceArray<T> positions(rows * columns), gamma(columns), beta(columns), y(rows * columns);
    DeviceArray<int64_t> ids(rows);
    for (int8_t& element : table) element = static_cast<int8_t>(random.Between(-127, 127));
    random.Fill(scales, 0.02), random.Fill(positions, 1), random.Fill(gamma, 1), random.Fill(beta, 1);
    for (int64_t& id : ids) id = random.Between(-words, words - 1);
    const int64_t outside = random.OneIn(2) ? random.Between(0, rows - 1) : -1;
    if (outside >= 0) ids[outside] = words;
    EmbedLayerNormArguments<T, int64_t> a = {};
    a.ids = ids.data(), a.word_integers = table.data(), a.word_scales = scales.data();
    a.position_table = positions.data(), a.gamma = gamma.data(), a.beta = beta.data(), a.y = y.data();
    a.rows = a.sequence = a.positions = rows, a.columns = columns, a.words = words, a.epsilon = 1e-5f;
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
        values[j] = static_cast<double>(table[id * columns + j]) * scales[id] + ToFloat(positions[row * columns + j]);
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

TEST(EmulatedInt8Embedding, Float16) { TestEmbedding<__half>(); }
TEST(EmulatedInt8Embedding, Float32) { TestEmbedding<float>(); }

}  // namespace
}  // namespace bertfuse::kernels
