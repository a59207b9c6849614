#include "ops/gemm_tactic.h"

#include <algorithm>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;

struct Block {
  int m, n;
};

// The block sizes that were compiled (kernels/gemm_sm90_*.cu).
constexpr Block kElementwiseBlocks[] = {{128, 192}, {128, 256}, {64, 64}};
constexpr Block kLayerNormBlocks[] = {{128, 192}, {128, 256}, {64, 96}, {64, 128}};
constexpr Block kPartialBlocks[] = {{128, 192}, {64, 96}};
constexpr int kMostCluster = 8;  // what every Hopper device takes

bool SpansRow(const GemmProblem& problem, Block block) {
  return problem.n % block.n == 0 && problem.n / block.n <= kMostCluster;
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
  if (large * 2 < problem.multiprocessors) return {GemmPath::kSm90, {64, 64, problem.m > 64 ? 2 : 1, 1, 1}};
  return {GemmPath::kSm90, {128, 192, problem.m > 128 ? 2 : 1, 1, 1}};
}

GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const Block* widest = nullptr;  // of the large blocks that span the row
  const Block* small = nullptr;
  for (const Block& block : kLayerNormBlocks) {
    if (!SpansRow(problem, block)) continue;
    const Block*& best = block.m == 128 ? widest : small;
    if (best == nullptr) best = &block;
  }
  const auto blocks = [&](const Block* block) { return CeilDiv(problem.m, block->m) * (problem.n / block->n); };
  if (widest != nullptr && 2 * blocks(widest) >= problem.multiprocessors) return LayerNormTactic(problem, *widest, 1);
  if (small != nullptr && 4 * blocks(small) >= problem.multiprocessors) return LayerNormTactic(problem, *small, 1);
  // Few rows: parts of k, so that there are blocks for every multiprocessor.
  const int64_t tiles = CeilDiv(problem.m, 64) * CeilDiv(problem.n, 96);
  int splits = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(8, problem.multiprocessors / tiles)));
  while (!CanSplit(problem, splits)) --splits;
  const bool large = tiles >= 4 * problem.multiprocessors;
  const Block block = large ? kPartialBlocks[0] : kPartialBlocks[1];
  return {GemmPath::kSm90Split, {block.m, block.n, problem.m > block.m ? 2 : 1, 1, splits}};
}

}  // namespace

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  if (problem.sm90 && !problem.layer_norm) {
    for (const Block& block : kElementwiseBlocks) {
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}, {1, 4}}) {
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
        for (int cluster_m : {1, 2}) tactics.push_back({GemmPath::kSm90Split, {block.m, block.n, cluster_m, 1, splits}});
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
