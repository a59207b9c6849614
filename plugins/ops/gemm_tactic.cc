#include "ops/gemm_tactic.h"

#include <utility>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;

struct Block {
  int m, n;
};

// The block sizes that were compiled (kernels/gemm_sm90_*.cu).
constexpr Block kLarge = {128, 128}, kLargeWide = {128, 192}, kLargeNarrow = {128, 96};
constexpr Block kSmall = {64, 64}, kSmallWide = {64, 96}, kSmallWidest = {64, 128};
constexpr Block kElementwiseBlocks[] = {kLargeWide, kLarge, kLargeNarrow, kSmall, kSmallWide};
constexpr Block kLayerNormBlocks[] = {kLarge, kSmallWide, kSmallWidest};
constexpr Block kPartialBlocks[] = {kLarge, kSmallWide};
constexpr int kMostCluster = 8;  // what every Hopper device takes

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

// Of two blocks of the same height the one that keeps the busiest multiprocessor busy for less time. A tile takes as
// long as it has columns, and what 16 columns take besides.
Block FasterBlock(const GemmProblem& problem, Block a, Block b) {
  const auto time = [&](Block block) {
    const int64_t tiles = CeilDiv(problem.m, block.m) * CeilDiv(problem.n, block.n);
    return CeilDiv(tiles, problem.multiprocessors) * (block.n + 16);
  };
  return time(b) < time(a) ? b : a;
}

// The rules below are measured on an H200 with bert-base's sizes (docs/performance.md).
GemmTactic ChooseElementwise(const GemmProblem& problem) {
  const int64_t large = CeilDiv(problem.m, kLarge.m) * CeilDiv(problem.n, kLarge.n);
  const bool few = large * 2 < problem.multiprocessors;
  return ElementwiseTactic(GemmPath::kSm90, few ? kSmall : FasterBlock(problem, kLarge, kLargeNarrow));
}

GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const bool long_k = problem.k > 2 * problem.n;
  if (problem.m >= 2048) {
    if (!long_k && SpansRow(problem, kLarge)) return LayerNormTactic(problem, kLarge, 1);
    // With a long k LayerNorm is a small part of the time, and clusters of six leave some multiprocessors idle.
    return ElementwiseTactic(GemmPath::kSm90Round, FasterBlock(problem, kLargeWide, kLargeNarrow));
  }
  if (problem.m >= 512 && !long_k) {
    for (const Block& block : {kSmallWide, kSmallWidest}) {
      if (SpansRow(problem, block)) return LayerNormTactic(problem, block, 1);
    }
  }
  // Few rows: parts of k, so that there are blocks for every multiprocessor.
  return SplitTactic(problem, kSmallWide, problem.m >= 512 ? 1 : 4);
}

}  // namespace

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  if (problem.sm90 && !problem.layer_norm) {
    for (const Block& block : kElementwiseBlocks) {
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {1, 3}, {1, 4}}) {
        tactics.push_back({GemmPath::kSm90, {block.m, block.n, cluster_m, cluster_n, 1}});
      }
    }
  }
  if (problem.sm90 && problem.layer_norm) {
    for (const Block& block : kLayerNormBlocks) {
      if (!SpansRow(problem, block)) continue;
      tactics.push_back(LayerNormTactic(problem, block, 1));
      if (2 * problem.n / block.n <= kMostCluster) tactics.push_back(LayerNormTactic(problem, block, 2));
    }
    for (const Block& block : kPartialBlocks) {
      for (int splits : {1, 2, 3, 4, 6, 8, 12}) {
        if (!CanSplit(problem, splits)) continue;
        for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 3}, {1, 4}}) {
          tactics.push_back({GemmPath::kSm90Split, {block.m, block.n, cluster_m, cluster_n, splits}});
        }
      }
    }
  }
  if (problem.sm90 && problem.layer_norm) {
    for (const Block& block : kElementwiseBlocks) {
      tactics.push_back(ElementwiseTactic(GemmPath::kSm90Round, block));
    }
  }
  if (problem.tensor_cores) tactics.push_back({GemmPath::kMma, {}});
  tactics.push_back({GemmPath::kSimt, {}});
  return tactics;
}

GemmTactic ChooseGemmTactic(const GemmProblem& problem) {
  if (!problem.sm90) return Portable(problem);
  return problem.layer_norm ? ChooseLayerNorm(problem) : ChooseElementwise(problem);
}

size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.layer_norm || tactic.path == GemmPath::kSm90) return 0;
  const int splits = tactic.path == GemmPath::kSm90Split ? tactic.tile.splits : 1;
  if (tactic.path == GemmPath::kSm90Round) return static_cast<size_t>(problem.m) * static_cast<size_t>(problem.n) * 2;
  return static_cast<size_t>(problem.m) * static_cast<size_t>(problem.n) * splits * sizeof(float);
}

}  // namespace bertfuse::cuda
