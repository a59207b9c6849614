#include "ops/gemm_time.h"

#include <algorithm>
#include <limits>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;
using Block = kernels::GemmSm90Block;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMillion = 1e6;

// Times in microseconds. `once` is paid once; `stage` for each of the pipeline's stages (64 along k) in each wave of as
// many blocks as run at a time; `load` for each stage, times the fraction of such a wave that all blocks make up,
// because they contend for power and for the L2 cache; `gelu` is what GELU adds.
//
// Least squares over two sets of measurements on H200s, float16, 2026-11-22: tactics of 116 products in whole models
// (bert-base, bert-large and MiniLM, padded and packed, 128 to 12,288 rows; only differences within a product count),
// and those of 56 products by themselves (512 to 8,500 rows), which count less. Some times were then moved by up to
// half a microsecond, because two products' tactics together gave another result than each of them. What is marked "by
// hand" does not come from the fit. docs/kernels.md says how accurate the times are.
struct BlockTime {
  Block block;
  double once, stage, load, gelu;
};

constexpr BlockTime kOneTile[] = {
    {{128, 128, 7, 1}, 3.20, 0.216, 0.134, 0.96}, {{128, 128, 3, 2}, 2.50, 0.430, 0.373, 0.59},
    {{128, 96, 8, 1}, 3.34, 0.142, 0.138, 0.73},  {{128, 96, 4, 2}, 2.25, 0.375, 0.272, 0.36},
    {{64, 64, 12, 1}, 1.38, 0.130, 0.050, 0.50},  {{64, 96, 10, 1}, 3.73, 0.100, 0.066, 0.50},
    {{192, 192, 4, 1}, 2.00, 0.720, 0.090, 2.40},
};
constexpr BlockTime kWithLayerNorm[] = {
    {{128, 128, 3, 2}, 5.96, 0.498, 0.298, 0.50},
    {{64, 128, 4, 2}, 4.82, 0.240, 0.227, 0.50},
    {{64, 96, 5, 2}, 5.20, 0.182, 0.150, 0.50},
};
constexpr BlockTime kSplitK = {{64, 96, 10, 1}, 2.32, 0.130, 0, 0};
constexpr BlockTime kPersistent[] = {
    {{128, 192, 5, 1}, 2.25, 0.256, 0.306, 2.40},
    {{192, 128, 5, 1}, 3.20, 0.256, 0.306, 2.40},
    {{128, 128, 6, 1}, 2.65, 0.216, 0.134, 0.70},
};

constexpr double kClusterOfTwo = 0.94;     // of the load where two blocks share the weight that they read; by hand
constexpr double kOneWave = 1.5;           // a persistent product of a single wave hides no epilogue; by hand
constexpr double kPackedAlone = 1.15;      // packed rows with a long k, in blocks that share no multiprocessor; by hand
constexpr double kClusterOfThree = 0.98;   // of split-K, where three blocks share the weight that they read; by hand
constexpr int64_t kMinStagesPerSplit = 8;  // of each split of the last wave: a shorter one saves less than it costs,
constexpr int64_t kMinStagesOfFewTiles = 6;     // except where full waves leave no more than a quarter of one
constexpr int64_t kMinStagesOfLargeTiles = 12;  // stages of a 192 x 192 tile, and of a persistent one of 128 x 128
constexpr int kMaxFloatPartials = 4;            // with few rows

// The launch of LayerNorm over the product, by millions of elements; what float32 partial sums add; and what the last
// wave's partial sums in 16 bits add, with `kSplits` where all rows have them.
constexpr double kLayerNorm = 1.56, kElements = 1.13, kFloatPartials = 2.60, kSplits = 1.45, kPartials = 0.30;

double Millions(int64_t rows, int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns) / kMillion;
}

int64_t Blocks(const GemmProblem& problem, const GemmSm90Tile& tile) {
  const int64_t rows = CeilDiv(problem.m, static_cast<int64_t>(tile.cluster_m) * tile.block.m) * tile.cluster_m;
  return rows * CeilDiv(problem.n, static_cast<int64_t>(tile.cluster_n) * tile.block.n) * tile.cluster_n;
}

double TimeOf(const BlockTime& time, const GemmProblem& problem, const GemmSm90Tile& tile, double rounds) {
  const int64_t places = static_cast<int64_t>(problem.multiprocessors) * tile.block.per_multiprocessor;
  const double share = static_cast<double>(Blocks(problem, tile)) / static_cast<double>(places);
  const bool pairs = tile.cluster_m * tile.cluster_n == 2 && tile.splits == 1;
  const double load = time.load * (pairs ? kClusterOfTwo : 1) * share;
  return time.once + (rounds * time.stage + load) * static_cast<double>(Stages(problem));
}

bool IsOfSize(const Block& block, int m, int n) { return block.m == m && block.n == n; }

// Null: there is none.
template <size_t kCount>
const BlockTime* Find(const BlockTime (&times)[kCount], const Block& block) {
  const auto* time =
      std::find_if(std::begin(times), std::end(times), [&](const BlockTime& entry) { return entry.block == block; });
  return time == std::end(times) ? nullptr : time;
}

double OneTileTime(const GemmProblem& problem, const GemmSm90Tile& tile) {
  const BlockTime* time = Find(kOneTile, tile.block);
  if (time == nullptr || tile.cluster_m > 2) return kNever;
  // An odd number of rows of the largest tiles may leave room for pairs that share x, but not for pairs that share
  // the weight. Ahead of LayerNorm these tiles never won; with k = 384 MiniLM took 3% longer for 4,131 packed rows; and
  // with a tile for 108 of 132 multiprocessors bert-base took 0.831 ms for 1,683 packed rows, without 0.806 to 0.814
  // (in another run).
  const bool largest = IsOfSize(tile.block, 192, 192);
  if (tile.cluster_n > (largest && tile.cluster_m == 1 ? 2 : 1)) return kNever;
  if (largest && (problem.layer_norm || Stages(problem) < kMinStagesOfLargeTiles)) return kNever;
  // Blocks that take a multiprocessor to themselves are for a single wave, the others for more.
  const bool alone = tile.block.per_multiprocessor == 1;
  const int64_t blocks = Blocks(problem, tile);
  const int64_t tiles = CeilDiv(problem.m, tile.block.m) * CeilDiv(problem.n, tile.block.n);
  if (largest && 10 * tiles < 9 * problem.multiprocessors) return kNever;
  if (alone != (blocks <= problem.multiprocessors)) return kNever;
  const bool narrow = IsOfSize(tile.block, 128, 96);
  if (tile.cluster_m == 2 && (!alone || (problem.layer_norm && !narrow))) return kNever;
  // With more blocks a split last wave of the persistent kernel is faster: MiniLM took 0.366 instead of 0.383 ms for
  // 4,131 packed rows, bert-base 1 to 3% less at 5x300 and 3x512.
  if (narrow && alone && HasLongK(problem) && 3 * blocks > 2 * problem.multiprocessors) return kNever;
  const auto rounds = static_cast<double>(CeilDiv(blocks, 2 * problem.multiprocessors));
  const double microseconds = TimeOf(*time, problem, tile, rounds) + (problem.gelu ? time->gelu * rounds : 0);
  return microseconds * (alone && problem.capacity > 0 && HasLongK(problem) ? kPackedAlone : 1);
}

// Where the persistent kernel's other tiles were measured to win. Those of 128 x 128: where all are split and run in
// one wave; without LayerNorm where they fill most of one wave, or with GELU nearly two. Those of 192 x 128 that are
// split: in one wave, or after whole ones.
bool SuitsTile(const GemmProblem& problem, const GemmSm90Tile& tile, const kernels::LastWave& wave, int64_t panels) {
  const bool small = IsOfSize(tile.block, 128, 128), tall = IsOfSize(tile.block, 192, 128);
  const int64_t tiles = panels * wave.tiles_per_panel;
  const bool split_in_one_wave = tile.splits > 1 && tiles * tile.splits <= wave.clusters;
  if (small && problem.layer_norm) return split_in_one_wave;
  if (small && (tile.cluster_m > 1 || Stages(problem) < kMinStagesOfLargeTiles)) return false;
  if (small && tiles <= wave.clusters) return 4 * tiles > 3 * wave.clusters;
  if (small) return problem.gelu && 4 * tiles > 7 * wave.clusters && tiles <= 2 * wave.clusters;
  return !tall || tile.splits == 1 || split_in_one_wave || tiles > wave.clusters;
}

double PersistentTime(const GemmProblem& problem, const GemmSm90Tile& tile) {
  const BlockTime* time = Find(kPersistent, tile.block);
  if (time == nullptr || tile.cluster_m > 2 || tile.cluster_n > 1) return kNever;
  const kernels::LastWave wave = LastWaveOf(problem, tile);
  const int64_t panels = Panels(wave, problem.m), stages = Stages(problem);
  if (!SuitsTile(problem, tile, wave, panels)) return kNever;
  int64_t whole = panels * wave.tiles_per_panel;
  double waves = 0, microseconds = 0;
  if (tile.splits > 1) {
    const int64_t each = Stages(problem, tile.splits), left = whole - FullPanels(wave, panels) * wave.tiles_per_panel;
    const int64_t rows = problem.m - RowsOfFullPanels(wave, problem.m);
    whole -= left;
    const bool few = whole > 0 && 4 * left <= wave.clusters;
    if (left == 0 || each < (few ? kMinStagesOfFewTiles : kMinStagesPerSplit)) return kNever;
    waves = static_cast<double>(CeilDiv(left * tile.splits, wave.clusters) * each) / static_cast<double>(stages);
    microseconds = kSplits * static_cast<double>(rows) / static_cast<double>(problem.m) +
                   kPartials * Millions(rows, problem.n) * (tile.splits - 1);
  }
  waves += static_cast<double>(CeilDiv(whole, wave.clusters));
  // Of 128 x 128 tiles without GELU the epilogue is short.
  const bool exposed = problem.layer_norm ? IsOfSize(tile.block, 192, 128) && tile.splits == 1
                                          : problem.gelu || !IsOfSize(tile.block, 128, 128);
  if (waves <= 1 && exposed) microseconds += kOneWave;
  return microseconds + TimeOf(*time, problem, tile, waves) + (problem.gelu ? time->gelu : 0);
}

double ProductTime(const GemmProblem& problem, const GemmSm90Tile& tile) {
  return kernels::gemm_sm90::IsPersistent(tile.block) ? PersistentTime(problem, tile) : OneTileTime(problem, tile);
}

// Only if all blocks run at the same time, two to a multiprocessor. The larger clusters are, the fewer blocks run at a
// time (on an H200 twice 39 clusters of three blocks, twice 15 of eight). With the limit of three 64 x 128 blocks for
// six, too, bert-base took 1.114 instead of 1.083 ms at 24x96.
double InClusterTime(const GemmProblem& problem, const GemmSm90Tile& tile) {
  const int sixths = tile.cluster_n <= 3 || tile.block.m == 128 ? 10 : 9;
  if (tile.cluster_m > 1 || 6 * Blocks(problem, tile) > sixths * problem.multiprocessors) return kNever;
  for (const BlockTime& time : kWithLayerNorm) {
    if (time.block == tile.block) return TimeOf(time, problem, tile, 1) + (problem.gelu ? time.gelu : 0);
  }
  return kNever;
}

// Whether three rows of tiles share the weight that they read, in clusters of three, if enough of those run at a time.
bool RunsInClustersOfThree(const GemmProblem& problem, const GemmSm90Tile& tile) {
  const int64_t blocks = Blocks(problem, tile) * tile.splits;
  return tile.cluster_m == 3 && tile.cluster_n == 1 && CeilDiv(problem.m, tile.block.m) == 3 &&
         3 * blocks > 2 * problem.multiprocessors && 9 * blocks <= 8 * problem.multiprocessors;
}

double SplitKTime(const GemmProblem& problem, const GemmSm90Tile& tile) {
  if (!(tile.block == kSplitK.block) || tile.splits == 1 || tile.splits > kMaxFloatPartials) return kNever;
  const bool threes = RunsInClustersOfThree(problem, tile);
  if (!HasLongK(problem) || (tile.cluster_m * tile.cluster_n > 1 && !threes)) return kNever;
  if (Blocks(problem, tile) * tile.splits > problem.multiprocessors) return kNever;
  const double product = kSplitK.once + kSplitK.stage * static_cast<double>(Stages(problem, tile.splits));
  return product * (threes ? kClusterOfThree : 1) + kFloatPartials * tile.splits * Millions(problem.m, problem.n);
}

}  // namespace

double ExpectedTime(const GemmProblem& problem, const GemmTactic& tactic) {
  const double norm = kLayerNorm + kElements * Millions(problem.m, problem.n);
  switch (tactic.path) {
    case GemmPath::kSm90:
      return problem.layer_norm ? InClusterTime(problem, tactic.tile) : ProductTime(problem, tactic.tile);
    case GemmPath::kSm90ThenLayerNorm:
      return ProductTime(problem, tactic.tile) + norm;
    case GemmPath::kSm90SplitK:
      return SplitKTime(problem, tactic.tile) + norm;
    case GemmPath::kMma:
    case GemmPath::kSimt:
      break;
  }
  return kNever;
}

}  // namespace bertfuse::cuda
