// Quantised products and embeddings, in the emulator: the rule of graph_rewrite/dialect/quantized.py, rounded in
// float32 where it says so and float64 in all else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulator/gemm_problem.h"
#include "emulator/random_data.h"
#include "kernels/embed_layer_norm.h"
#include "kernels/mma/gemm.h"
#include "kernels/portable/gemm.h"
#include "kernels/quantize_rows.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;
using gemm_mma::Math;
using gemm_mma::Tile;

constexpr Device kDevices[] = {{0, 80, 5, 163 << 10}, {1, 120, 3, 99 << 10}};

// A row of x as the rule rounds it.
struct Row {
  std::vector<int> integers;
  double scale;
};

Row RoundedRow(std::vector<float> x, const float* smooth, const float* scale) {
  float largest = 0, total = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (smooth != nullptr) x[i] *= smooth[i];
    if (!(std::fabs(x[i]) <= largest)) largest = std::fabs(x[i]);
    total += std::fabs(x[i]);
  }
  const float bounded = std::isnan(largest) || largest > 1e-30f ? largest : 1e-30f, inverse = 127.0f / bounded;
  Row row = {{}, scale != nullptr ? *scale : bounded / 127.0f + (total - total)};
  for (float value : x) {
    const float whole = std::nearbyint(scale != nullptr ? value / *scale : value * inverse);
    const float least = scale != nullptr ? -128.0f : -127.0f;
    row.integers.push_back(std::isnan(whole) ? 0 : static_cast<int>(std::clamp(whole, least, 127.0f)));
  }
  return row;
}

template <class T>
class Problem {
 public:
  Problem(Random& random, int64_t most_m, int64_t most_n, int64_t multiple_of_k)
      : random_(random),
        m_(random.Between(1, most_m)),
        n_(random.Between(1, most_n)),
        k_(random.Between(1, random.OneIn(3) ? 40 : 6) * multiple_of_k),
        x_(m_ * k_, random.OneIn(3)),
        smooth_(k_, random.OneIn(3)),
        scale_(1),
        bias_(n_, random.Between(0, 3)),
        y_(m_ * n_, random.Between(0, 3) / 2 * (16 / sizeof(T)) + random.OneIn(4)),
        weight_(n_ * k_),
        quantized_(m_ * k_),
        row_scales_(m_),
        weight_scales_(n_),
        row_count_(1) {
    random.Fill(x_, 1), random.Fill(bias_, 0.5), random.Fill(weight_scales_, 1.0 / 128 / std::sqrt(k_));
    for (float& factor : smooth_) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
    for (int8_t& element : weight_) element = static_cast<int8_t>(random.Between(-128, 127));
    if (random.OneIn(3)) weight_scales_[random.Between(0, n_ - 1)] = random.OneIn(2) ? 0.0f : 1e-41f;
    for (int i = 0; i < 3; ++i) MakeOdd(random.Between(0, m_ - 1));
    // Of a tensor: some numbers lie beyond the ends; at times it is nothing, or hardly anything.
    scale_[0] = random.OneIn(6) ? 0.0f : random.OneIn(6) ? 1e-42f : static_cast<float>(random.Between(5, 40)) / 1000;
    rows_.x = x_.data(), rows_.quantized = quantized_.data(), rows_.row_scales = row_scales_.data();
    if (random.OneIn(2)) rows_.smooth = smooth_.data();
    if (random.OneIn(3)) rows_.scale = scale_.data();
    rows_.rows = m_, rows_.columns = k_;
    packed_ = random.OneIn(3);
    if (packed_) {
      row_count_[0] = static_cast<int32_t>(random.Between(-1, m_ + 1));
      rows_.packed = a_.packed = {row_count_.data(), random.Between(0, m_)};
    }
    a_.x = quantized_.data(), a_.weight = weight_.data(), a_.y = y_.data();
    a_.row_scales = row_scales_.data(), a_.weight_scales = weight_scales_.data();
    if (!random.OneIn(4)) a_.bias = bias_.data();
    a_.m = m_, a_.n = n_, a_.k = k_;
    a_.activation = static_cast<Activation>(random.Between(0, 2));
    a_.weights_are_constant = random.OneIn(2), a_.last_rows_first = random.OneIn(2);
    form_ = random.OneIn(3) ? GemmForm::kPartialSums : GemmForm::kComplete;
  }

  // By tensor cores; the worst error in parts of what is allowed.
  double RunTile(const Tile& tile) {
    const Device& device = kDevices[random_.Between(0, 1)];
    GemmTile chosen;
    chosen.block = gemm_mma::BlockOn(Math::kInt8, tile, device.shared_bytes);
    if (random_.OneIn(2)) {
      chosen.block.stages = static_cast<int>(random_.Between(gemm_mma::kMinStages, chosen.block.stages));
    }
    const int64_t stages = CeilDiv(k_, gemm_mma::kStageRowBytes);
    chosen.splits =
        form_ == GemmForm::kPartialSums ? static_cast<int>(random_.Between(1, std::min<int64_t>(stages, 5))) : 1;
    while ((chosen.splits - 1) * CeilDiv(stages, chosen.splits) >= stages) --chosen.splits;
    return Run(device, chosen.splits, [&] {
      if (random_.OneIn(4) && form_ == GemmForm::kComplete) form_ = GemmForm::kRounded;
      emulator::TakeSharedAccesses();
      EXPECT_EQ(GemmMmaInt8(form_, chosen, a_, device, nullptr), cudaSuccess) << emulator::TakeFault();
      EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
    });
  }

  double RunSimt() {
    const Device& device = kDevices[random_.Between(0, 1)];
    return Run(device, 1, [&] {
      EXPECT_EQ(GemmSimt(MakePortableGemm(form_, a_), device, nullptr), cudaSuccess) << emulator::TakeFault();
    });
  }

 private:
  // Zeros, numbers whose largest is tiny or denormal, large ones, one that is not finite.
  void MakeOdd(int64_t row) {
    const double factors[] = {0, 1e-33, 1e-40, 100};
    const int64_t kind = random_.Between(0, 5);
    for (int64_t k = 0; k < k_ && kind < 4; ++k) {
      x_[row * k_ + k] = FromFloat<T>(static_cast<float>(ToFloat(x_[row * k_ + k]) * factors[kind]));
    }
    if (kind >= 4) x_[row * k_ + random_.Between(0, k_ - 1)] = FromFloat<T>(kind == 4 ? NAN : -INFINITY);
  }

  template <class Multiply>
  double Run(const Device& device, int splits, Multiply&& multiply) {
    SCOPED_TRACE(testing::Message() << m_ << " x " << n_ << " x " << k_ << ", " << splits << " splits, activation "
                                    << static_cast<int>(a_.activation) << ", rows " << (packed_ ? row_count_[0] : -1)
                                    << ", scale " << (rows_.scale == nullptr ? -1 : scale_[0]));
    DeviceArray<float> partials(form_ == GemmForm::kPartialSums ? splits * m_ * n_ : 0);
    a_.float_partials = partials.data();
    emulator::TheSettings().seed = random_.Seed();
    emulator::TheSettings().compute_capability = device.compute_capability;
    emulator::TheSettings().shared_bytes = device.shared_bytes;
    EXPECT_EQ(QuantizeRows(rows_, device, nullptr), cudaSuccess) << emulator::TakeFault();
    multiply();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmGelu", emulator::kDtype<T>));
    const int64_t rows = packed_ ? std::clamp<int64_t>(row_count_[0], 0, m_) : m_;
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> x(k_);
      for (int64_t k = 0; k < k_; ++k) x[k] = ToFloat(x_[row * k_ + k]);
      const Row expected = RoundedRow(x, rows_.smooth, rows_.scale);
      for (int64_t k = 0; k < k_ && !std::isnan(expected.scale); ++k) {  // else the integers are no matter
        EXPECT_EQ(quantized_[row * k_ + k], expected.integers[k]) << row << ", " << k << ": " << x[k];
      }
      const auto scale = static_cast<float>(expected.scale);
      EXPECT_TRUE(row_scales_[row] == scale || (std::isnan(scale) && std::isnan(row_scales_[row])));
      for (int64_t column = 0; column < n_; ++column) Compare(row, column, splits, expected, partials, &comparison);
    }
    EXPECT_LE(comparison.worst(), 1);
    for (int64_t i = form_ == GemmForm::kPartialSums ? 0 : rows * n_; i < m_ * n_; ++i) {
      EXPECT_EQ(std::memcmp(y_.data() + i, "\xff\xff\xff\xff", sizeof(T)), 0) << "y is written at " << i;
    }
    return comparison.worst();
  }

  void Compare(int64_t row, int64_t column, int splits, const Row& x, const DeviceArray<float>& partials,
               emulator::Comparison* comparison) {
    int64_t sum = 0;
    for (int64_t k = 0; k < k_; ++k) sum += x.integers[k] * weight_[column * k_ + k];
    const double product = static_cast<double>(sum) * x.scale * weight_scales_[column];
    // Large rows make large sums: what float32 rounds of them. What bfloat16 rounds, the table has.
    const double bound = std::isfinite(product) ? std::abs(product) * 1e-6 * splits : 0;
    if (form_ == GemmForm::kPartialSums) {
      double found = 0, size = 0;
      for (int split = 0; split < splits; ++split) {
        const double part = partials[(split * m_ + row) * n_ + column];
        found += part, size += std::abs(part);
      }
      return comparison->Add(found, product, std::isfinite(size) ? size * 1e-6 : 0);
    }
    const double biased = product + (a_.bias == nullptr ? 0 : ToFloat(bias_[column]));
    comparison->Add(ToFloat(y_[row * n_ + column]), Activated(a_.activation, biased), bound);
  }

  Random& random_;
  int64_t m_, n_, k_;
  DeviceArray<T> x_;
  DeviceArray<float> smooth_, scale_;
  DeviceArray<T> bias_, y_;
  DeviceArray<int8_t> weight_, quantized_;
  DeviceArray<float> row_scales_, weight_scales_;
  DeviceArray<int32_t> row_count_;
  QuantizeRowsArguments<T> rows_ = {};
  GemmArguments<Int8Elements<T>> a_ = {};
  GemmForm form_;
  bool packed_;
};

template <class T>
void TestTiles(int count) {
  Random random(emulator::Seed());
  gemm_mma::ForTiles(Math::kInt8, [&](const Tile& tile) {
    double worst = 0;
    for (int i = 0; i < count; ++i) {
      worst = std::max(worst, Problem<T>(random, tile.m * 3 / 2, tile.n * 3 / 2, 16).RunTile(tile));
    }
    std::printf("%d x %d: %d problems, the worst error is %.2f of what is allowed\n", tile.m, tile.n, count, worst);
  });
}

TEST(EmulatedInt8Gemm, Float16) { TestTiles<__half>(10); }
TEST(EmulatedInt8Gemm, Bfloat16) { TestTiles<__nv_bfloat16>(5); }
TEST(EmulatedInt8Gemm, Float32) { TestTiles<float>(8); }

TEST(EmulatedInt8Gemm, AnyShape) {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < 8; ++i) {
    worst = std::max(worst, Problem<__half>(random, 70, 90, random.Between(1, 9)).RunSimt());
    worst = std::max(worst, Problem<float>(random, 70, 90, random.Between(1, 9)).RunSimt());
    worst = std::max(worst, Problem<__nv_bfloat16>(random, 200, 200, 1).RunSimt());
  }
  std::printf("24 problems, the worst error is %.2f of what is allowed\n", worst);
}

// Sums of the largest integers, of a long k: all of 32 bits.
TEST(EmulatedInt8Gemm, LongestSums) {
  constexpr int64_t kK = kMaxInt8K / 16 * 16;
  DeviceArray<int8_t> x(kK), weight(2 * kK);
  DeviceArray<float> scales(3), y(2);
  std::fill(x.begin(), x.end(), static_cast<int8_t>(-128));
  std::fill(weight.begin(), weight.begin() + kK, static_cast<int8_t>(-128));
  std::fill(weight.begin() + kK, weight.end(), static_cast<int8_t>(127));
  std::fill(scales.begin(), scales.end(), 1.0f);
  GemmArguments<Int8Elements<float>> a = {};
  a.x = x.data(), a.weight = weight.data(), a.y = y.data(), a.row_scales = a.weight_scales = scales.data();
  a.m = 1, a.n = 2, a.k = kK;
  GemmTile tile;
  tile.block = gemm_mma::BlockOn(Math::kInt8, gemm_mma::kHalfTiles[5], kDevices[0].shared_bytes);
  emulator::TheSettings().compute_capability = kDevices[0].compute_capability;
  emulator::TheSettings().shared_bytes = kDevices[0].shared_bytes;
  ASSERT_EQ(GemmMmaInt8(GemmForm::kComplete, tile, a, kDevices[0], nullptr), cudaSuccess) << emulator::TakeFault();
  EXPECT_EQ(y[0], static_cast<float>(kK * 128 * 128));
  EXPECT_EQ(y[1], static_cast<float>(-kK * 128 * 127));
}

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
    emulator::TheSettings().compute_capability = kDevices[0].compute_capability;
    emulator::TheSettings().shared_bytes = kDevices[0].shared_bytes;
    ASSERT_EQ(EmbedLayerNorm(a, kDevices[0], nullptr), cudaSuccess) << emulator::TakeFault();
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
