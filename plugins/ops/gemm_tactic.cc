#include "ops/gemm_tactic.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/layer_norm.h"

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;
using kernels::kMostCluster;

namespace sm90 = kernels::gemm_sm90;
using Block = kernels::GemmSm90Block;

// By size, of the tables of those that are compiled.
constexpr Block kWide = sm90::kPersistentBlock;
constexpr Block kLargeAlone = sm90::kOneTileBlocks[0], kLarge = sm90::kOneTileBlocks[1];
constexpr Block kNarrowAlone = sm90::kOneTileBlocks[2], kNarrow = sm90::kOneTileBlocks[3];
constexpr Block kSmall = sm90::kOneTileBlocks[4], kSmallWide = sm90::kOneTileBlocks[5];
static_assert(kLarge.m == 128 && kLarge.n == 128 && kNarrow.m == 128 && kNarrow.n == 96);
static_assert(kSmall.m == 64 && kSmall.n == 64 && kSmallWide.m == 64 && kSmallWide.n == 96);
constexpr int kMostSplits = kernels::kMostMorePartials + 1;  // of the persistent kernel

// The persistent kernel loads the weight by 32 rows.
bool Takes(const GemmProblem& problem, Block block) { return !(block == kWide) || problem.n % 32 == 0; }

bool SpansRow(const GemmProblem& problem, Block block) {
  return problem.n % block.n == 0 && problem.n / block.n <= kMostCluster;
}

// Of the pipeline along k.
int64_t Stages(const GemmProblem& problem) { return CeilDiv(problem.k * problem.x_bytes, kernels::kStageRowBytes); }

bool CanSplit(const GemmProblem& problem, int splits) {
  const int64_t stages = Stages(problem), each = CeilDiv(stages, splits);
  return (splits - 1) * each < stages;
}

GemmTactic ElementwiseTactic(GemmPath path, Block block, int cluster_m = 1) { return {path, {block, cluster_m, 1, 1}}; }

GemmTactic LayerNormTactic(const GemmProblem& problem, Block block, int cluster_m) {
  return {GemmPath::kSm90, {block, cluster_m, static_cast<int>(problem.n / block.n), 1}};
}

GemmTactic SplitTactic(const GemmProblem& problem, Block block, int splits) {
  while (!CanSplit(problem, splits)) --splits;
  return {GemmPath::kSm90SplitK, {block, 1, 1, splits}};
}

// Sums in parts want little where there are few rows, but packed rows may be many.
constexpr size_t kMostPackedWorkspace = 64 << 20;

bool Fits(const GemmProblem& problem, const GemmTactic& tactic) {
  const size_t most = problem.room > 0 ? std::min(problem.workspace, kMostPackedWorkspace) : problem.workspace;
  return GemmWorkspaceSize(problem, tactic) <= most;
}

// Of the tactic whose product is rounded to 16 bits as a whole.
GemmPath ProductPath(const GemmProblem& problem) {
  return problem.layer_norm ? GemmPath::kSm90ThenLayerNorm : GemmPath::kSm90;
}

GemmTactic Portable(const GemmProblem& problem) {
  return {problem.tensor_cores ? GemmPath::kMma : GemmPath::kSimt, {}};
}

int64_t Tiles(const GemmProblem& problem, Block block) {
  return CeilDiv(problem.m, block.m) * CeilDiv(problem.n, block.n);
}

// How long the busiest multiprocessor is busy with tiles of 128 rows, two at a time. A tile takes as long as it has
// columns, and what 16 columns take besides; two at a time half as long again.
int64_t TimeOfOneTile(const GemmProblem& problem, Block block) {
  const int64_t tiles = Tiles(problem, block), one = block.n + 16;
  return tiles <= problem.multiprocessors ? 2 * one : CeilDiv(tiles, 2 * problem.multiprocessors) * 3 * one;
}

Block FasterBlock(const GemmProblem& problem, Block a, Block b) {
  return TimeOfOneTile(problem, b) < TimeOfOneTile(problem, a) ? b : a;
}

// Of two blocks of the same size the one that has a multiprocessor for itself, where there are enough of them.
Block ForGrid(const GemmProblem& problem, Block alone, Block shared, int cluster_m = 1, int cluster_n = 1) {
  const int64_t rows = CeilDiv(problem.m, static_cast<int64_t>(alone.m) * cluster_m) * cluster_m;
  const int64_t columns = CeilDiv(problem.n, static_cast<int64_t>(alone.n) * cluster_n) * cluster_n;
  return rows * columns <= problem.multiprocessors ? alone : shared;
}

Block Narrow(const GemmProblem& problem) { return ForGrid(problem, kNarrowAlone, kNarrow); }

// A product's tiles, counted in clusters, in waves of all the clusters that run at a time. (A few less may: a cluster
// needs its blocks on one group of multiprocessors. That is then slower.)
struct Waves {
  int64_t clusters;
  int64_t full_panels;  // rows of tiles that fill waves
  int64_t left;         // tiles of the other panels
};

Waves WavesOf(const GemmProblem& problem, const GemmSm90Tile& tile) {
  const kernels::LastWave wave = LastWaveOf(problem, tile);
  const int64_t panels = Panels(wave, problem.m), full = FullPanels(wave, panels);
  return {wave.clusters, full, (panels - full) * wave.tiles_per_panel};
}

// Whether tiles may be split along k, and LayerNorm adds the partial sums.
bool TakesSplits(const GemmProblem& problem) {
  return Takes(problem, kWide) && problem.n <= kernels::kMostSplitColumns;
}

// The rules below are measured on an H200 with bert-base's sizes, most of them in the model (docs/performance.md): by
// itself an op runs at another clock, and beside other kernels.

// Waves that the persistent kernel takes; a last one in splits counts as what is left of it.
double WavesTaken(const GemmProblem& problem, const GemmSm90Tile& tile) {
  constexpr double kOfSumming = 0.2;
  const Waves waves = WavesOf(problem, tile);
  const kernels::LastWave wave = LastWaveOf(problem, tile);
  if (tile.splits > 1) {
    const int64_t full = waves.full_panels * wave.tiles_per_panel;
    return static_cast<double>(CeilDiv(full, waves.clusters)) +
           static_cast<double>(CeilDiv(waves.left * tile.splits, waves.clusters)) / tile.splits + kOfSumming;
  }
  return static_cast<double>(CeilDiv(Panels(wave, problem.m) * wave.tiles_per_panel, waves.clusters));
}

// Pairs of blocks share the weight, which saves energy, and with it time; but not a wave's. (So far measured of packed
// rows alone.)
bool InPairs(const GemmProblem& problem, const GemmSm90Tile& alone, const GemmSm90Tile& pairs) {
  return problem.room == 0 || WavesTaken(problem, pairs) <= 1.04 * WavesTaken(problem, alone);
}

GemmSm90Tile PersistentTile(const GemmProblem& problem) {
  constexpr GemmSm90Tile kAlone = {kWide, 1, 1, 1}, kPairs = {kWide, 2, 1, 1};
  return InPairs(problem, kAlone, kPairs) ? kPairs : kAlone;
}

// Many rows. There have to be tiles for nearly all multiprocessors. Of fewer packed rows by time: a wave of wide tiles
// takes as long as 230 of TimeOfOneTile(), and 60 once.
bool TakesPersistent(const GemmProblem& problem) {
  if (!IsDeterministicByRow(problem, {ProductPath(problem), {kWide, 1, 1, 1}})) return false;
  if (!Takes(problem, kWide) || Tiles(problem, kWide) * 10 < problem.multiprocessors * 9) return false;
  if (problem.m >= 2048 || problem.room == 0) return problem.m >= 2048;
  const double time = WavesTaken(problem, PersistentTile(problem)) * 230 + 60;
  return problem.m >= 1024 &&
         time < static_cast<double>(std::min(TimeOfOneTile(problem, kLarge), TimeOfOneTile(problem, kNarrow)));
}

// The product, for the path that goes on from there.
GemmTactic ChooseProduct(const GemmProblem& problem) {
  const GemmPath path = ProductPath(problem);
  if (TakesPersistent(problem)) return {path, PersistentTile(problem)};
  if (Tiles(problem, kSmall) <= problem.multiprocessors) return ElementwiseTactic(path, kSmall);
  if (Tiles(problem, kSmallWide) <= problem.multiprocessors) {
    const bool in_pairs = CeilDiv(problem.m, kSmallWide.m) % 2 == 0;
    return ElementwiseTactic(path, kSmallWide, in_pairs ? 2 : 1);
  }
  const bool narrow = FasterBlock(problem, kLarge, kNarrow) == kNarrow;
  return ElementwiseTactic(path, narrow ? Narrow(problem) : ForGrid(problem, kLargeAlone, kLarge));
}

// The persistent kernel, whose last wave is split along k where it is incomplete: in as many splits as keep all
// multiprocessors busy where it is the only wave, in two where tiles for no more than half of them are left.
GemmTactic PersistentThenLayerNorm(const GemmProblem& problem, int cluster_m) {
  constexpr int64_t kLeastStages = 8;  // a shorter split saves less than it costs
  GemmTactic tactic = {GemmPath::kSm90ThenLayerNorm, {kWide, cluster_m, 1, 1}};
  const Waves waves = WavesOf(problem, tactic.tile);
  if (!TakesSplits(problem) || waves.left == 0 || 2 * waves.left > waves.clusters) return tactic;
  const int64_t most = waves.full_panels > 0 ? 2 : std::min<int64_t>(waves.clusters / waves.left, kMostSplits);
  tactic.tile.splits = static_cast<int>(std::clamp<int64_t>(Stages(problem) / kLeastStages, 1, most));
  while (!Fits(problem, tactic)) --tactic.tile.splits;
  return tactic;
}

// Mostly two launches with the product between them, rounded to 16 bits. One in clusters takes as long or longer, for
// the multiprocessors that clusters leave idle, because nothing multiplies while a tile is normalised, and presumably
// because the next product's blocks can start beside LayerNorm's.
GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const bool long_k = problem.k > 2 * problem.n;
  // Few rows and many steps along k: split-K, so that there are blocks for every multiprocessor.
  if (long_k && 4 * Tiles(problem, kSmallWide) <= problem.multiprocessors) {
    for (int splits = 4; splits > 1; --splits) {
      const GemmTactic tactic = SplitTactic(problem, kSmallWide, splits);
      if (Fits(problem, tactic)) return tactic;
    }
  }
  // Smaller tiles where these are nearly a wave of blocks: with both of the following bert-base took 0.500 instead of
  // 0.545 ms at 1x512 (H200, 2026-11-22). (Not measured of packed rows, whose partial sums take room for all there may
  // be.)
  const auto nearly_a_wave = [&](int64_t blocks, int percent) {
    return problem.room == 0 && blocks <= problem.multiprocessors && 100 * blocks >= percent * problem.multiprocessors;
  };
  if (long_k && nearly_a_wave(2 * Tiles(problem, kSmallWide), 90)) {
    const GemmTactic tactic = SplitTactic(problem, kSmallWide, 2);
    if (Fits(problem, tactic)) return tactic;
  }
  if (long_k && Takes(problem, kWide) && 2 * Tiles(problem, kWide) <= problem.multiprocessors) {
    return PersistentThenLayerNorm(problem, 1);
  }
  if (4 * Tiles(problem, kSmall) <= problem.multiprocessors || nearly_a_wave(Tiles(problem, kSmall), 70))
    return ElementwiseTactic(GemmPath::kSm90ThenLayerNorm, kSmall);
  if (Tiles(problem, kSmallWide) <= problem.multiprocessors) {
    return ElementwiseTactic(GemmPath::kSm90ThenLayerNorm, kSmallWide);
  }
  // All at the same time, two blocks to a multiprocessor; of clusters there may be less, and the more so the larger
  // they are (on an H200 twice 39 of three blocks, twice 15 of eight). With as many of six blocks as of three,
  // bert-base took 1.114 instead of 1.083 ms at 24x96.
  for (Block block : {sm90::kLayerNormBlocks[1], sm90::kLayerNormBlocks[2]}) {
    const int most = problem.n / block.n <= 3 ? 10 : 9;
    if (SpansRow(problem, block) && 6 * Tiles(problem, block) <= most * problem.multiprocessors) {
      return LayerNormTactic(problem, block, 1);
    }
  }
  if (!Takes(problem, kWide)) return ElementwiseTactic(GemmPath::kSm90ThenLayerNorm, Narrow(problem));
  // A tenth of what wide tiles compute lies beyond the last column.
  const bool padded = CeilDiv(problem.n, kWide.n) * kWide.n * 10 > problem.n * 11;
  if (long_k && padded && problem.n % (2 * kLarge.n) == 0) {
    return {GemmPath::kSm90ThenLayerNorm, {ForGrid(problem, kLargeAlone, kLarge, 1, 2), 1, 2, 1}};
  }
  const GemmTactic alone = PersistentThenLayerNorm(problem, 1), pairs = PersistentThenLayerNorm(problem, 2);
  return InPairs(problem, alone.tile, pairs.tile) ? pairs : alone;
}

}  // namespace

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  const auto add_elementwise = [&](GemmPath path) {
    const auto add = [&](const Block& block) {
      if (!Takes(problem, block)) return;
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
        tactics.push_back({path, {block, cluster_m, cluster_n, 1}});
      }
      if (block == kSmallWide) tactics.push_back({path, {block, 3, 1, 1}});
    };
    add(kWide);
    for (const Block& block : sm90::kOneTileBlocks) add(block);
  };
  if (problem.sm90 && !problem.layer_norm) add_elementwise(GemmPath::kSm90);
  if (problem.sm90 && problem.layer_norm) {
    for (const Block& block : sm90::kLayerNormBlocks) {
      if (!SpansRow(problem, block)) continue;
      tactics.push_back(LayerNormTactic(problem, block, 1));
      if (2 * problem.n / block.n <= kMostCluster) tactics.push_back(LayerNormTactic(problem, block, 2));
    }
    for (const Block& block : sm90::kSplitKBlocks) {
      for (int splits : {1, 2, 3, 4, 6, 8, 12}) {
        if (!CanSplit(problem, splits)) continue;
        for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 4}, {3, 1}}) {
          tactics.push_back({GemmPath::kSm90SplitK, {block, cluster_m, cluster_n, splits}});
        }
      }
    }
  }
  if (problem.sm90 && problem.layer_norm) {
    add_elementwise(GemmPath::kSm90ThenLayerNorm);
    for (int cluster_m : {1, 2}) {
      for (int splits = 2; TakesSplits(problem) && splits <= kMostSplits; ++splits) {
        const GemmTactic tactic = {GemmPath::kSm90ThenLayerNorm, {kWide, cluster_m, 1, splits}};
        if (CanSplit(problem, splits) && PartialRows(problem, tactic) > 0) tactics.push_back(tactic);
      }
    }
  }
  if (problem.tensor_cores) tactics.push_back({GemmPath::kMma, {}});
  tactics.push_back({GemmPath::kSimt, {}});
  return tactics;
}

GemmTactic ChooseGemmTactic(const GemmProblem& problem) {
  if (!problem.sm90) return Portable(problem);
  return problem.layer_norm && !problem.deterministic_rows ? ChooseLayerNorm(problem) : ChooseProduct(problem);
}

// All kernels sum over k in the same order; where they differ is when they round and add. The persistent kernel begins
// with the bias, the others end with it.
bool IsDeterministicByRow(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.deterministic_rows) return true;
  if (!problem.sm90) return tactic.path == Portable(problem).path;
  return tactic.path == ProductPath(problem) && tactic.tile.splits == 1 &&
         !(problem.biased && tactic.tile.block == kWide);
}

kernels::LastWave LastWaveOf(const GemmProblem& problem, const GemmSm90Tile& tile) {
  return {tile.cluster_m * tile.block.m,
          static_cast<int>(CeilDiv(problem.n, static_cast<int64_t>(tile.cluster_n) * tile.block.n)),
          std::max(problem.multiprocessors / (tile.cluster_m * tile.cluster_n), 1)};
}

int64_t UnsplitRows(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.path != GemmPath::kSm90ThenLayerNorm || tactic.tile.splits == 1) return problem.m;
  return RowsOfFullPanels(LastWaveOf(problem, tactic.tile), problem.m);
}

int64_t PartialRows(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.path != GemmPath::kSm90ThenLayerNorm || tactic.tile.splits == 1) return 0;
  if (problem.room == 0) return problem.m - UnsplitRows(problem, tactic);
  return MostRowsLeft(LastWaveOf(problem, tactic.tile), problem.room);
}

size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.layer_norm || tactic.path == GemmPath::kSm90) return 0;
  if (tactic.path == GemmPath::kSm90ThenLayerNorm) {
    return static_cast<size_t>(PartialRows(problem, tactic)) * static_cast<size_t>(problem.n) *
           (tactic.tile.splits - 1) * problem.y_bytes;
  }
  const int splits = tactic.path == GemmPath::kSm90SplitK ? tactic.tile.splits : 1;
  return static_cast<size_t>(problem.room > 0 ? problem.room : problem.m) * static_cast<size_t>(problem.n) * splits *
         sizeof(float);
}

namespace {

bool IsOfSize(const Block& a, const Block& b) { return a.m == b.m && a.n == b.n; }

// Whether the table has two blocks of its size, which are told apart by their stages.
bool HasTwin(const GemmTactic& tactic) {
  const Block& block = tactic.tile.block;
  return tactic.path != GemmPath::kSm90SplitK && (IsOfSize(block, kLarge) || IsOfSize(block, kNarrow));
}

// "simt", "mma" or "sm90 64x96 cluster 1x4".
std::string TileName(const GemmTactic& tactic, bool with_stages) {
  if (tactic.path == GemmPath::kSimt) return "simt";
  if (tactic.path == GemmPath::kMma) return "mma";
  const kernels::GemmSm90Tile& tile = tactic.tile;
  char text[96];
  std::snprintf(text, sizeof(text), "sm90 %dx%d%s cluster %dx%d", tile.block.m, tile.block.n,
                with_stages ? (" stages " + std::to_string(tile.block.stages)).c_str() : "", tile.cluster_m,
                tile.cluster_n);
  return text;
}

}  // namespace

std::string Describe(const GemmTactic& tactic) {
  const std::string tile = TileName(tactic, HasTwin(tactic)), splits = std::to_string(tactic.tile.splits);
  if (tactic.path == GemmPath::kSm90SplitK) return tile + " split-K " + splits;
  if (tactic.path != GemmPath::kSm90ThenLayerNorm) return tile;
  return tile + (tactic.tile.splits > 1 ? " last wave split-K " + splits : "") + " then LayerNorm";
}

std::string FormerName(const GemmProblem& problem, const GemmTactic& tactic) {
  const kernels::GemmSm90Tile& tile = tactic.tile;
  const bool one_tile = tactic.path == GemmPath::kSm90ThenLayerNorm || !problem.layer_norm;
  if (HasTwin(tactic) && one_tile) {
    // The name was that of both, of which the grid's size chose.
    const bool large = IsOfSize(tile.block, kLarge);
    const Block meant =
        ForGrid(problem, large ? kLargeAlone : kNarrowAlone, large ? kLarge : kNarrow, tile.cluster_m, tile.cluster_n);
    if (!(tile.block == meant)) return Describe(tactic);
  }
  const std::string name = TileName(tactic, false), splits = std::to_string(tile.splits);
  if (tactic.path == GemmPath::kSm90SplitK) return name + " splits " + splits;
  if (tactic.path != GemmPath::kSm90ThenLayerNorm) return name;
  return name + " rounded" + (tile.splits > 1 ? " splits " + splits : "");
}

}  // namespace bertfuse::cuda
