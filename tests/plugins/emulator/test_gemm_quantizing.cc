// Hopper's products that store their results in 8 bits, in the emulator: what QuantizeRows() makes of what they store
// in 16 bits, bit for bit, but for integers that lie all but in the middle between two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/gemm_problem.h"
#include "emulator/late_array.h"
#include "emulator/random_data.h"
#include "emulator/rounded_rows.h"
#include "kernels/quantize_rows.h"
#include "kernels/sm90/gemm.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

// `stored_in_y`: a tile that adds up in the same order, and stores 16 bits.
template <class Elements>
void TestBlock(Random& random, const GemmBlock& block, const GemmBlock& stored_in_y) {
  using T = typename Elements::Y;
  using X = typename Elements::X;
  const bool stationary = gemm_sm90::IsStationary(block);
  const int64_t m = random.Between(1, stationary ? 1500 : 500), n = random.Between(1, 16) * 32,
                k = random.Between(1, stationary ? gemm_sm90::MostStationaryK(block) / 16 : 20) * 16;
  DeviceArray<X> x(m * k), weight(n * k), expected(m * n), found(m * n);
  DeviceArray<T> bias(n), y(m * n), untouched(m * n);
  DeviceArray<float> row_scales(m), weight_scales(n), smooth(n), scale(1), expected_scales(m), scales(m);
  DeviceArray<int32_t> row_count(1), compensation(n);
  DeviceArray<int8_t> zero(1);
  random.Fill(x, 60), random.Fill(weight, 60), random.Fill(bias, 0.5);
  random.Fill(row_scales, 0.02), random.Fill(weight_scales, 0.02 / std::sqrt(static_cast<double>(k)));
  for (float& factor : smooth) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
  const float odd[] = {NAN, INFINITY, 1e6f, 1e-8f, 0};
  for (int i = 0; i < 2; ++i) row_scales[random.Between(0, m - 1)] = odd[random.Between(0, 4)];
  scale[0] = static_cast<float>(random.Between(1, 100)) * (std::is_same_v<X, int8_t> ? 1e-3f : 1e-4f);
  if (random.OneIn(10)) scale[0] = random.OneIn(2) ? 0.0f : 1e-42f;
  GemmTile tile = {block, static_cast<int>(random.Between(1, 2)), static_cast<int>(random.Between(1, 2)), 1};
  if (stationary) tile.cluster_m = tile.cluster_n = 1;
  emulator::Settings& settings = emulator::TheSettings();
  const int cluster = tile.cluster_m * tile.cluster_n;
  settings.multiprocessors = cluster * static_cast<int>(random.Between(stationary ? 4 : 1, stationary ? 8 : 3));
  settings.blocks_per_multiprocessor = block.per_multiprocessor;
  const Device device = {settings.multiprocessors, 90, settings.multiprocessors, 227 << 10, 228 << 10};
  settings.compute_capability = 90, settings.shared_bytes = device.shared_bytes;
  GemmArguments<Elements> a = {};
  a.x = x.data(), a.weight = weight.data(), a.bias = random.OneIn(4) ? nullptr : bias.data(), a.y = y.data();
  a.row_scales = row_scales.data(), a.weight_scales = weight_scales.data(), a.m = m, a.n = n, a.k = k;
  a.activation = static_cast<Activation>(random.Between(0, 2));
  a.weights_are_constant = random.OneIn(2), a.last_rows_first = random.OneIn(2);
  constexpr bool kIntegers = std::is_same_v<X, int8_t>;
  for (int32_t& value : compensation) value = static_cast<int32_t>(random.Between(-2000, 2000));
  if (kIntegers && random.OneIn(2)) a.x_compensation = compensation.data();
  zero[0] = static_cast<int8_t>(random.Between(-128, 127));
  row_count[0] = static_cast<int32_t>(random.Between(-1, m + 1));
  if (random.OneIn(3)) a.packed = {row_count.data(), random.Between(0, m)};
  SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", tile " << block.m << " x " << block.n
                                  << ", cluster " << tile.cluster_m << " x " << tile.cluster_n << ", scale " << scale[0]
                                  << ", rows " << (a.packed.row_count == nullptr ? -9 : row_count[0]));
  settings.seed = random.Seed();
  GemmTile other = tile;
  other.block = stored_in_y;
  settings.blocks_per_multiprocessor = stored_in_y.per_multiprocessor;
  ASSERT_EQ(GemmSm90Elementwise(other, a, device, nullptr), cudaSuccess) << emulator::TakeFault();
  settings.blocks_per_multiprocessor = block.per_multiprocessor;
  const float* const factors = random.OneIn(2) ? smooth.data() : nullptr;
  QuantizeRowsArguments<T, X> rows = {y.data(), factors,  scale.data(), expected.data(), expected_scales.data(), m,
                                      n,        a.packed, true};
  if (kIntegers && random.OneIn(2)) rows.zero = zero.data();
  ASSERT_EQ(QuantizeRows(rows, device, nullptr), cudaSuccess) << emulator::TakeFault();
  a.y = untouched.data();
  a.quantized = {found.data(), scales.data(), factors, !kIntegers, scale.data(), rows.zero};
  ASSERT_EQ(GemmSm90Quantizing(tile, a, device, nullptr), cudaSuccess) << emulator::TakeFault();
  for (const T& element : untouched) ASSERT_EQ(std::memcmp(&element, "\xff\xff", 2), 0) << "y is written";
  // (Behind the last packed row that is there, rows are unspecified.)
  const int64_t there = a.packed.row_count == nullptr ? m : std::clamp<int64_t>(row_count[0], 0, m);
  const auto either_will_do = [&](int64_t i) {
    if (!kIntegers || std::abs(ToFloat(found[i]) - ToFloat(expected[i])) != 1) return false;
    const double number = (factors == nullptr ? 1.0 : factors[i % n]) * ToFloat(y[i]) / scale[0];
    return std::abs(number - std::floor(number) - 0.5) < 1e-4;
  };
  for (int64_t i = 0; i < there * n; ++i) {
    const float is = ToFloat(found[i]), wanted = ToFloat(expected[i]);
    // NaN has two signs.
    if (std::memcmp(&found[i], &expected[i], 1) == 0 || (std::isnan(is) && std::isnan(wanted))) continue;
    if (either_will_do(i)) continue;
    ADD_FAILURE() << i / n << ", " << i % n << ": " << is << ", expected " << wanted << " of " << ToFloat(y[i]);
    break;
  }
  for (int64_t row = 0; row < there; ++row) EXPECT_EQ(scales[row], scale[0]) << row;
}

// A random product of 8-bit operands, with y of `columns`, by a tile in random clusters on a device of a few of these.
template <class Elements>
class Operands {
  using X = typename Elements::X;
  using T = typename Elements::Y;

 public:
  static constexpr bool kIntegers = std::is_same_v<X, int8_t>;
  // What y may be off by: its type's rounding, and of products of 8-bit floats what their sums cut off.
  static constexpr double kUnit = (std::is_same_v<T, __half> ? 2e-3 : 1.6e-2) + (kIntegers ? 0.0 : 6e-3);

  Operands(Random& random, const GemmBlock& block, int64_t m, int64_t n, int64_t columns)
      : tile{block, static_cast<int>(random.Between(1, 2)), static_cast<int>(random.Between(1, 2)), 1},
        y(m * columns),
        m_(m),
        k_(random.Between(1, 20) * 16),
        x_(m * k_),
        weight_(n * k_),
        bias_(n),
        row_scales_(m),
        weight_scales_(n),
        row_count_(1),
        compensation_(n) {
    random.Fill(x_, 60), random.Fill(weight_, 60), random.Fill(bias_, 0.5);
    random.Fill(row_scales_, 0.02), random.Fill(weight_scales_, 0.02 / std::sqrt(static_cast<double>(k_)));
    for (int32_t& value : compensation_) value = static_cast<int32_t>(random.Between(-2000, 2000));
    row_count_[0] = static_cast<int32_t>(random.Between(-1, m + 1));
    emulator::Settings& settings = emulator::TheSettings();
    settings.multiprocessors = tile.cluster_m * tile.cluster_n * static_cast<int>(random.Between(1, 3));
    settings.blocks_per_multiprocessor = block.per_multiprocessor;
    device = {settings.multiprocessors, 90, settings.multiprocessors, 227 << 10, 228 << 10};
    settings.compute_capability = 90, settings.shared_bytes = device.shared_bytes, settings.seed = random.Seed();
    a.x = x_.data(), a.weight = weight_.data(), a.bias = random.OneIn(4) ? nullptr : bias_.data(), a.y = y.data();
    a.row_scales = row_scales_.data(), a.weight_scales = weight_scales_.data(), a.m = m, a.n = n, a.k = k_;
    a.weights_are_constant = random.OneIn(2), a.last_rows_first = random.OneIn(2);
    if (kIntegers && random.OneIn(2)) a.x_compensation = compensation_.data();
    if (random.OneIn(3)) a.packed = {row_count_.data(), random.Between(0, m)};
  }
  // Rows that are there.
  int64_t rows() const { return a.packed.row_count == nullptr ? m_ : std::clamp<int64_t>(row_count_[0], 0, m_); }
  // An element of the product, scaled and with its bias.
  double Product(int64_t row, int64_t column) const {
    double sum = a.x_compensation == nullptr ? 0 : -compensation_[column];
    for (int64_t i = 0; i < k_; ++i) {
      sum += static_cast<double>(ToFloat(x_[row * k_ + i])) * ToFloat(weight_[column * k_ + i]);
    }
    return sum * row_scales_[row] * weight_scales_[column] + (a.bias == nullptr ? 0.0 : ToFloat(bias_[column]));
  }
  std::string Described() const {
    return std::to_string(m_) + " x " + std::to_string(a.n) + " x " + std::to_string(k_) + ", tile " +
           std::to_string(tile.block.m) + " x " + std::to_string(tile.block.n) + ", cluster " +
           std::to_string(tile.cluster_m) + " x " + std::to_string(tile.cluster_n);
  }

  GemmTile tile;
  Device device = {};
  GemmArguments<Elements> a = {};
  DeviceArray<T> y;

 private:
  int64_t m_, k_;
  DeviceArray<X> x_, weight_;
  DeviceArray<T> bias_;
  DeviceArray<float> row_scales_, weight_scales_;
  DeviceArray<int32_t> row_count_, compensation_;
};

// A gate in the epilogue: y beside float64, and its numbers in 8 bits, bit for bit, beside what QuantizeRows() makes of
// it.
template <class Elements>
void TestGate(Random& random, const GemmBlock& block) {
  using T = typename Elements::Y;
  using X = typename Elements::X;
  constexpr bool kIntegers = std::is_same_v<X, int8_t>;
  const int64_t m = random.Between(1, 400), columns = random.Between(1, 10) * 32;
  Operands<Elements> of(random, block, m, 2 * columns, columns);
  GemmArguments<Elements>& a = of.a;
  const DeviceArray<T>& y = of.y;
  if (block.n / 2 % (32 * of.tile.cluster_m) != 0) return;
  DeviceArray<X> expected(m * columns), found(m * columns);
  DeviceArray<T> untouched(m * columns);
  DeviceArray<float> smooth(columns), scale(1), expected_scales(m), scales(m);
  DeviceArray<int8_t> zero(1);
  for (float& factor : smooth) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
  scale[0] = static_cast<float>(random.Between(1, 100)) * (kIntegers ? 1e-3f : 1e-4f);
  zero[0] = static_cast<int8_t>(random.Between(-128, 127));
  a.gates = true, a.activation = static_cast<Activation>(random.Between(0, 4));
  SCOPED_TRACE(of.Described() + ", activation " + std::to_string(static_cast<int>(a.activation)));
  ASSERT_EQ(GemmSm90Gated(of.tile, a, of.device, nullptr), cudaSuccess) << emulator::TakeFault();
  const int64_t there = of.rows();
  for (int64_t row = 0; row < there; row += random.Between(1, 20)) {
    for (int64_t column = 0; column < columns; ++column) {
      const double gate = Activated(a.activation, of.Product(row, column)), up = of.Product(row, columns + column);
      ASSERT_NEAR(ToFloat(y[row * columns + column]), gate * up,
                  of.kUnit * (std::abs(gate * up) + 0.3 * (std::abs(gate) + std::abs(up) + 1)))
          << row << ", " << column;
    }
  }
  const float* const factors = random.OneIn(2) ? smooth.data() : nullptr;
  QuantizeRowsArguments<T, X> rows = {y.data(), factors,  scale.data(), expected.data(), expected_scales.data(), m,
                                      columns,  a.packed, true};
  if (kIntegers && random.OneIn(2)) rows.zero = zero.data();
  ASSERT_EQ(QuantizeRows(rows, of.device, nullptr), cudaSuccess) << emulator::TakeFault();
  a.y = untouched.data();
  a.quantized = {found.data(), scales.data(), factors, !kIntegers, scale.data(), rows.zero};
  ASSERT_EQ(GemmSm90Gated(of.tile, a, of.device, nullptr), cudaSuccess) << emulator::TakeFault();
  EXPECT_FALSE(emulator::IsWritten(untouched));
  for (int64_t i = 0; i < there * columns; ++i) {
    const float is = ToFloat(found[i]), wanted = ToFloat(expected[i]);
    if (std::memcmp(&found[i], &expected[i], 1) == 0 || (std::isnan(is) && std::isnan(wanted))) continue;
    const double number = (factors == nullptr ? 1.0 : factors[i % columns]) * ToFloat(y[i]) / scale[0];
    if (kIntegers && std::abs(is - wanted) == 1 && std::abs(number - std::floor(number) - 0.5) < 1e-4) continue;
    ADD_FAILURE() << i / columns << ", " << i % columns << ": " << is << ", expected " << wanted;
    break;
  }
  for (int64_t row = 0; row < there; ++row) EXPECT_EQ(scales[row], scale[0]) << row;
}

template <class Elements>
void TestGates() {
  Random random(emulator::Seed());
  for (int i = 0; i < 6; ++i) {
    for (const GemmBlock& block : gemm_sm90::kPersistentBlocks8) {
      TestGate<Elements>(random, block);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Heads of Q and K rotated in the epilogue, beside float64.
template <class Elements>
void TestRotation(Random& random, const GemmBlock& block) {
  using T = typename Elements::Y;
  constexpr int64_t kPairs = kEpilogueHead / 2;
  const int64_t m = random.Between(1, 400), heads = random.Between(1, 4), kv_heads = random.Between(1, heads),
                n = (heads + 2 * kv_heads) * kEpilogueHead, table_rows = random.Between(1, m);
  Operands<Elements> of(random, block, m, n, n);
  DeviceArray<T> cos(table_rows * kPairs), sin(table_rows * kPairs);
  DeviceArray<int32_t> places(m);
  random.Fill(cos, 0.7), random.Fill(sin, 0.7);
  Rotation<T>& r = of.a.rotation;
  r.cos = cos.data(), r.sin = sin.data(), r.table_rows = table_rows;
  r.heads = heads, r.kv_heads = kv_heads, r.head_size = kEpilogueHead, r.rotated = kPairs;
  for (int64_t row = 0; row < m; ++row) places[row] = static_cast<int32_t>(row % table_rows);
  if (random.OneIn(2)) {
    for (int32_t& place : places) place = static_cast<int32_t>(random.Between(0, table_rows - 1));
    r.places = places.data();
  }
  SCOPED_TRACE(testing::Message() << of.Described() << ", " << heads << " and " << kv_heads << " heads, " << table_rows
                                  << " places");
  ASSERT_EQ(GemmSm90(GemmForm::kComplete, of.tile, of.a, of.device, nullptr), cudaSuccess) << emulator::TakeFault();
  for (int64_t row = 0; row < of.rows(); row += random.Between(1, 20)) {
    std::vector<double> product(n);
    for (int64_t at = 0; at < n; ++at) product[at] = of.Product(row, at);
    for (int64_t at = 0; at < n; ++at) {
      const bool turns = at < (heads + kv_heads) * kEpilogueHead, second = at % kEpilogueHead >= kPairs;
      const double other = product[turns ? (second ? at - kPairs : at + kPairs) : at];
      const int64_t angle = places[row] * kPairs + at % kPairs;
      const double wanted =
          turns ? product[at] * ToFloat(cos[angle]) + (second ? other : -other) * ToFloat(sin[angle]) : product[at];
      ASSERT_NEAR(ToFloat(of.y[row * n + at]), wanted, of.kUnit * (1 + std::abs(product[at]) + std::abs(other)))
          << row << ", " << at;
    }
  }
}

template <class Elements>
void TestRotations() {
  Random random(emulator::Seed());
  for (int i = 0; i < 6; ++i) {
    for (const GemmBlock& block :
         {gemm_sm90::kPersistentBlocks8[0], gemm_sm90::kPersistentBlocks8[1], gemm_sm90::kOneTileBlocks8[0]}) {
      TestRotation<Elements>(random, block);
      if (testing::Test::HasFailure()) return;
    }
  }
}

template <class Elements>
void TestBlocks() {
  Random random(emulator::Seed());
  for (int i = 0; i < 8; ++i) {
    for (const GemmBlock& block : gemm_sm90::kStationaryBlocks) {
      TestBlock<Elements>(random, block, gemm_sm90::kPersistentBlocks8[1]);
      if (testing::Test::HasFailure()) return;
    }
  }
  for (int i = 0; i < 3; ++i) {
    for (const GemmBlock& block : gemm_sm90::BlocksOf<typename Elements::X>().persistent) {
      TestBlock<Elements>(random, block, block);
      if (testing::Test::HasFailure()) return;
    }
    for (const GemmBlock& block : gemm_sm90::kQuantizingOneTileBlocks) {
      for (const GemmBlock& other : gemm_sm90::BlocksOf<typename Elements::X>().one_tile) {
        if (other.m != block.m || other.n != block.n || other.promotes) continue;
        TestBlock<Elements>(random, block, other);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// LayerNorm and 8 bits in one launch, beside float64 and the rule of 8 bits for what was stored in 16. Of integers a
// residual in 8 bits gives the bits that its numbers give in 16 bits, in which they are exact.
template <class Elements>
void TestNorm(Random& random, const GemmBlock& block) {
  using T = typename Elements::Y;
  using X = typename Elements::X;
  const int most = gemm_sm90::MostStationaryK(block);
  const int64_t m = random.Between(1, 1200), n = random.Between(1, most / block.n) * block.n,
                k = random.Between(1, most / 16) * 16;
  DeviceArray<X> x(m * k), weight(n * k), found(m * n);
  DeviceArray<T> bias(n), gamma(n), beta(n), residual(m * n), y(m * n);
  DeviceArray<float> row_scales(m), weight_scales(n), smooth(n), scales(m);
  DeviceArray<int32_t> row_count(1), compensation(n);
  random.Fill(x, 60), random.Fill(weight, 60), random.Fill(bias, 0.5), random.Fill(gamma, 0.5);
  random.Fill(beta, 0.5), random.Fill(residual, 1);
  random.Fill(row_scales, 0.02), random.Fill(weight_scales, 0.02 / std::sqrt(static_cast<double>(k)));
  for (float& factor : smooth) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
  for (int32_t& value : compensation) value = static_cast<int32_t>(random.Between(-2000, 2000));
  if (random.OneIn(3)) row_scales[random.Between(0, m - 1)] = NAN;
  const GemmTile tile = {block, 1, static_cast<int>(n / block.n), 1};
  emulator::Settings& settings = emulator::TheSettings();
  settings.multiprocessors = tile.cluster_n * static_cast<int>(random.Between(1, 3));
  settings.blocks_per_multiprocessor = 1;
  const Device device = {settings.multiprocessors, 90, settings.multiprocessors, 227 << 10, 228 << 10};
  settings.compute_capability = 90, settings.shared_bytes = device.shared_bytes;
  GemmArguments<Elements> a = {};
  a.x = x.data(), a.weight = weight.data(), a.bias = bias.data(), a.y = y.data();
  a.gamma = gamma.data(), a.beta = beta.data(), a.residual = random.OneIn(4) ? nullptr : residual.data();
  a.row_scales = row_scales.data(), a.weight_scales = weight_scales.data(), a.m = m, a.n = n, a.k = k;
  a.epsilon = 1e-5f;
  a.weights_are_constant = random.OneIn(2), a.last_rows_first = random.OneIn(2);
  constexpr bool kIntegers = std::is_same_v<X, int8_t>;
  if (kIntegers && random.OneIn(2)) a.x_compensation = compensation.data();
  const float* const factors = random.OneIn(2) ? smooth.data() : nullptr;
  a.quantized = {found.data(), scales.data(), factors, !kIntegers, nullptr, nullptr};
  DeviceArray<int8_t> numbers(m * n);
  DeviceArray<float> residual_scales(m), restore(n);
  const bool restores = kIntegers && a.residual != nullptr && random.OneIn(2), has_restore = random.OneIn(2);
  if (restores) {
    for (float& scale : residual_scales) scale = std::exp2(static_cast<float>(random.Between(-8, -4)));
    for (float& factor : restore) factor = std::exp2(static_cast<float>(random.Between(-1, 1)));
    for (int64_t i = 0; i < m * n; ++i) {
      numbers[i] = static_cast<int8_t>(random.Between(-128, 127));
      const float value = static_cast<float>(numbers[i]) * residual_scales[i / n];
      residual[i] = FromFloat<T>(has_restore ? value * restore[i % n] : value);
    }
  }
  row_count[0] = static_cast<int32_t>(random.Between(-1, m + 1));
  if (random.OneIn(3)) a.packed = {row_count.data(), random.Between(0, m)};
  const int64_t there = a.packed.row_count == nullptr ? m : std::clamp<int64_t>(row_count[0], 0, m);
  SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", tile " << block.m << " x " << block.n
                                  << ", clusters " << settings.multiprocessors / tile.cluster_n << ", rows " << there);
  settings.seed = random.Seed();
  ASSERT_EQ(GemmSm90QuantizingNorm(tile, a, device, nullptr), cudaSuccess) << emulator::TakeFault();
  for (int64_t row = 0; row < there; row += random.Between(1, 40)) {
    std::vector<double> v(n);
    double sum = 0, squares = 0, cut_off = 0;
    for (int64_t column = 0; column < n; ++column) {
      double product = a.x_compensation == nullptr ? 0 : -compensation[column];
      const auto product_at = [&](int64_t i) {
        return static_cast<double>(ToFloat(x[row * k + i])) * ToFloat(weight[column * k + i]);
      };
      for (int64_t i = 0; i < k; ++i) product += product_at(i);
      if (!kIntegers) {
        cut_off = std::max(cut_off, CutOff(k, k, product_at) * std::abs(row_scales[row] * weight_scales[column]));
      }
      v[column] = product * row_scales[row] * weight_scales[column] + ToFloat(bias[column]);
      if (a.residual != nullptr) v[column] += ToFloat(residual[row * n + column]);
      sum += v[column];
    }
    for (double value : v) squares += (value - sum / n) * (value - sum / n);
    const double deviation = std::sqrt(squares / n + a.epsilon);
    std::vector<float> stored(n);
    for (int64_t column = 0; column < n; ++column) {
      const double wanted = (v[column] - sum / n) / deviation * ToFloat(gamma[column]) + ToFloat(beta[column]);
      const float is = stored[column] = ToFloat(y[row * n + column]);
      if (std::isnan(wanted) && std::isnan(is)) continue;
      // Rounded to T; and the product's error, the mean's and, as it is large, the deviation's.
      const double rounding = (std::abs(wanted) + 0.01) * (std::is_same_v<T, __half> ? 1e-3 : 8e-3);
      const double of_sums =
          cut_off / deviation * (2 * std::abs(ToFloat(gamma[column])) + std::abs(wanted - ToFloat(beta[column])));
      ASSERT_NEAR(is, wanted, rounding + of_sums) << row << ", " << column;
    }
    const Row expected = RoundedRow<X>(stored, factors, nullptr);
    if (std::isnan(expected.scale)) {
      EXPECT_TRUE(std::isnan(scales[row])) << row;
      continue;
    }
    EXPECT_FLOAT_EQ(scales[row], static_cast<float>(expected.scale)) << row;
    for (int64_t column = 0; column < n; ++column) {
      ASSERT_EQ(ToFloat(found[row * n + column]), expected.numbers[column]) << row << ", " << column;
    }
  }
  if (!restores) return;
  DeviceArray<X> same(m * n);
  DeviceArray<float> same_scales(m);
  DeviceArray<T> untouched(m * n);
  a.residual = nullptr, a.y = untouched.data();
  a.quantized_residual = {numbers.data(), residual_scales.data(), has_restore ? restore.data() : nullptr};
  a.quantized.rows = same.data(), a.quantized.scales = same_scales.data(), a.quantized.alone = random.OneIn(2);
  emulator::HiddenArrays late;
  late.Hide(x), late.Hide(row_scales), late.Hide(numbers), late.Hide(residual_scales);
  if (!a.weights_are_constant) late.Hide(restore), late.Hide(weight), late.Hide(gamma);
  bool wrote_early = false;
  settings.dependencies_end = [&] {
    wrote_early = emulator::IsWritten(untouched) || emulator::IsWritten(same);
    late.Appear();
  };
  ASSERT_EQ(GemmSm90QuantizingNorm(tile, a, device, nullptr), cudaSuccess) << emulator::TakeFault();
  settings.dependencies_end = nullptr;
  EXPECT_FALSE(wrote_early) << "results were written before the kernels before had ended";
  if (a.quantized.alone) {
    EXPECT_FALSE(emulator::IsWritten(untouched));
  } else {
    EXPECT_EQ(std::memcmp(untouched.data(), y.data(), there * n * sizeof(T)), 0) << "y is another";
  }
  for (int64_t row = 0; row < there; ++row) {
    if (std::isnan(scales[row]) && std::isnan(same_scales[row])) continue;  // then the numbers are no matter
    ASSERT_EQ(scales[row], same_scales[row]) << row;
    ASSERT_EQ(std::memcmp(&same[row * n], &found[row * n], n), 0) << row;
  }
}

template <class Elements>
void TestNorms() {
  Random random(emulator::Seed());
  for (int i = 0; i < 6; ++i) {
    for (const GemmBlock& block : gemm_sm90::kStationaryBlocks) {
      TestNorm<Elements>(random, block);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(EmulatedQuantizingNormOfGemm, Fp8ToFloat16) { TestNorms<Fp8Elements<__half>>(); }
TEST(EmulatedQuantizingNormOfGemm, Fp8ToBfloat16) { TestNorms<Fp8Elements<__nv_bfloat16>>(); }
TEST(EmulatedQuantizingNormOfGemm, Int8ToFloat16) { TestNorms<Int8Elements<__half>>(); }
TEST(EmulatedQuantizingNormOfGemm, Int8ToBfloat16) { TestNorms<Int8Elements<__nv_bfloat16>>(); }

TEST(EmulatedQuantizingGemm, Fp8ToFloat16) { TestBlocks<Fp8Elements<__half>>(); }
TEST(EmulatedQuantizingGemm, Fp8ToBfloat16) { TestBlocks<Fp8Elements<__nv_bfloat16>>(); }
TEST(EmulatedQuantizingGemm, Int8ToFloat16) { TestBlocks<Int8Elements<__half>>(); }
TEST(EmulatedQuantizingGemm, Int8ToBfloat16) { TestBlocks<Int8Elements<__nv_bfloat16>>(); }

TEST(EmulatedRotationOf8Bits, Fp8ToFloat16) { TestRotations<Fp8Elements<__half>>(); }
TEST(EmulatedRotationOf8Bits, Fp8ToBfloat16) { TestRotations<Fp8Elements<__nv_bfloat16>>(); }
TEST(EmulatedRotationOf8Bits, Int8ToFloat16) { TestRotations<Int8Elements<__half>>(); }
TEST(EmulatedRotationOf8Bits, Int8ToBfloat16) { TestRotations<Int8Elements<__nv_bfloat16>>(); }

TEST(EmulatedQuantizingGate, Fp8ToFloat16) { TestGates<Fp8Elements<__half>>(); }
TEST(EmulatedQuantizingGate, Fp8ToBfloat16) { TestGates<Fp8Elements<__nv_bfloat16>>(); }
TEST(EmulatedQuantizingGate, Int8ToFloat16) { TestGates<Int8Elements<__half>>(); }
TEST(EmulatedQuantizingGate, Int8ToBfloat16) { TestGates<Int8Elements<__nv_bfloat16>>(); }

}  // namespace
}  // namespace bertfuse::kernels
