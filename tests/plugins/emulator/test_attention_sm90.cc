// Attention of Hopper in the emulator: every tile that is compiled for each head size, padded and packed.
#include <gtest/gtest.h>

#include "emulator/attention_problem.h"
#include "emulator/attention_problem_sm90.h"
#include "kernels/quantize_rows.h"

namespace bertfuse::kernels {
namespace {

using attention_sm90::HasAttentionTile;
using attention_sm90::kAttentionTiles;
using emulator::AttentionProblem;
using emulator::AttentionSizes;
using emulator::DeviceArray;
using emulator::Masks;
using emulator::Random;

// A device of its own for each problem.
Device DrawDevice(const AttentionTile& tile, int64_t head_size, Random& random) {
  emulator::Settings& settings = emulator::TheSettings();
  settings.compute_capability = 90, settings.multiprocessors = static_cast<int>(random.Between(1, 3));
  settings.blocks_per_multiprocessor = tile.queries == 64 && head_size != 128 ? 2 : 1;
  settings.shared_bytes = 227 << 10, settings.seed = random.Seed();
  return {settings.multiprocessors, 90, settings.multiprocessors, settings.shared_bytes};
}

template <class T>
void TestAttention(bool packed, int count_of_each) {
  Random random(emulator::Seed());
  double worst = 0;
  int count = 0;
  for (const AttentionTile& tile : kAttentionTiles) {
    for (int64_t head_size = 32; head_size <= 128; head_size *= 2) {
      if (!HasAttentionTile(tile, head_size, packed)) continue;
      for (int i = 0; i < count_of_each; ++i) {
        const int64_t longest = random.OneIn(3) ? 40 : random.OneIn(3) ? 300 : 150;
        const typename AttentionSm90Problem<T>::Size size = {random.Between(1, packed ? 40 : 3) * 40 / longest + 1,
                                                             random.Between(1, longest), random.Between(1, 3),
                                                             head_size};
        AttentionSm90Problem<T> problem(&random, size, packed);
        const Device device = DrawDevice(tile, head_size, random);
        SCOPED_TRACE(problem.Describe() << ", tile " << tile.queries << " x " << tile.keys << ", " << tile.pipelines
                                        << " pipelines");
        problem.Prepare();
        emulator::TakeSharedAccesses();
        const cudaError_t error = AttentionSm90(problem.arguments, tile, device, nullptr);
        emulator::TheSettings().dependencies_end = nullptr;
        ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
        EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
        EXPECT_FALSE(problem.wrote_early()) << "results were written before the kernels before had ended";
        EXPECT_FALSE(problem.wrote_outside());
        emulator::Comparison comparison(emulator::ToleranceOf("FusedAttention", emulator::kDtype<T>));
        problem.Compare(&comparison);
        ASSERT_LE(comparison.worst(), 1);
        worst = std::max(worst, comparison.worst());
        ++count;
      }
    }
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", count, worst);
}

TEST(EmulatedAttentionSm90, PaddedFloat16) { TestAttention<__half>(false, 4); }
TEST(EmulatedAttentionSm90, PaddedBfloat16) { TestAttention<__nv_bfloat16>(false, 4); }
TEST(EmulatedAttentionSm90, PackedFloat16) { TestAttention<__half>(true, 4); }
TEST(EmulatedAttentionSm90, PackedBfloat16) { TestAttention<__nv_bfloat16>(true, 4); }

template <class T>
void Launch(const AttentionArguments<T>& a, const AttentionTile& tile, Random& random) {
  const Device device = DrawDevice(tile, a.head_size, random);
  ASSERT_TRUE(AttentionSm90Supports(a, device));
  ASSERT_EQ(AttentionSm90(a, tile, device, nullptr), cudaSuccess) << emulator::TakeFault();
}

// Windows, fewer heads of keys and values, rotated heads.
template <class T>
void TestVariants(int count, bool rotates = false) {
  constexpr int64_t kHeadSizes[] = {32, 64, 128};
  Random random(emulator::Seed());
  double worst = 0;
  int variants = 0;
  for (int i = 0; i < count; ++i) {
    AttentionSizes sizes = emulator::DrawSizes(kHeadSizes, random);
    sizes.soft_cap = 0, sizes.bias_heads = 0;
    if (random.OneIn(3)) {  // several tiles for each pipeline, whose warpgroups see different blocks
      sizes.heads *= 3, sizes.kv_heads *= 3;
      sizes.sequence = random.Between(200, 300);
      sizes.lengths = {sizes.sequence, random.Between(100, sizes.sequence)};
    }
    if (rotates) sizes.table_places = random.OneIn(4) && sizes.packed ? random.Between(1, 20) : sizes.sequence;
    AttentionProblem<T> problem(sizes, random);
    const bool plain = problem.arguments().variant.IsPlain();
    variants += !plain;
    AttentionTile tile;
    do {
      tile = kAttentionTiles[random.Between(0, std::size(kAttentionTiles) - 1)];
    } while (!HasAttentionTile(tile, sizes.head_size, sizes.packed));
    SCOPED_TRACE(sizes.Text() + ", tile " + std::to_string(tile.queries) + " x " + std::to_string(tile.keys));
    emulator::TakeSharedAccesses();
    AttentionArguments<T> a = problem.arguments();
    DeviceArray<T> without_values(problem.qkv().size());
    if (!plain && random.OneIn(2)) {  // V lies elsewhere than Q and K
      const int64_t others = (a.heads + a.KvHeads()) * a.head_size, columns = problem.columns();
      for (size_t j = 0; j < problem.qkv().size(); ++j) {
        if (static_cast<int64_t>(j) % columns < others) without_values[j] = problem.qkv()[j];
      }
      a.values = a.qkv, a.qkv = without_values.data();
    }
    Launch(a, tile, random);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
    const double error = problem.WorstError(emulator::kDtype<T>);
    EXPECT_LE(error, 1);
    worst = std::max(worst, error);
  }
  std::printf("%d problems, %d of them variants, the worst error is %.2f of what is allowed\n", count, variants, worst);
}

TEST(EmulatedAttentionSm90, VariantsFloat16) { TestVariants<__half>(40); }
TEST(EmulatedAttentionSm90, VariantsBfloat16) { TestVariants<__nv_bfloat16>(20); }
TEST(EmulatedAttentionSm90, RotatedHeadsFloat16) { TestVariants<__half>(40, true); }
TEST(EmulatedAttentionSm90, RotatedHeadsBfloat16) { TestVariants<__nv_bfloat16>(20, true); }

// Blocks of 64 keys that a launch loads, of keys and of values.
int64_t LoadedBlocks(const AttentionSizes& sizes, const AttentionTile& tile, Random& random) {
  AttentionProblem<__half> problem(sizes, random);
  emulator::TakeCopies();
  Launch(problem.arguments(), tile, random);
  EXPECT_LE(problem.WorstError("float16"), 1);
  const int64_t block = 64 * 64 * 2 / 16, tiles = CeilDiv(sizes.sequence, tile.queries);
  const int64_t copies = emulator::TakeCopies() - tiles * tile.queries / 64 * block;  // less those of queries
  EXPECT_EQ(copies % (2 * block), 0);
  return copies / (2 * block);
}

TEST(EmulatedAttentionSm90, BlocksOutsideOfTheWindowAreNotLoaded) {
  constexpr AttentionTile kFew = attention_sm90::kFewQueries, kLong = attention_sm90::kLong;
  Random random(emulator::Seed());
  AttentionSizes causal;
  causal.sequence = 64 * 6;
  causal.lengths = {causal.sequence};
  causal.window_right = 0;
  AttentionSizes own = causal, window = causal, masked = causal, blind = causal;
  own.window_left = 0;
  window.window_left = window.window_right = 1;
  masked.masks = Masks::kInt64, masked.lengths = {70};
  blind.masks = Masks::kInt32, blind.lengths = {70}, blind.window_left = 10;
  for (bool packed : {false, true}) {
    causal.packed = own.packed = window.packed = packed;
    EXPECT_EQ(LoadedBlocks(causal, kFew, random), 1 + 2 + 3 + 4 + 5 + 6);
    EXPECT_EQ(LoadedBlocks(causal, kLong, random), 2 + 4 + 6);
    EXPECT_EQ(LoadedBlocks(own, kFew, random), 6);
    EXPECT_EQ(LoadedBlocks(own, kLong, random), 6);
    EXPECT_EQ(LoadedBlocks(window, kFew, random), 2 + 3 + 3 + 3 + 3 + 2);
    EXPECT_EQ(LoadedBlocks(window, kLong, random), 3 + 4 + 3);
  }
  EXPECT_EQ(LoadedBlocks(masked, kFew, random), 1 + 5 * 2);
  EXPECT_EQ(LoadedBlocks(blind, kFew, random), 1 + 5 * 6);  // the first query without a key is 70 + 10
}

// Results in 8 bits: what QuantizeRows() makes of those in T, bit for bit, and nothing in rows of no sequence.
template <class T, class Quantized>
void TestQuantizing(int count) {
  constexpr int64_t kHeadSizes[] = {32, 64, 128};
  Random random(emulator::Seed());
  int variants = 0;
  for (int i = 0; i < count; ++i) {
    AttentionSizes sizes = emulator::DrawSizes(kHeadSizes, random);
    sizes.soft_cap = 0, sizes.bias_heads = 0;
    if (random.OneIn(2)) sizes.MakePlain(), sizes.has_bias = true;
    if (random.OneIn(4)) sizes.heads *= 3, sizes.kv_heads *= 3;
    if (random.OneIn(4)) sizes.table_places = sizes.sequence;
    const AttentionProblem<T> problem(sizes, random);
    AttentionArguments<T> a = problem.arguments();
    variants += !a.variant.IsPlain();
    AttentionTile tile;
    do {
      tile = kAttentionTiles[random.Between(0, std::size(kAttentionTiles) - 1)];
    } while (!HasAttentionTile(tile, sizes.head_size, sizes.packed));
    const int64_t rows = a.batch * a.sequence, columns = a.heads * a.head_size;
    DeviceArray<Quantized> expected(rows * columns), found(rows * columns);
    DeviceArray<float> smooth(columns), scale(1), expected_scales(rows), scales(rows);
    DeviceArray<int8_t> zero(1);
    DeviceArray<T> untouched(rows * columns);
    for (float& factor : smooth) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
    scale[0] = static_cast<float>(random.Between(1, 100)) * (std::is_same_v<Quantized, int8_t> ? 5e-4f : 1e-4f);
    if (random.OneIn(10)) scale[0] = random.OneIn(2) ? 0.0f : 3e-38f;
    const float* const factors = random.OneIn(2) ? smooth.data() : nullptr;
    SCOPED_TRACE(sizes.Text() + ", tile " + std::to_string(tile.queries) + " x " + std::to_string(tile.keys) +
                 ", scale " + std::to_string(scale[0]) + (factors == nullptr ? "" : ", smoothed"));
    const Device device = DrawDevice(tile, sizes.head_size, random);
    ASSERT_TRUE(AttentionSm90Supports(a, device));
    ASSERT_EQ(AttentionSm90(a, tile, device, nullptr), cudaSuccess) << emulator::TakeFault();
    PackedRows packed = {};
    if (sizes.packed) packed = {a.packed.cu_seqlens + a.packed.count, random.Between(0, rows)};
    QuantizeRowsArguments<T, Quantized> by_rows = {
        a.y, factors, scale.data(), expected.data(), expected_scales.data(), rows, columns, packed, true};
    zero[0] = static_cast<int8_t>(random.Between(-128, 127));
    if (std::is_same_v<Quantized, int8_t> && random.OneIn(2)) by_rows.zero = zero.data();
    ASSERT_EQ(QuantizeRows(by_rows, device, nullptr), cudaSuccess) << emulator::TakeFault();
    a.y = untouched.data();
    a.quantized = {found.data(), scales.data(), factors, !std::is_same_v<Quantized, int8_t>,
                   scale.data(), by_rows.zero};
    ASSERT_TRUE(AttentionSm90Quantizes(a.quantized));
    bool early = false;
    emulator::TheSettings().dependencies_end = [&] {
      early |= emulator::IsWritten(found) || emulator::IsWritten(scales);
    };
    emulator::TakeSharedAccesses();
    const cudaError_t error = AttentionSm90(a, tile, device, nullptr);
    emulator::TheSettings().dependencies_end = nullptr;
    ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
    EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
    EXPECT_FALSE(early) << "results were written before the kernels before had ended";
    EXPECT_FALSE(emulator::IsWritten(untouched)) << "y is written";
    for (int64_t at = 0; at < rows * columns; ++at) {
      const float is = ToFloat(found[at]), wanted = ToFloat(expected[at]);
      // NaN has two signs.
      if (std::memcmp(&found[at], &expected[at], 1) == 0 || (std::isnan(is) && std::isnan(wanted))) continue;
      FAIL() << at / columns << ", " << at % columns << ": " << is << ", expected " << wanted;
    }
    ASSERT_EQ(std::memcmp(scales.data(), expected_scales.data(), rows * sizeof(float)), 0);
  }
  std::printf("%d problems, %d of them variants\n", count, variants);
}

TEST(EmulatedAttentionSm90, Float16ToFp8) { TestQuantizing<__half, __nv_fp8_e4m3>(30); }
TEST(EmulatedAttentionSm90, Float16ToInt8) { TestQuantizing<__half, int8_t>(30); }
TEST(EmulatedAttentionSm90, Bfloat16ToFp8) { TestQuantizing<__nv_bfloat16, __nv_fp8_e4m3>(15); }
TEST(EmulatedAttentionSm90, Bfloat16ToInt8) { TestQuantizing<__nv_bfloat16, int8_t>(15); }

}  // namespace
}  // namespace bertfuse::kernels
