// Attention on tensor cores, in the emulator: random problems of every variant against float64.
#include <gtest/gtest.h>

#include <vector>

#include "emulator/attention_problem.h"
#include "kernels/mma/attention/kernels.cuh"

namespace bertfuse::kernels {
namespace {

using emulator::AttentionProblem;
using emulator::AttentionSizes;
using emulator::Masks;
using emulator::Random;

constexpr bool kTuring = BERTFUSE_EMULATED_CAPABILITY == 75;
constexpr int64_t kMostHeadSize = kTuring ? 192 : 256;  // of what shared memory has room for

using attention_mma::Math;

constexpr Device DeviceWith(int kilobytes) { return {kilobytes, BERTFUSE_EMULATED_CAPABILITY, 8, kilobytes << 10}; }
constexpr Device kLeast = DeviceWith(kTuring ? 64 : 99), kMost = DeviceWith(kTuring ? 64 : 227);

constexpr int64_t kBiasWords = 64 * 2 / 4;  // of V, that a block of head size 64 copies, whatever tiles it does

const int kDefaultSharedBytes = emulator::TheSettings().shared_bytes;

template <class T>
cudaError_t LaunchTile(const AttentionArguments<T>& a, const AttentionTile& tile, const Device& device) {
  if constexpr (sizeof(T) == 2) {
    return AttentionMma(a, tile, device, nullptr);
  } else {
    return a.allow_tf32 ? AttentionMmaTf32(a, tile, device, nullptr) : AttentionMmaThreeTf32(a, tile, device, nullptr);
  }
}

// By tiles of 128 queries, where there are any, or of 64; `last`: of the table's last row for the head size, if that
// takes the problem.
template <class T>
void Launch(const AttentionProblem<T>& problem, bool wide, uint64_t seed, Device device = kLeast, bool last = false) {
  const AttentionArguments<T>& a = problem.arguments();
  emulator::TheSettings().seed = seed;
  const Math math = attention_mma::MathOf<T>(a.allow_tf32);
  attention_mma::TileShape shape = *attention_mma::FindTileShape(math, a.head_size);
  attention_mma::ForTileShapes(math, a.head_size, [&](const attention_mma::TileShape& other) {
    const bool takes = (other.variants || a.variant.IsPlain()) && Fits(other, Narrow(other), device.shared_bytes);
    if (last && takes) shape = other;
  });
  if (sizeof(T) == 4 && !Fits(shape, Narrow(shape), device.shared_bytes)) {
    ASSERT_FALSE(AttentionMmaSupports(a, device));
    device = kMost;
  }
  emulator::TheSettings().shared_bytes = device.shared_bytes;
  ASSERT_TRUE(AttentionMmaSupports(a, device));
  const bool has_wide = shape.HasWide() && Fits(shape, Wide(shape), device.shared_bytes);
  const AttentionTile tile = wide && has_wide ? Wide(shape) : Narrow(shape);
  const cudaError_t error = LaunchTile(a, tile, device);
  emulator::TheSettings().shared_bytes = kDefaultSharedBytes;
  ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
}

constexpr int64_t Possible(int64_t head_size) { return std::min(head_size, kMostHeadSize); }
constexpr int64_t kHeadSizes[] = {16, 24, 32, 48, 64, 64, 72, 80, 96, 120, 128, Possible(192), Possible(256)};

// On devices whose shared memory has room for queries of their own, and on others.
template <class T>
void TestRandom(int count, bool tf32 = false) {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    const AttentionSizes sizes = DrawSizes(kHeadSizes, random);
    const bool wide = random.OneIn(2), most = random.OneIn(2), last = random.OneIn(2);
    SCOPED_TRACE(sizes.Text() + (wide ? "; wide" : "") + (most ? "; 227 KB" : "") + (last ? "; last row" : ""));
    AttentionProblem<T> problem(sizes, random);
    problem.arguments().allow_tf32 = tf32;
    Launch(problem, wide, random.Seed(), most ? kMost : kLeast, last);
    if (testing::Test::HasFatalFailure()) return;
    const double error = problem.WorstError(tf32 ? "tf32" : emulator::kDtype<T>);
    EXPECT_LE(error, 1);
    worst = std::max(worst, error);
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", count, worst);
}

TEST(EmulatedAttention, Float16) { TestRandom<__half>(40); }
#if BERTFUSE_EMULATED_CAPABILITY >= 80
TEST(EmulatedAttention, Bfloat16) { TestRandom<__nv_bfloat16>(20); }
TEST(EmulatedAttention, Tf32) { TestRandom<float>(20, true); }
TEST(EmulatedAttention, ThreeTf32) { TestRandom<float>(15); }
TEST(EmulatedAttention, SmallWeightsBesideALargeOne) {
  Random random(emulator::Seed());
  AttentionSizes sizes;
  sizes.head_size = 32;
  sizes.sequence = random.Between(1100, 1200);
  sizes.lengths = {sizes.sequence};
  AttentionProblem<float> problem(sizes, random);
  problem.MakeLopsided(random, -0.1 * static_cast<double>(random.Between(172, 185)), 0.0f);
  Launch(problem, random.OneIn(2), random.Seed());
  if (testing::Test::HasFatalFailure()) return;
  EXPECT_LE(problem.WorstError("float32"), 1);
}
#endif

// Vectors by distance: head sizes for which there are kernels, and what fits in 99 KB where that has room for it. Every
// third problem has gaps between packed tokens.
template <class T>
void TestPositions(int count, bool tf32 = false) {
  constexpr int64_t kSizes[] = {8, 24, 32, 64, 64, 64, 48, 128};
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    AttentionSizes sizes = DrawPositions(kSizes, random);
    if (i % 3 == 0) {
      constexpr int64_t kGaps[] = {1, 3, 40, 100};
      sizes.packed = true, sizes.gap_one_in = kGaps[random.Between(0, std::size(kGaps) - 1)];
      sizes.lengths.push_back(random.Between(2, 200));
    }
    SCOPED_TRACE(sizes.Text());
    AttentionProblem<T> problem(sizes, random);
    problem.arguments().allow_tf32 = tf32;
    const bool least = random.OneIn(2) && AttentionMmaSupports(problem.arguments(), kLeast);
    Launch(problem, false, random.Seed(), least ? kLeast : kMost);
    if (testing::Test::HasFatalFailure()) return;
    const double error = problem.WorstError(tf32 ? "tf32" : emulator::kDtype<T>);
    EXPECT_LE(error, 1);
    worst = std::max(worst, error);
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", count, worst);
}

#if BERTFUSE_EMULATED_CAPABILITY >= 80
TEST(EmulatedAttention, PositionsFloat16) { TestPositions<__half>(30); }
TEST(EmulatedAttention, PositionsBfloat16) { TestPositions<__nv_bfloat16>(15); }
TEST(EmulatedAttention, PositionsTf32) { TestPositions<float>(12, true); }
TEST(EmulatedAttention, PositionsThreeTf32) { TestPositions<float>(10); }

// Tokens of one sequence, and vectors for all of their distances.
AttentionSizes PackedPositions(int64_t length, int64_t rows) {
  AttentionSizes sizes;
  sizes.lengths = {length};
  sizes.packed = true, sizes.gap_one_in = 0;
  sizes.position_rows = rows, sizes.position_left = rows / 2;
  return sizes;
}

// Copies to shared memory by a launch: 16-byte chunks, and V's bias in words.
int64_t Copies(const AttentionProblem<__half>& problem, Random& random) {
  emulator::TakeCopies();
  Launch(problem, false, random.Seed());
  EXPECT_LE(problem.WorstError("float16"), 1);
  return emulator::TakeCopies();
}

// Gaps between tiles, but not between a tile's tokens, cost nothing; others only the tiles in which they are.
TEST(EmulatedAttention, PositionsBetweenGaps) {
  Random random(emulator::Seed());
  const AttentionSizes sizes = PackedPositions(3 * 64, 1024);
  const int64_t band = 2 * (64 + 64) * 8, at_once = 2 * 48 * 8;
  const int64_t tiles = 3 * (3 * 2 * 64 * 8 + kBiasWords);
  const auto with_gaps = [&](std::initializer_list<int64_t> before, int32_t gap) {
    AttentionProblem<__half> problem(sizes, random);
    for (int64_t token : before) {
      for (size_t row = token; row < problem.token_index().size(); ++row) problem.token_index()[row] += gap;
    }
    return Copies(problem, random);
  };
  EXPECT_EQ(with_gaps({}, 0), tiles + 9 * band);
  EXPECT_EQ(with_gaps({64, 128}, 50), tiles + 9 * band);
  // Distances between the last 64 tokens and each other, and the others, before and behind: 127 + 2 * 20, 127 + 20.
  EXPECT_EQ(with_gaps({130}, 20), tiles + 4 * band + (4 * 4 + 4) * at_once);
  // Behind all vectors: those of 65 distances and the last, four times; of 123, the first and the last.
  EXPECT_EQ(with_gaps({130}, 1 << 20), tiles + 4 * band + (4 * (2 + 1) + 3 + 1 + 1) * at_once);
}

// Places of tokens side by side change no bit, and one gap changes nothing of those before it in a causal window.
TEST(EmulatedAttention, PositionsOfTokensSideBySide) {
  Random random(emulator::Seed());
  AttentionSizes sizes = PackedPositions(150, 90);
  sizes.window_right = 0;
  AttentionProblem<__half> problem(sizes, random);
  const auto results = [&] {
    Launch(problem, false, random.Seed());
    EXPECT_LE(problem.WorstError("float16"), 1);
    std::vector<float> y;
    for (int64_t i = 0; i < 150 * 64; ++i) y.push_back(ToFloat(problem.Y(0, i / 64, i % 64)));
    return y;
  };
  const std::vector<float> with_places = results();
  problem.arguments().packed.token_index = nullptr;
  EXPECT_EQ(results(), with_places);
  problem.arguments().packed.token_index = problem.token_index().data();
  for (size_t row = 100; row < problem.token_index().size(); ++row) problem.token_index()[row] += 7;
  std::vector<float> with_gap = results();
  with_gap.resize(64 * 64);  // those whose tiles of keys have none
  EXPECT_TRUE(std::equal(with_gap.begin(), with_gap.end(), with_places.begin()));
}

// Whatever places are, no other row is read, and a sequence's results are its own.
TEST(EmulatedAttention, PositionsOfPlacesThatDoNotAscend) {
  Random random(emulator::Seed());
  AttentionSizes sizes = PackedPositions(100, 300);
  AttentionProblem<__half> problem(sizes, random);
  for (size_t row = 0; row < problem.token_index().size(); ++row) {
    problem.token_index()[row] = static_cast<int32_t>(random.Seed());
  }
  Launch(problem, false, random.Seed());
  const auto first = [&] { return std::vector<float>{ToFloat(problem.Y(0, 0, 0)), ToFloat(problem.Y(0, 99, 63))}; };
  const std::vector<float> y = first();
  Launch(problem, false, random.Seed());
  EXPECT_EQ(first(), y);
}
#endif

// Each head size, one of each block's width, without a bank conflict where rows are a power of two.
TEST(EmulatedAttention, EveryHeadSize) {
  Random random(emulator::Seed());
  for (int64_t head_size = 8; head_size <= kMostHeadSize; head_size += 8) {
    AttentionSizes sizes;
    sizes.head_size = head_size;
    sizes.sequence = random.Between(65, 140);
    sizes.lengths = {sizes.sequence};
    const bool wide = head_size % 16 == 0;
    SCOPED_TRACE(sizes.Text());
    AttentionProblem<__half> problem(sizes, random);
    emulator::TakeSharedAccesses();
    Launch(problem, wide, random.Seed());
    if (testing::Test::HasFatalFailure()) return;
    const int64_t conflicts = emulator::TakeSharedAccesses().conflicts;
    if ((head_size & (head_size - 1)) == 0 && head_size >= 32) {
      EXPECT_EQ(conflicts, 0);
    }
    EXPECT_LE(problem.WorstError("float16"), 1);
  }
}

// Tiles of 128 keys, or of 64 for head size 128, without a bank conflict: plain attention over a few tiles, masked and
// packed.
TEST(EmulatedAttention, OneStage) {
  Random random(emulator::Seed());
  constexpr int64_t kSize[] = {64, 128};
  double worst = 0;
  for (int i = 0; i < 30; ++i) {
    AttentionSizes sizes = DrawSizes(kSize, random);
    sizes.MakePlain();
    const bool wide = random.OneIn(2);
    SCOPED_TRACE(sizes.Text() + (wide ? "; wide" : ""));
    AttentionProblem<__half> problem(sizes, random);
    emulator::TakeSharedAccesses();
    Launch(problem, wide, random.Seed(), random.OneIn(2) ? kMost : kLeast, true);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
    const double error = problem.WorstError("float16");
    EXPECT_LE(error, 1);
    worst = std::max(worst, error);
  }
  std::printf("the worst error is %.2f of what is allowed\n", worst);
}

// 64-key tiles that a launch loads, of keys and of values: all of one head.
int64_t LoadedTiles(const AttentionSizes& sizes, Random& random) {
  AttentionProblem<__half> problem(sizes, random);
  emulator::TakeCopies();
  Launch(problem, false, random.Seed());
  EXPECT_LE(problem.WorstError("float16"), 1);
  const int64_t blocks = (sizes.sequence + 63) / 64, tile = 2 * 64 * 64 * 2 / 16;
  const int64_t copies = emulator::TakeCopies() - blocks * kBiasWords;
  EXPECT_EQ(copies % tile, 0);
  return copies / tile;
}

TEST(EmulatedAttention, TilesOutsideOfTheKeysAreNotLoaded) {
  Random random(emulator::Seed());
  AttentionSizes all;
  all.sequence = 64 * 5;  // 5 tiles of 64 queries
  all.lengths = {all.sequence};
  EXPECT_EQ(LoadedTiles(all, random), 5 * 5);
  AttentionSizes causal = all;
  causal.window_right = 0;
  EXPECT_EQ(LoadedTiles(causal, random), 1 + 2 + 3 + 4 + 5);
  AttentionSizes own = causal;
  own.window_left = 0;
  EXPECT_EQ(LoadedTiles(own, random), 5);
  AttentionSizes window = all;
  window.window_left = window.window_right = 1;
  EXPECT_EQ(LoadedTiles(window, random), 2 + 3 + 3 + 3 + 2);
  window.window_left = window.window_right = 65;
  EXPECT_EQ(LoadedTiles(window, random), 3 + 4 + 5 + 4 + 3);
  AttentionSizes masked = all;
  masked.masks = Masks::kInt64;
  masked.lengths = {70};
  EXPECT_EQ(LoadedTiles(masked, random), 5 * 2);
  masked.lengths = {0};  // the first two tiles, before the mask is known; then the values of all, which come alone
  masked.masks = Masks::kInt32;
  AttentionProblem<__half> hidden(masked, random);
  emulator::TakeCopies();
  Launch(hidden, false, random.Seed());
  EXPECT_LE(hidden.WorstError("float16"), 1);
  EXPECT_EQ(emulator::TakeCopies(), 5 * ((2 + 2 + 5) * (64 * 64 * 2 / 16) + kBiasWords));
}

// A mask whose bits do not fit into shared memory at once, and most of whose tiles are hidden.
TEST(EmulatedAttention, LongMask) {
  Random random(emulator::Seed());
  AttentionSizes sizes;
  sizes.head_size = 32;
  sizes.sequence = 4096 + random.Between(1, 300);
  sizes.lengths = {sizes.sequence};
  sizes.masks = Masks::kInt32;
  sizes.hole_one_in = 700;
  sizes.window_left = 40, sizes.window_right = int64_t{1} << 31;
  AttentionProblem<__half> problem(sizes, random);
  auto* mask = static_cast<int32_t*>(const_cast<void*>(problem.arguments().mask));
  for (int64_t key = 0; key < sizes.sequence; ++key) mask[key] = mask[key] == 0;
  Launch(problem, true, random.Seed());
  if (testing::Test::HasFatalFailure()) return;
  EXPECT_LE(problem.WorstError("float16"), 1);
}

// A sequence has the same bits alone and in a batch, with more or less padding, packed, and by both kinds of blocks.
template <class T>
void TestBits(bool tf32, std::initializer_list<int64_t> head_sizes) {
  Random random(emulator::Seed());
  for (int64_t head_size : head_sizes) {
    const int64_t length = random.Between(70, 180);
    AttentionSizes alone;
    alone.head_size = head_size;
    alone.heads = 2;
    alone.sequence = length;
    alone.lengths = {length};
    AttentionSizes padded = alone;
    padded.sequence = length + random.Between(1, 90);
    padded.lengths = {length, random.Between(0, padded.sequence)};
    padded.masks = Masks::kInt64;
    AttentionSizes packed = alone;
    packed.packed = true;
    packed.lengths = {random.Between(0, 100), length};
    SCOPED_TRACE(padded.Text());
    AttentionProblem<T> first(alone, random), second(padded, random), third(packed, random);
    // Of one sequence the same data, far apart in size, so that maxima rise and references with them.
    for (auto& x : first.qkv()) x = FromFloat<T>(ToFloat(x) * static_cast<float>(random.Between(1, 3)));
    for (AttentionProblem<T>* other : {&second, &third}) {
      const int64_t at = other->FirstRow(other == &third) * first.columns();
      std::copy(first.qkv().begin(), first.qkv().end(), other->qkv().begin() + at);
      std::copy(first.bias().begin(), first.bias().end(), other->bias().begin());
    }
    for (AttentionProblem<T>* problem : {&first, &second, &third}) problem->arguments().allow_tf32 = tf32;
    Launch(first, false, random.Seed());
    Launch(second, true, random.Seed(), kMost);
    Launch(third, random.OneIn(2), random.Seed());
    if (testing::Test::HasFatalFailure()) return;
    int64_t differ = 0;
    for (int64_t i = 0; i < length * 2 * head_size; ++i) {
      const int64_t row = i / (2 * head_size), column = i % (2 * head_size);
      const T expected = first.Y(0, row, column);
      const T others[] = {second.Y(0, row, column), third.Y(1, row, column)};
      differ +=
          std::memcmp(&expected, &others[0], sizeof(T)) != 0 || std::memcmp(&expected, &others[1], sizeof(T)) != 0;
    }
    EXPECT_EQ(differ, 0);
  }
}

TEST(EmulatedAttention, BitsDependOnTheSequenceAlone) { TestBits<__half>(false, {32, 64, 96, 128}); }
#if BERTFUSE_EMULATED_CAPABILITY >= 80
TEST(EmulatedAttention, BitsOfFloat32DependOnTheSequenceAlone) {
  TestBits<float>(true, {32, 64});
  TestBits<float>(false, {64, 96});
}
#endif

// Offsets that no packing makes: results mean nothing, but nothing outside of the rows is read or written.
TEST(EmulatedAttention, BrokenOffsets) {
  Random random(emulator::Seed());
  for (int i = 0; i < 4; ++i) {
    AttentionSizes sizes;
    sizes.packed = true;
    sizes.head_size = 32;
    for (int s = 0; s < 5; ++s) sizes.lengths.push_back(random.Between(0, 90));
    sizes.gap_one_in = i % 2 == 0 ? -1 : 0;
    sizes.window_left = 17, sizes.bias_heads = 1, sizes.bias_columns = 9;
    AttentionProblem<__half> problem(sizes, random);
    auto* offsets = const_cast<int32_t*>(problem.arguments().packed.cu_seqlens);
    for (int s = 0; s <= 5; ++s) offsets[s] = static_cast<int32_t>(random.Between(-300, 700));
    auto* index = const_cast<int32_t*>(problem.arguments().packed.token_index);
    const auto rows = index == nullptr ? 0 : problem.arguments().packed.rows;
    for (int row = 0; row < rows; ++row) index[row] = static_cast<int32_t>(random.Between(INT32_MIN, INT32_MAX));
    Launch(problem, random.OneIn(2), random.Seed());
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace bertfuse::kernels
