#include "ops/gemm_tactic.h"

#include <utility>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;
using kernels::kMostCluster;

struct Block {
  int m, n;
};

// The block sizes that were compiled (kernels/gemm_sm90_*.cu). Of the first, one to a multiprocessor, blocks take
// several tiles each.
constexpr Block kWide = {128, 192};
constexpr Block kLarge = {128, 128}, kLargeNarrow = {128, 96};
constexpr Block kSmall = {64, 64}, kSmallWide = {64, 96}, kSmallWidest = {64, 128};
constexpr Block kElementwiseBlocks[] = {kWide, kLarge, kLargeNarrow, kSmall, kSmallWide};
constexpr Block kLayerNormBlocks[] = {kLarge, kSmallWide, kSmallWidest};
constexpr Block kPartialBlocks[] = {kLarge, kSmallWide};
constexpr int64_t kManyRows = 4096;  // from here on blocks take turns

// Blocks that take turns load the weight by 32 rows.
bool Takes(const GemmProblem& problem, Block block) { return block.n != kWide.n || problem.n % 32 == 0; }

bool SpansRow(const GemmProblem& problem, Block block) {
  return problem.n % block.n == 0 && problem.n / block.n <= kMostCluster;
}

bool CanSplit(const GemmProblem& problem, int splits) {
  const int64_t stages = CeilDiv(problem.k, 64), each = CeilDiv(stages, splits);
  return (splits - 1) * each < stages;
}

GemmTactic ElementwiseTactic(GemmPath path, Block block) { return {path, {block.m, block.n, 1, 1, 1}}; }

GemmTactic LayerNormTactic(const GemmProblem& problem, Block block, int cluster_m) {
  return {GemmPath::kSm90, {block.m, block.n, cluster_m, static_cast<int>(problem.n / block.n), 1}};
}

GemmTactic SplitTactic(const GemmProblem& problem, Block block, int splits) {
  while (!CanSplit(problem, splits)) --splits;
  return {GemmPath::kSm90Split, {block.m, block.n, 1, 1, splits}};
}

GemmTactic Portable(const GemmProblem& problem) {
  return {problem.tensor_cores ? GemmPath::kMma : GemmPath::kSimt, {}};
}

int64_t Tiles(const GemmProblem& problem, Block block) {
  return CeilDiv(problem.m, block.m) * CeilDiv(problem.n, block.n);
}

// Of two blocks of the same height the one that keeps the busiest multiprocessor busy for less time. A tile takes as
// long as it has columns, and what 16 columns take besides.
Block FasterBlock(const GemmProblem& problem, Block a, Block b) {
  const auto time = [&](Block block) {
    return CeilDiv(Tiles(problem, block), problem.multiprocessors) * (block.n + 16);
  };
  return time(b) < time(a) ? b : a;
}

// Many rows, in turns: pairs of blocks share the weight. There have to be tiles for nearly all multiprocessors.
bool TakesTurns(const GemmProblem& problem) {
  return problem.m >= kManyRows && Takes(problem, kWide) && Tiles(problem, kWide) * 10 >= problem.multiprocessors * 9;
}

GemmTactic InTurns(GemmPath path) { return {path, {kWide.m, kWide.n, 2, 1, 1}}; }

// The rules below are measured on an H200 with bert-base's sizes (docs/performance.md).
GemmTactic ChooseElementwise(const GemmProblem& problem) {
  if (TakesTurns(problem)) return InTurns(GemmPath::kSm90);
  const bool few = Tiles(problem, kLarge) * 2 < problem.multiprocessors;
  return ElementwiseTactic(GemmPath::kSm90, few ? kSmall : FasterBlock(problem, kLarge, kLargeNarrow));
}

GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const bool long_k = problem.k > 2 * problem.n;
  // Mostly through memory, rounded to 16 bits: one launch in clusters takes as long or longer, for the multiprocessors
  // that they leave idle, because nothing multiplies while a tile is normalised, and presumably because the next
  // product's blocks can start beside LayerNorm's.
  if (TakesTurns(problem)) {
    // A tenth of what wide tiles compute lies beyond the last column.
    const bool padded = CeilDiv(problem.n, kWide.n) * kWide.n * 10 > problem.n * 11;
    if (long_k && padded && problem.n % (2 * kLarge.n) == 0) {
      return {GemmPath::kSm90Round, {kLarge.m, kLarge.n, 1, 2, 1}};
    }
    return InTurns(GemmPath::kSm90Round);
  }
  if (problem.m >= 2048) {
    // All at the same time, two blocks to a multiprocessor.
    if (SpansRow(problem, kSmallWidest) && Tiles(problem, kSmallWidest) <= 2 * problem.multiprocessors) {
      return LayerNormTactic(problem, kSmallWidest, 1);
    }
    if (!long_k && SpansRow(problem, kLarge)) return LayerNormTactic(problem, kLarge, 1);
    const Block block = Takes(problem, kWide) ? FasterBlock(problem, kWide, kLargeNarrow) : kLargeNarrow;
    return ElementwiseTactic(GemmPath::kSm90Round, block);
  }
  // Few rows and many steps along k: parts of k, so that there are blocks for every multiprocessor.
  if (problem.m < 512 && long_k) return SplitTactic(problem, kSmallWide, 4);
  return ElementwiseTactic(GemmPath::kSm90Round, problem.m < 512 ? kSmall : kSmallWide);
}

}  // namespace

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  const auto add_elementwise = [&](GemmPath path) {
    for (const Block& block : kElementwiseBlocks) {
      if (!Takes(problem, block)) continue;
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
        tactics.push_back({path, {block.m, block.n, cluster_m, cluster_n, 1}});
      }
    }
  };
  if (problem.sm90 && !problem.layer_norm) add_elementwise(GemmPath::kSm90);
  if (problem.sm90 && problem.layer_norm) {
    for (const Block& block : kLayerNormBlocks) {
      if (!SpansRow(problem, block)) continue;
      tactics.push_back(LayerNormTactic(problem, block, 1));
      if (2 * problem.n / block.n <= kMostCluster) tactics.push_back(LayerNormTactic(problem, block, 2));
    }
    for (const Block& block : kPartialBlocks) {
      for (int splits : {1, 2, 3, 4, 6, 8, 12}) {
        if (!CanSplit(problem, splits)) continue;
        for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 4}}) {
          tactics.push_back({GemmPath::kSm90Split, {block.m, block.n, cluster_m, cluster_n, splits}});
        }
      }
    }
  }
  if (problem.sm90 && problem.layer_norm) add_elementwise(GemmPath::kSm90Round);
  if (problem.tensor_cores) tactics.push_back({GemmPath::kMma, {}});
  tactics.push_back({GemmPath::kSimt, {}});
  return tactics;
}

GemmTactic ChooseGemmTactic(const GemmProblem& problem) {
  if (!problem.sm90) return Portable(problem);
  return problem.layer_norm ? ChooseLayerNorm(problem) : ChooseElementwise(problem);
}

size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.layer_norm || tactic.path == GemmPath::kSm90 || tactic.path == GemmPath::kSm90Round) return 0;
  const int splits = tactic.path == GemmPath::kSm90Split ? tactic.tile.splits : 1;
  return static_cast<size_t>(problem.m) * static_cast<size_t>(problem.n) * splits * sizeof(float);
}

}  // namespace bertfuse::cuda
