#include "ops/gemm_tactic.h"

#include <optional>
#include <utility>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::GemmSm90Tile;

struct Block {
  int m, n;
};

// The block sizes that were compiled (kernels/gemm_sm90_*.cu). Of the first three, one to a multiprocessor, blocks take
// several tiles each.
constexpr Block kHuge = {192, 192}, kWidest = {128, 256}, kWide = {128, 192};
constexpr Block kLarge = {128, 128}, kLargeNarrow = {128, 96};
constexpr Block kSmall = {64, 64}, kSmallWide = {64, 96}, kSmallWidest = {64, 128};
constexpr Block kElementwiseBlocks[] = {kHuge, kWidest, kWide, kLarge, kLargeNarrow, kSmall, kSmallWide};
constexpr Block kLayerNormBlocks[] = {kHuge, kWidest, kWide, kLarge, kSmallWide, kSmallWidest};
constexpr Block kPartialBlocks[] = {kLarge, kSmallWide};
constexpr int kMostCluster = 8;      // what every Hopper device takes
constexpr int64_t kManyRows = 8192;  // from here on blocks stay

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

// How long the busiest multiprocessor multiplies, in elements of a tile's area, where blocks stay and `running` of them
// do so at a time.
int64_t StayingTime(const GemmProblem& problem, Block block, int64_t running) {
  return CeilDiv(Tiles(problem, block), running) * block.m * block.n;
}

// The block that stays and is done first, the largest of equals: it loads the least.
Block FastestStaying(const GemmProblem& problem) {
  const auto time = [&](Block block) { return StayingTime(problem, block, problem.multiprocessors); };
  return time(kWide) < time(kHuge) ? kWide : kHuge;
}

// The same in clusters that span a row. About a tenth of the multiprocessors cannot be in one (of three blocks 39 run
// at a time on an H200, of four 30).
std::optional<Block> FastestInClusters(const GemmProblem& problem) {
  std::optional<Block> fastest;
  int64_t least = 0;
  for (const Block& block : {kHuge, kWidest, kWide}) {
    if (!SpansRow(problem, block)) continue;
    const int64_t cluster = problem.n / block.n, running = problem.multiprocessors * 10 / 11 / cluster * cluster;
    if (running == 0) continue;
    const int64_t time = StayingTime(problem, block, running);
    if (!fastest || time < least) fastest = block, least = time;
  }
  return fastest;
}

// The rules below are measured on an H200 with bert-base's sizes (docs/performance.md).
GemmTactic ChooseElementwise(const GemmProblem& problem) {
  if (problem.m >= kManyRows) return ElementwiseTactic(GemmPath::kSm90, FastestStaying(problem));
  const bool few = Tiles(problem, kLarge) * 2 < problem.multiprocessors;
  return ElementwiseTactic(GemmPath::kSm90, few ? kSmall : FasterBlock(problem, kLarge, kLargeNarrow));
}

GemmTactic ChooseLayerNorm(const GemmProblem& problem) {
  const bool long_k = problem.k > 2 * problem.n;
  if (problem.m >= kManyRows) {
    // With a long k LayerNorm is a small part of the time: the product goes through memory until there are so many rows
    // that the multiprocessors which clusters leave idle cost less.
    const std::optional<Block> block = FastestInClusters(problem);
    if (block && (!long_k || problem.m >= 2 * kManyRows)) return LayerNormTactic(problem, *block, 1);
    return ElementwiseTactic(GemmPath::kSm90Round, FastestStaying(problem));
  }
  if (problem.m >= 2048) {
    if (!long_k && SpansRow(problem, kLarge)) return LayerNormTactic(problem, kLarge, 1);
    return ElementwiseTactic(GemmPath::kSm90Round, FasterBlock(problem, kWide, kLargeNarrow));
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
      tactics.push_back(ElementwiseTactic(GemmPath::kSm90, block));
      tactics.push_back({GemmPath::kSm90, {block.m, block.n, 2, 1, 1}});
      tactics.push_back({GemmPath::kSm90, {block.m, block.n, 1, 2, 1}});
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
        for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 4}}) {
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
