#include "ops/gemm_tactic.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <tuple>
#include <utility>

#include "ops/gemm_time.h"
#include "ops/layer_norm_tactic.h"

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;
using kernels::kMaxCluster;

namespace sm90 = kernels::gemm_sm90;
using Block = kernels::GemmSm90Block;

// The blocks that are compiled, by size.
constexpr Block k128x192 = sm90::kPersistentBlocks[0];
constexpr Block k128x128Alone = sm90::kOneTileBlocks[0], k128x128 = sm90::kOneTileBlocks[1];
constexpr Block k128x96Alone = sm90::kOneTileBlocks[2], k128x96 = sm90::kOneTileBlocks[3];
constexpr Block k64x64 = sm90::kOneTileBlocks[4], k64x96 = sm90::kOneTileBlocks[5];
static_assert(k128x128.m == 128 && k128x128.n == 128 && k128x96.m == 128 && k128x96.n == 96);
static_assert(k64x64.m == 64 && k64x64.n == 64 && k64x96.m == 64 && k64x96.n == 96);
constexpr int kMaxSplits = kernels::kMaxMorePartials + 1;  // of the persistent kernel

// The persistent kernel loads the weight by 32 rows.
bool Supports(const GemmProblem& problem, Block block) { return !sm90::IsPersistent(block) || problem.n % 32 == 0; }

bool SpansRow(const GemmProblem& problem, Block block) {
  return problem.n % block.n == 0 && problem.n / block.n <= kMaxCluster;
}

bool CanSplit(const GemmProblem& problem, int splits) {
  return (splits - 1) * Stages(problem, splits) < Stages(problem);
}

GemmTactic LayerNormTactic(const GemmProblem& problem, Block block, int cluster_m) {
  return {GemmPath::kSm90, {block, cluster_m, static_cast<int>(problem.n / block.n), 1}};
}

// Partial sums take little memory with few rows, but there may be many packed rows.
constexpr size_t kMaxPackedWorkspace = 64 << 20;

bool Fits(const GemmProblem& problem, const GemmTactic& tactic) {
  const size_t most = problem.capacity > 0 ? std::min(problem.workspace, kMaxPackedWorkspace) : problem.workspace;
  return GemmWorkspaceSize(problem, tactic) <= most;
}

// The path whose product is rounded to 16 bits once.
GemmPath ProductPath(const GemmProblem& problem) {
  return problem.layer_norm ? GemmPath::kSm90ThenLayerNorm : GemmPath::kSm90;
}

GemmTactic Portable(const GemmProblem& problem) {
  return WithLayerNormKernel(problem, {problem.tensor_cores ? GemmPath::kMma : GemmPath::kSimt, {}});
}

int64_t Tiles(const GemmProblem& problem, Block block) {
  return CeilDiv(problem.m, block.m) * CeilDiv(problem.n, block.n);
}

GemmTactic ElementwiseTactic(GemmPath path, Block block, int cluster_m = 1) { return {path, {block, cluster_m, 1, 1}}; }

// Of two blocks of the same size, the one that takes a multiprocessor to itself, where there are enough of them.
Block ForGrid(const GemmProblem& problem, Block alone, Block shared, int cluster_m = 1, int cluster_n = 1) {
  const int64_t rows = CeilDiv(problem.m, static_cast<int64_t>(alone.m) * cluster_m) * cluster_m;
  const int64_t columns = CeilDiv(problem.n, static_cast<int64_t>(alone.n) * cluster_n) * cluster_n;
  return rows * columns <= problem.multiprocessors ? alone : shared;
}

// Whether tiles may be split along k, and LayerNorm adds the partial sums.
bool SupportsSplits(const GemmProblem& problem) {
  return Supports(problem, k128x192) && problem.n <= kernels::kMaxSplitColumns;
}

}  // namespace

bool operator==(const GemmProblem& a, const GemmProblem& b) {
  const auto fields = [](const GemmProblem& p) {
    return std::tie(p.m, p.n, p.k, p.layer_norm, p.tensor_cores, p.sm90, p.multiprocessors, p.workspace, p.capacity,
                    p.x_bytes, p.y_bytes, p.gelu, p.deterministic_rows, p.biased, p.layer_norm_vector);
  };
  return fields(a) == fields(b);
}

namespace {

// GemmTactics() without LayerNorm's kernels.
std::vector<GemmTactic> Products(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  const auto add_elementwise = [&](GemmPath path) {
    const auto add = [&](const Block& block) {
      if (!Supports(problem, block)) return;
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
        tactics.push_back({path, {block, cluster_m, cluster_n, 1}});
      }
      if (block == k64x96) tactics.push_back({path, {block, 3, 1, 1}});
    };
    for (const Block& block : sm90::kPersistentBlocks) add(block);
    for (const Block& block : sm90::kOneTileBlocks) add(block);
  };
  if (problem.sm90 && !problem.layer_norm) add_elementwise(GemmPath::kSm90);
  if (problem.sm90 && problem.layer_norm) {
    for (const Block& block : sm90::kLayerNormBlocks) {
      if (!SpansRow(problem, block)) continue;
      tactics.push_back(LayerNormTactic(problem, block, 1));
      if (2 * problem.n / block.n <= kMaxCluster) tactics.push_back(LayerNormTactic(problem, block, 2));
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
    for (const Block& block : sm90::kPersistentBlocks) {
      for (int cluster_m : {1, 2}) {
        for (int splits = 2; SupportsSplits(problem) && splits <= kMaxSplits; ++splits) {
          const GemmTactic tactic = {GemmPath::kSm90ThenLayerNorm, {block, cluster_m, 1, splits}};
          if (CanSplit(problem, splits) && PartialRows(problem, tactic) > 0) tactics.push_back(tactic);
        }
      }
    }
  }
  if (problem.tensor_cores) tactics.push_back({GemmPath::kMma, {}});
  tactics.push_back({GemmPath::kSimt, {}});
  return tactics;
}

// How many of three rows of tiles share, in a cluster, the weight that they load. Without LayerNorm two, where the
// blocks of a fourth row would leave a quarter of the multiprocessors to the next kernel. Else three, but not packed
// rows: without clusters of three bert-base takes 2% less with 131 packed rows, and 1% more at 1x131.
int ClusterForThreeRows(const GemmProblem& problem) {
  const int64_t columns = CeilDiv(problem.n, k64x96.n), multiprocessors = problem.multiprocessors;
  if (!problem.layer_norm && 4 * 4 * columns <= 3 * multiprocessors) return 2;
  return problem.capacity == 0 && 9 * 3 * columns <= 8 * multiprocessors ? 3 : 1;  // fewer of them run at a time
}

// Few rows, with a multiprocessor for each of the smallest tiles. The time of one kernel tells little then, because its
// first loads and last stores overlap other kernels. So these are rules, measured in bert-base and bert-large on an
// H200 (docs/notebook.md): with 64 x 96 in place of 64 x 64 before LayerNorm bert-large took 9% longer at 1x128 and
// bert-base 5% at 1x512; with 64 x 64 in place of 64 x 96 bert-base took 7% longer at 1x256.
std::optional<GemmTactic> ChooseForFewRows(const GemmProblem& problem) {
  const int64_t small = Tiles(problem, k64x64), most = problem.multiprocessors;
  if (HasLongK(problem) || Tiles(problem, k64x96) > most) return {};
  const GemmPath path = ProductPath(problem);
  const int64_t panels = CeilDiv(problem.m, k64x96.m);
  if (problem.layer_norm) {
    // A whole wave of packed rows was not measured.
    const bool nearly_a_wave = problem.capacity == 0 && 10 * small >= 7 * most && 10 * small <= 9 * most;
    if (4 * small <= most || nearly_a_wave) return ElementwiseTactic(path, k64x64);
    return ElementwiseTactic(path, k64x96, panels == 3 ? ClusterForThreeRows(problem) : 1);
  }
  if (panels == 3 && 3 * small > 2 * most) return ElementwiseTactic(path, k64x96, ClusterForThreeRows(problem));
  if (small <= most) return ElementwiseTactic(path, k64x64);
  return ElementwiseTactic(path, k64x96, panels % 2 == 0 ? 2 : 1);
}

GemmTactic Fastest(const GemmProblem& problem) {
  if (const auto few = ChooseForFewRows(problem)) return WithLayerNormKernel(problem, *few);
  GemmTactic fastest = Portable(problem);
  double least = std::numeric_limits<double>::infinity();
  for (const GemmTactic& product : Products(problem)) {
    const GemmTactic tactic = WithLayerNormKernel(problem, product);
    if (!IsDeterministicByRow(problem, tactic)) continue;
    const double time = ExpectedTime(problem, tactic);
    if (time < least && Fits(problem, tactic)) fastest = tactic, least = time;
  }
  return fastest;
}

}  // namespace

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  for (const GemmTactic& product : Products(problem)) {
    if (!LayerNormIsALaunch(problem, product)) {
      tactics.push_back(product);
      continue;
    }
    for (kernels::LayerNormKernel kernel : LayerNormKernels(problem, product)) {
      tactics.push_back({product.path, product.tile, kernel});
    }
  }
  return tactics;
}

GemmTactic ChooseGemmTactic(const GemmProblem& problem) {
  if (!problem.sm90) return Portable(problem);
  // A model asks for the same few problems over and over.
  struct Chosen {
    GemmProblem problem;
    GemmTactic tactic;
    bool made = false;
  };
  thread_local std::array<Chosen, 64> chosen;
  const uint64_t mixed = (static_cast<uint64_t>(problem.m) * 31 + static_cast<uint64_t>(problem.n)) * 31 +
                         static_cast<uint64_t>(problem.k) + static_cast<uint64_t>(problem.workspace) * 7;
  Chosen& entry = chosen[mixed * 0x9E3779B97F4A7C15u >> 58];
  if (!entry.made || !(entry.problem == problem)) entry = {problem, Fastest(problem), true};
  return entry.tactic;
}

// All kernels sum over k in the same order; they differ in when they round and add. The persistent kernel begins with
// the bias, the others end with it. LayerNorm's kernels add up a row in different orders.
bool IsDeterministicByRow(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.deterministic_rows) return true;
  if (tactic.layer_norm != WithLayerNormKernel(problem, tactic).layer_norm) return false;
  if (!problem.sm90) return tactic.path == Portable(problem).path;
  return tactic.path == ProductPath(problem) && tactic.tile.splits == 1 &&
         !(problem.biased && sm90::IsPersistent(tactic.tile.block));
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
  if (problem.capacity == 0) return problem.m - UnsplitRows(problem, tactic);
  return MaxRowsLeft(LastWaveOf(problem, tactic.tile), problem.capacity);
}

size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.layer_norm || tactic.path == GemmPath::kSm90) return 0;
  if (tactic.path == GemmPath::kSm90ThenLayerNorm) {
    return static_cast<size_t>(PartialRows(problem, tactic)) * static_cast<size_t>(problem.n) *
           (tactic.tile.splits - 1) * problem.y_bytes;
  }
  const int splits = tactic.path == GemmPath::kSm90SplitK ? tactic.tile.splits : 1;
  return static_cast<size_t>(problem.capacity > 0 ? problem.capacity : problem.m) * static_cast<size_t>(problem.n) *
         splits * sizeof(float);
}

namespace {

bool IsOfSize(const Block& a, const Block& b) { return a.m == b.m && a.n == b.n; }

// Whether the table has two blocks of its size, which are told apart by their stages.
bool SharesItsTile(const GemmTactic& tactic) {
  const Block& block = tactic.tile.block;
  return tactic.path != GemmPath::kSm90SplitK && (IsOfSize(block, k128x128) || IsOfSize(block, k128x96));
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
  std::string name = TileName(tactic, SharesItsTile(tactic));
  const std::string splits = std::to_string(tactic.tile.splits);
  if (tactic.path == GemmPath::kSm90SplitK) name += " split-K " + splits;
  if (tactic.path == GemmPath::kSm90ThenLayerNorm && tactic.tile.splits > 1) name += " last wave split-K " + splits;
  if (tactic.path == GemmPath::kSm90ThenLayerNorm || tactic.layer_norm) name += " then LayerNorm";
  return tactic.layer_norm ? name + ", " + Describe(*tactic.layer_norm) : name;
}

std::vector<std::string> FormerNames(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.layer_norm && tactic.layer_norm != ChooseLayerNormKernel(problem, tactic)) return {};
  const kernels::GemmSm90Tile& tile = tactic.tile;
  std::vector<std::string> names;
  if (tactic.layer_norm) names.push_back(Describe(GemmTactic{tactic.path, tile, {}}));
  const bool one_tile = tactic.path == GemmPath::kSm90ThenLayerNorm || !problem.layer_norm;
  if (SharesItsTile(tactic) && one_tile) {
    // An older name was that of both, of which the grid's size chose.
    const bool large = IsOfSize(tile.block, k128x128);
    const Block meant = ForGrid(problem, large ? k128x128Alone : k128x96Alone, large ? k128x128 : k128x96,
                                tile.cluster_m, tile.cluster_n);
    if (!(tile.block == meant)) return names;
  }
  const std::string name = TileName(tactic, false), splits = std::to_string(tile.splits);
  if (tactic.path == GemmPath::kSm90SplitK) {
    names.push_back(name + " splits " + splits);
  } else if (tactic.path == GemmPath::kSm90ThenLayerNorm) {
    names.push_back(name + " rounded" + (tile.splits > 1 ? " splits " + splits : ""));
  } else if (SharesItsTile(tactic)) {
    names.push_back(name);
  }
  return names;
}

}  // namespace bertfuse::cuda
