// The Hopper matrix products in the emulator: every tile that is compiled, random sizes, clusters and splits.
#include <gtest/gtest.h>

#include "emulator/gemm_problem.h"

namespace bertfuse::kernels {
namespace {

using emulator::Random;
using gemm_sm90::kLayerNormBlocks;
using gemm_sm90::kOneTileBlocks;
using gemm_sm90::kPersistentBlocks;
using gemm_sm90::kSplitKBlocks;

// A cluster of 1 to 8 blocks that the tile takes; `multiple`: of the rows of weight that a block loads.
void DrawCluster(Random* random, int multiple, GemmTile* tile) {
  do {
    tile->cluster_m = static_cast<int>(random->Between(1, kMaxCluster));
    tile->cluster_n = static_cast<int>(random->Between(1, kMaxCluster));
    if (random->OneIn(3)) tile->cluster_m = tile->cluster_n = 1;
  } while (tile->cluster_m * tile->cluster_n > kMaxCluster || tile->block.n % (multiple * tile->cluster_m) != 0);
}

// Few multiprocessors, so that few tiles are several waves. What is resident is asked once for each device.
Device DrawDevice(Random* random, const GemmTile& tile) {
  emulator::Settings& settings = emulator::TheSettings();
  const int cluster = tile.cluster_m * tile.cluster_n;
  settings.compute_capability = 90;
  settings.multiprocessors = cluster * static_cast<int>(random->Between(1, 3));
  settings.blocks_per_multiprocessor = tile.block.per_multiprocessor;
  settings.shared_bytes = 227 << 10;
  settings.seed = random->Seed();
  return {settings.multiprocessors, 90, settings.multiprocessors, settings.shared_bytes, 228 << 10};
}

// A size of up to `tiles` tiles, often with an incomplete one.
int64_t DrawSize(Random* random, int64_t tiles, int tile, int multiple) {
  const int64_t size = random->Between(1, tiles * tile);
  return (random->OneIn(3) ? size / tile * tile + tile : size + multiple - 1) / multiple * multiple;
}

struct Result {
  int problems = 0;
  double worst = 0;
  ~Result() { std::printf("%d problems, the worst error is %.2f of what is allowed\n", problems, worst); }
  void Add(const emulator::Comparison& comparison) {
    EXPECT_LE(comparison.worst(), 1);
    ++problems;
    worst = std::max(worst, comparison.worst());
  }
};

template <class T>
testing::Message Describe(const GemmProblem<T>& problem, const GemmTile& tile) {
  const auto& a = problem.arguments;
  testing::Message text;
  text << a.m << " x " << a.n << " x " << a.k << ", tile " << tile.block.m << " x " << tile.block.n << ", "
       << tile.block.stages << " stages, cluster " << tile.cluster_m << " x " << tile.cluster_n << ", " << tile.splits
       << " splits" << (a.weights_are_constant ? ", constant weights" : "")
       << (a.last_rows_first ? ", last rows first" : "") << (a.dependents_begin_late ? ", dependents late" : "");
  if (a.packed.row_count != nullptr) text << ", packed: " << problem.rows() << ", expected " << a.packed.expected;
  return text;
}

template <class T, class Launch>
bool Run(GemmProblem<T>* problem, Launch&& launch) {
  problem->Prepare();
  emulator::TakeSharedAccesses();
  emulator::TakeEarlyDependents();
  const cudaError_t error = launch();
  emulator::TheSettings().dependencies_end = nullptr;
  EXPECT_EQ(error, cudaSuccess) << emulator::TakeFault();
  EXPECT_FALSE(problem->wrote_early()) << "results were written before the kernels before had ended";
  EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
  EXPECT_FALSE(emulator::TakeEarlyDependents() && problem->arguments.dependents_begin_late);
  return error == cudaSuccess;
}

template <class T>
void CheckElementwise(const GemmProblem<T>& problem, Result* result) {
  const auto& a = problem.arguments;
  const std::vector<double> product = problem.Product();
  emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmGelu", emulator::kDtype<T>));
  for (int64_t i = 0; i < problem.rows() * a.n; ++i) {
    comparison.Add(ToFloat(a.y[i]), problem.AfterActivation(product[i], i % a.n));
  }
  result->Add(comparison);
}

// Calls test(block, packed) for each of the blocks, `count` times.
template <size_t kCount, class Test>
void ForEachBlock(const GemmBlock (&blocks)[kCount], int count, Test&& test) {
  for (const GemmBlock& block : blocks) {
    for (int i = 0; i < 2 * count; ++i) {
      test(block, i % 2 == 1);
      if (testing::Test::HasFailure()) return;
    }
  }
}

template <class T>
void TestPersistent() {
  Random random(emulator::Seed());
  Result result;
  ForEachBlock(kPersistentBlocks, 4, [&](const GemmBlock& block, bool packed) {
    GemmTile tile = {block};
    DrawCluster(&random, 32, &tile);
    const int64_t m = DrawSize(&random, random.Between(1, 4) * tile.cluster_m, block.m, 1);
    const int64_t n = DrawSize(&random, random.Between(1, 3) * tile.cluster_n, block.n, 32);
    const int64_t k = DrawSize(&random, 2 * block.stages / tile.cluster_m, kStageK<T>, 8);
    GemmProblem<T> problem(&random, m, n, k, packed);
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile));
    if (Run(&problem, [&] { return GemmSm90Elementwise(tile, problem.arguments, device, nullptr); })) {
      CheckElementwise(problem, &result);
    }
  });
}

// A tile of a one-tile block, and a problem of some of them.
template <class T>
GemmProblem<T> DrawOneTile(Random* random, const GemmBlock& block, bool packed, GemmTile* tile) {
  *tile = {block};
  DrawCluster(random, 8, tile);
  const int64_t m = DrawSize(random, random->Between(1, 3) * tile->cluster_m, block.m, 1);
  const int64_t n = DrawSize(random, random->Between(1, 2) * tile->cluster_n, block.n, 8);
  const int64_t k = DrawSize(random, std::max(1, 2 * block.stages / tile->cluster_m), kStageK<T>, 8);
  return GemmProblem<T>(random, m, n, k, packed);
}

// Of a pre-norm block: y is the sum with the residual.
template <class T>
void TestResidual() {
  Random random(emulator::Seed());
  Result result;
  ForEachBlock(gemm_sm90::kResidualBlocks, 3, [&](const GemmBlock& block, bool packed) {
    GemmTile tile;
    GemmProblem<T> problem = DrawOneTile<T>(&random, block, packed, &tile);
    problem.AddResidual();
    auto& a = problem.arguments;
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile));
    if (!Run(&problem, [&] { return GemmSm90(GemmForm::kRounded, tile, a, device, nullptr); })) return;
    const std::vector<double> product = problem.Product();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmResidualNorm", emulator::kDtype<T>));
    for (int64_t i = 0; i < problem.rows() * a.n; ++i) {
      comparison.Add(ToFloat(a.y[i]), problem.WithResidual(product[i], i / a.n, i % a.n));
    }
    result.Add(comparison);
    tile.splits = 2;
    EXPECT_EQ(GemmSm90(GemmForm::kRounded, tile, a, device, nullptr), cudaErrorInvalidConfiguration);
  });
}

// k of the tiles of the last wave is split.
template <class T>
void TestLastWave() {
  Random random(emulator::Seed());
  Result result;
  ForEachBlock(kPersistentBlocks, 3, [&](const GemmBlock& block, bool packed) {
    GemmTile tile = {block};
    DrawCluster(&random, 32, &tile);
    const int64_t m = DrawSize(&random, random.Between(1, 4) * tile.cluster_m, block.m, 1);
    const int64_t n = DrawSize(&random, random.Between(1, 2) * tile.cluster_n, block.n, 32);
    const int stages = static_cast<int>(random.Between(2, 8));
    tile.splits = static_cast<int>(random.Between(2, std::min(stages, 4)));
    const int per_split = (stages + tile.splits - 1) / tile.splits;
    tile.splits = (stages + per_split - 1) / per_split;
    GemmProblem<T> problem(&random, m, n, stages * kStageK<T> - random.Between(0, 3) * 8, packed);
    problem.BareProduct();
    const Device device = DrawDevice(&random, tile);
    auto& a = problem.arguments;
    a.last_wave = {tile.cluster_m * block.m, static_cast<int>(CeilDiv(n, int64_t{tile.cluster_n} * block.n)),
                   device.multiprocessors / (tile.cluster_m * tile.cluster_n)};
    a.partial_rows = MaxRowsLeft(a.last_wave, m);
    emulator::DeviceArray<T> partials((tile.splits - 1) * a.partial_rows * n);
    a.partials = partials.data();
    SCOPED_TRACE(Describe(problem, tile));
    if (!Run(&problem, [&] { return GemmSm90Elementwise(tile, a, device, nullptr); })) return;
    const std::vector<double> product = problem.Product();
    const int64_t unsplit = RowsOfFullPanels(a.last_wave, problem.rows());
    emulator::Tolerance tolerance = emulator::ToleranceOf("FusedGemm", emulator::kDtype<T>);
    tolerance.atol *= tile.splits;  // each split's sums are rounded
    emulator::Comparison comparison(tolerance);
    for (int64_t row = 0; row < problem.rows(); ++row) {
      for (int64_t column = 0; column < n; ++column) {
        double sum = ToFloat(a.y[row * n + column]);
        for (int split = 1; split < tile.splits && row >= unsplit; ++split) {
          sum += ToFloat(partials[((split - 1) * a.partial_rows + row - unsplit) * n + column]);
        }
        comparison.Add(sum, product[row * n + column]);
      }
    }
    result.Add(comparison);
  });
}

template <class T>
void TestOneTile() {
  Random random(emulator::Seed());
  Result result;
  ForEachBlock(kOneTileBlocks, 2, [&](const GemmBlock& block, bool packed) {
    GemmTile tile;
    GemmProblem<T> problem = DrawOneTile<T>(&random, block, packed, &tile);
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile));
    if (Run(&problem, [&] { return GemmSm90Elementwise(tile, problem.arguments, device, nullptr); })) {
      CheckElementwise(problem, &result);
    }
  });
}

template <class T>
void TestGated() {
  Random random(emulator::Seed());
  Result result;
  const auto test = [&](const GemmBlock& block, bool packed) {
    GemmTile tile = {block};
    const int rows = gemm_sm90::IsPersistent(block) ? 32 : 8;  // of each factor
    DrawCluster(&random, 2 * rows, &tile);
    const int64_t m = DrawSize(&random, random.Between(1, 3) * tile.cluster_m, block.m, 1);
    const int64_t n = DrawSize(&random, random.Between(1, 3) * tile.cluster_n, block.n / 2, rows);
    const int64_t k = DrawSize(&random, std::max(1, 2 * block.stages / tile.cluster_m), kStageK<T>, 8);
    GemmProblem<T> problem(&random, m, 2 * n, k, packed, true);
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile));
    if (!Run(&problem, [&] { return GemmSm90Gated(tile, problem.arguments, device, nullptr); })) return;
    const std::vector<double> product = problem.Product();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGatedGemm", emulator::kDtype<T>));
    for (int64_t i = 0; i < problem.rows() * n; ++i) {
      comparison.Add(ToFloat(problem.arguments.y[i]), problem.Gated(&product[i / n * 2 * n], i % n));
    }
    result.Add(comparison);
  };
  ForEachBlock(kPersistentBlocks, 3, test);
  ForEachBlock(gemm_sm90::kGatedOneTileBlocks, 3, test);
}

template <class T>
void TestRotating() {
  Random random(emulator::Seed());
  Result result;
  const auto test = [&](const GemmBlock& block, bool packed) {
    GemmTile tile = {block};
    DrawCluster(&random, gemm_sm90::IsPersistent(block) ? 32 : 8, &tile);
    const int64_t m = DrawSize(&random, random.Between(1, 4) * tile.cluster_m, block.m, 1);
    const int64_t n = std::max<int64_t>(
        3 * kEpilogueHead, DrawSize(&random, random.Between(1, 3) * tile.cluster_n, block.n, kEpilogueHead));
    const int64_t k = DrawSize(&random, std::max(1, 2 * block.stages / tile.cluster_m), kStageK<T>, 8);
    GemmProblem<T> problem(&random, m, CeilDiv(n, kEpilogueHead) * kEpilogueHead, k, packed);
    problem.AddRotation(&random);
    const auto& a = problem.arguments;
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile) << ", " << a.rotation.heads << " and " << a.rotation.kv_heads << " heads, "
                                         << a.rotation.table_rows << (a.rotation.places ? " places given" : " places"));
    if (!Run(&problem, [&] { return GemmSm90(GemmForm::kComplete, tile, a, device, nullptr); })) return;
    const std::vector<double> product = problem.Product();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmRotary", emulator::kDtype<T>));
    for (int64_t i = 0; i < problem.rows() * a.n; ++i) {
      comparison.Add(ToFloat(a.y[i]), problem.Rotated(&product[i / a.n * a.n], i / a.n, i % a.n));
    }
    result.Add(comparison);
  };
  ForEachBlock(gemm_sm90::kRotatingPersistentBlocks, 4, test);
  ForEachBlock(gemm_sm90::kRotatingOneTileBlocks, 3, test);
}

template <class T>
void TestLayerNorm() {
  Random random(emulator::Seed());
  Result result;
  ForEachBlock(kLayerNormBlocks, 4, [&](const GemmBlock& block, bool packed) {
    GemmTile tile = {block};
    DrawCluster(&random, 8, &tile);
    const int64_t m = DrawSize(&random, random.Between(1, 3) * tile.cluster_m, block.m, 1);
    const int64_t k = DrawSize(&random, std::max(1, 2 * block.stages / tile.cluster_m), kStageK<T>, 8);
    GemmProblem<T> problem(&random, m, int64_t{block.n} * tile.cluster_n, k, packed);
    problem.AddNorm(&random);
    const auto& a = problem.arguments;
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile) << (a.residual == nullptr ? ", no residual" : ""));
    if (!Run(&problem, [&] { return GemmSm90LayerNorm(tile, a, device, nullptr); })) return;
    const std::vector<double> product = problem.Product();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmGeluLayerNorm", emulator::kDtype<T>));
    for (int64_t row = 0; row < problem.rows(); ++row) {
      const std::vector<double> expected = problem.Normalized(&product[row * a.n], row);
      for (int64_t column = 0; column < a.n; ++column) {
        comparison.Add(ToFloat(a.y[row * a.n + column]), expected[column]);
      }
    }
    result.Add(comparison);
  });
}

template <class T>
void TestSplitK() {
  Random random(emulator::Seed());
  Result result;
  ForEachBlock(kSplitKBlocks, 6, [&](const GemmBlock& block, bool packed) {
    GemmTile tile = {block};
    DrawCluster(&random, 8, &tile);
    const int64_t m = DrawSize(&random, random.Between(1, 3) * tile.cluster_m, block.m, 1);
    const int64_t n = DrawSize(&random, random.Between(1, 2) * tile.cluster_n, block.n, 8);
    const int stages = static_cast<int>(random.Between(1, 16));
    const int per_split = static_cast<int>(random.Between((stages + 3) / 4, stages));
    tile.splits = (stages + per_split - 1) / per_split;
    if ((stages + tile.splits - 1) / tile.splits * (tile.splits - 1) >= stages) tile.splits = 1;
    GemmProblem<T> problem(&random, m, n, stages * kStageK<T> - random.Between(0, 3) * 8, packed);
    auto& a = problem.arguments;
    emulator::DeviceArray<float> sums(tile.splits * m * n);
    a.float_partials = sums.data();
    const Device device = DrawDevice(&random, tile);
    SCOPED_TRACE(Describe(problem, tile));
    if (!Run(&problem, [&] { return GemmSm90SplitK(tile, a, device, nullptr); })) return;
    const std::vector<double> product = problem.Product();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemm", "float32"));
    for (int64_t i = 0; i < problem.rows() * n; ++i) {
      double sum = 0;
      for (int split = 0; split < tile.splits; ++split) sum += sums[split * m * n + i];
      comparison.Add(sum, product[i]);
    }
    result.Add(comparison);
  });
}

TEST(EmulatedGemmSm90, GatedFloat16) { TestGated<__half>(); }
TEST(EmulatedGemmSm90, GatedBfloat16) { TestGated<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, RotatingFloat16) { TestRotating<__half>(); }
TEST(EmulatedGemmSm90, RotatingBfloat16) { TestRotating<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, ResidualFloat16) { TestResidual<__half>(); }
TEST(EmulatedGemmSm90, ResidualBfloat16) { TestResidual<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, PersistentFloat16) { TestPersistent<__half>(); }
TEST(EmulatedGemmSm90, PersistentBfloat16) { TestPersistent<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, LastWaveFloat16) { TestLastWave<__half>(); }
TEST(EmulatedGemmSm90, LastWaveBfloat16) { TestLastWave<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, OneTileFloat16) { TestOneTile<__half>(); }
TEST(EmulatedGemmSm90, OneTileBfloat16) { TestOneTile<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, LayerNormFloat16) { TestLayerNorm<__half>(); }
TEST(EmulatedGemmSm90, LayerNormBfloat16) { TestLayerNorm<__nv_bfloat16>(); }
TEST(EmulatedGemmSm90, SplitKFloat16) { TestSplitK<__half>(); }
TEST(EmulatedGemmSm90, SplitKBfloat16) { TestSplitK<__nv_bfloat16>(); }

}  // namespace
}  // namespace bertfuse::kernels
