// Hopper's products that store their results in 8 bits, in the emulator: what QuantizeRows() makes of what they store
// in 16 bits, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulator/random_data.h"
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
  const int64_t m = random.Between(1, 500), n = random.Between(1, 16) * 32, k = random.Between(1, 20) * 16;
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
  emulator::Settings& settings = emulator::TheSettings();
  const int cluster = tile.cluster_m * tile.cluster_n;
  settings.multiprocessors = cluster * static_cast<int>(random.Between(1, 3));
  settings.blocks_per_multiprocessor = block.per_multiprocessor;
  const Device device = {settings.multiprocessors, 90, settings.multiprocessors, 227 << 10};
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
  for (int64_t i = 0; i < there * n; ++i) {
    const float is = ToFloat(found[i]), wanted = ToFloat(expected[i]);
    // NaN has two signs.
    if (std::memcmp(&found[i], &expected[i], 1) == 0 || (std::isnan(is) && std::isnan(wanted))) continue;
    ADD_FAILURE() << i / n << ", " << i % n << ": " << is << ", expected " << wanted << " of " << ToFloat(y[i]);
    break;
  }
  for (int64_t row = 0; row < there; ++row) EXPECT_EQ(scales[row], scale[0]) << row;
}

template <class Elements>
void TestBlocks() {
  Random random(emulator::Seed());
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

TEST(EmulatedQuantizingGemm, Fp8ToFloat16) { TestBlocks<Fp8Elements<__half>>(); }
TEST(EmulatedQuantizingGemm, Fp8ToBfloat16) { TestBlocks<Fp8Elements<__nv_bfloat16>>(); }
TEST(EmulatedQuantizingGemm, Int8ToFloat16) { TestBlocks<Int8Elements<__half>>(); }
TEST(EmulatedQuantizingGemm, Int8ToBfloat16) { TestBlocks<Int8Elements<__nv_bfloat16>>(); }

}  // namespace
}  // namespace bertfuse::kernels
