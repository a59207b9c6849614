#include "ops/gemm_tactic.h"

#include <utility>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;

struct Block {
  int m, n;
};

// The block sizes that were compiled (kernels/gemm_sm90_*.cu). Those of 128 rows finish a tile while they multiply the
// next, except with parts of k.
constexpr Block kElementwiseBlocks[] = {{128, 192}, {128, 128}, {64, 64}};
constexpr Block kLayerNormBlocks[] = {{128, 256}, {128, 192}, {64, 96}, {64, 128}};
constexpr Block kPartialBlocks[] = {{128, 256}, {128, 192}, {64, 96}};
constexpr int kMostCluster = 8;  // what every Hopper device takes

// Shared memory holds the row statistics of 7 slices of 256 columns, not of 8.
bool SpansRow(const GemmProblem& problem, Block block) {
  return problem.n % block.n == 0 && problem.n / block.n <= (block.n == 256 ? kMostCluster - 1 : kMostCluster);
}

GemmTactic LayerNormTactic(const GemmProblem& problem, Block block, int cluster_m) {
  return {GemmPath::kSm90, {block.m, block.n, cluster_m, static_cast<int>(problem.n / block.n), 1}};
}

bool CanSplit(const GemmProblem& problem, int splits) {
  const int64_t stages = CeilDiv(problem.k, 64), each = CeilDiv(stages, splits);
  return (splits - 1) * each < stages;
}

GemmTactic Portable(const GemmProblem& problem) {
  return {problem.tensor_cores ? GemmPath::kMma : GemmPath::kSimt, {}};
}

GemmTactic ChooseElementwise(const GemmProblem& problem) {
  const int64_t large = CeilDiv(problem.m, 128) * CeilDiv(problem.n, 192);
  if (large * 2 < problem.multiprocessors) return {GemmPath::kSm90, {64, 64, 1, 1, 1}};
  return {GemmPath::kSm90, {128, 192, 1, 1, 1}};
}

GemmTactic SplitTactic(Block block, int splits) { return {GemmPath::kSm90Split, {block.m, block.n, 1, 1, splits}}; }

// Measured on an H200 with n = 768 (docs/performance.md).
GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const bool long_k = problem.k > 2 * problem.n;
  if (problem.m >= 2048) {
    for (const Block& block : {kLayerNormBlocks[0], kLayerNormBlocks[1]}) {
      if (SpansRow(problem, block)) return LayerNormTactic(problem, block, 1);
    }
    return SplitTactic(kPartialBlocks[0], 1);
  }
  if (problem.m >= 512 && !long_k) {
    for (const Block& block : {kLayerNormBlocks[3], kLayerNormBlocks[2]}) {
      if (SpansRow(problem, block)) return LayerNormTactic(problem, block, 1);
    }
  }
  // Few rows: parts of k, so that there are blocks for every multiprocessor.
  int splits = problem.m >= 512 ? 1 : 4;
  while (!CanSplit(problem, splits)) --splits;
  return SplitTactic(kPartialBlocks[2], splits);
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
  return static_cast<size_t>(problem.m) * static_cast<size_t>(problem.n) * splits * sizeof(float);
}

}  // namespace bertfuse::cuda
