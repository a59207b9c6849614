#include "ops/gemm_tactic.h"

#include <algorithm>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;

struct Block {
  int m, n, warpgroups;
};

// The block sizes that were compiled (kernels/gemm_sm90_*.cu).
constexpr Block kElementwiseBlocks[] = {{128, 256, 2}, {128, 192, 2}, {64, 64, 1}};
constexpr Block kLayerNormBlocks[] = {{64, 192, 2}, {128, 192, 2}, {128, 256, 2}, {64, 96, 1}, {64, 128, 1}};
constexpr Block kPartialBlocks[] = {{128, 256, 2}, {128, 192, 2}, {64, 96, 1}};
constexpr int kMostCluster = 8;  // what every Hopper device takes

bool SpansRow(const GemmProblem& problem, Block block) {
  return problem.n % block.n == 0 && problem.n / block.n <= kMostCluster;
}

GemmTactic LayerNormTactic(const GemmProblem& problem, Block block, int cluster_m) {
  return {GemmPath::kSm90, {block.m, block.n, block.warpgroups, cluster_m, static_cast<int>(problem.n / block.n), 1}};
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
  if (large * 2 < problem.multiprocessors) return {GemmPath::kSm90, {64, 64, 1, 1, 1, 1}};
  // The tile whose last round of blocks leaves the fewest multiprocessors idle; the wider one loads less for each product.
  const auto rounds = [&](int64_t columns) {
    return columns * CeilDiv(CeilDiv(problem.m, 128) * CeilDiv(problem.n, columns), problem.multiprocessors);
  };
  return {GemmPath::kSm90, {128, rounds(192) < rounds(256) ? 192 : 256, 2, 1, 1, 1}};
}

GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const Block* widest = nullptr;  // of the large blocks that span the row
  const Block* small = nullptr;
  for (const Block& block : kLayerNormBlocks) {
    if (!SpansRow(problem, block)) continue;
    const Block*& best = block.warpgroups == 2 ? widest : small;
    if (best == nullptr) best = &block;
  }
  const auto blocks = [&](const Block* block) { return CeilDiv(problem.m, block->m) * (problem.n / block->n); };
  // Many rows: what a cluster of whole rows saves in memory traffic it loses in multiprocessors that its size leaves idle
  // (30 clusters of 4 fit on an H200, not 33) and in an epilogue that nothing overlaps with.
  const int64_t wide = CeilDiv(problem.m, 128) * CeilDiv(problem.n, 256);
  if (2 * wide >= problem.multiprocessors) {
    const int columns = static_cast<int>(CeilDiv(problem.n, 256));
    return {GemmPath::kSm90Split, {128, 256, 2, 1, columns <= 4 ? columns : 1, 1}};
  }
  if (widest != nullptr && 2 * blocks(widest) >= problem.multiprocessors) return LayerNormTactic(problem, *widest, 1);
  if (small != nullptr && 4 * blocks(small) >= problem.multiprocessors) return LayerNormTactic(problem, *small, 1);
  // Few rows: parts of k, so that there are blocks for every multiprocessor.
  const int64_t tiles = CeilDiv(problem.m, 64) * CeilDiv(problem.n, 96);
  int splits = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(8, problem.multiprocessors / tiles)));
  while (!CanSplit(problem, splits)) --splits;
  return {GemmPath::kSm90Split, {64, 96, 1, 1, 1, splits}};
}

}  // namespace

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  if (problem.sm90 && !problem.layer_norm) {
    for (const Block& block : kElementwiseBlocks) {
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {1, 3}, {1, 4}}) {
        tactics.push_back({GemmPath::kSm90, {block.m, block.n, block.warpgroups, cluster_m, cluster_n, 1}});
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
          tactics.push_back({GemmPath::kSm90Split, {block.m, block.n, block.warpgroups, cluster_m, cluster_n, splits}});
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
