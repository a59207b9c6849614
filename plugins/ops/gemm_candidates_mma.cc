// Products on the tensor cores of every architecture since 8.0 (kernels/mma).
#include <algorithm>
#include <cmath>

#include "kernels/mma/gemm.h"
#include "ops/gemm_candidates.h"

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::gemm_mma::Math;
using kernels::gemm_mma::Tile;

constexpr int kSplits[] = {1, 2, 3, 4, 6, 8};
constexpr int kLargestForFewRows = 128 * 128;  // outputs of a tile: larger ones are not split along k, nor deep
constexpr double kSharedBytesPerCycle = 128;
constexpr double kBarrierLatency = 475, kMmaLatency = 2.8;  // cycles of a stage, and more for each of a warp's products

Math MathOf(const GemmProblem& problem) {
  return problem.x_bytes == 2   ? Math::kHalf
         : problem.fp8          ? Math::kFp8
         : problem.x_bytes == 1 ? Math::kInt8
         : problem.allow_tf32   ? Math::kTf32
                                : Math::kThreeTf32;
}

// One block for a multiprocessor of a tile of which several may share one.
bool IsDeep(const kernels::GemmBlock& block) {
  return block.per_multiprocessor == 1 && block.m * block.n <= kLargestForFewRows;
}

bool CanSplit(const GemmProblem& problem, const Tile& tile, int splits) {
  const int64_t stages = CeilDiv(problem.k * problem.x_bytes, tile.row_bytes);
  return (splits - 1) * CeilDiv(stages, splits) < stages;
}

// LayerNorm reads a rounded product in 16 bits, several elements at a time.
bool RoundsBeforeLayerNorm(const GemmProblem& problem) { return problem.y_bytes == 2 && problem.layer_norm_vector > 1; }

void List(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  const bool few = problem.backends.Has(Backend::kSm90);  // beside wgmma one tile is enough to compare with
  kernels::gemm_mma::ForTiles(MathOf(problem), [&](const Tile& tile) {
    const int shared_bytes = problem.device->shared_bytes;
    const kernels::GemmBlock block = kernels::gemm_mma::BlockOn(MathOf(problem), tile, shared_bytes);
    if (block.stages == 0 || !kernels::gemm_mma::RunsOn(*problem.device, tile.has_long_stages())) return;
    if (few && (tile.m != 128 || tile.n != 128 || tile.has_long_stages())) return;
    // Where a multiprocessor gets one block, that one may have all of its shared memory. Two in turn take longer than
    // two at a time: 1024x3072x768 by 128x128 25.9 and 20.9 us on an H100.
    const kernels::GemmBlock alone = kernels::gemm_mma::BlockOn(MathOf(problem), tile, shared_bytes, 1);
    const int64_t tiles = CeilDiv(std::max<int64_t>(problem.m, 1), tile.m) * CeilDiv(problem.n, tile.n);
    const auto add = [&](GemmForm form, int splits) {
      tactics->push_back({Backend::kMma, form, {block, 1, 1, splits}});
      const bool one_each = tiles * splits <= problem.device->multiprocessors;
      if (one_each && IsDeep(alone) && alone.stages > block.stages && !few) {
        tactics->push_back({Backend::kMma, form, {alone, 1, 1, splits}});
      }
    };
    if (!problem.layer_norm) return add(ProductForm(problem), 1);
    if (RoundsBeforeLayerNorm(problem)) add(GemmForm::kRounded, 1);
    for (int splits : kSplits) {
      const bool useful = splits == 1 || (!few && tile.m * tile.n <= kLargestForFewRows);
      if (useful && CanSplit(problem, tile, splits)) add(GemmForm::kPartialSums, splits);
    }
  });
}

// What a multiprocessor gets from the L2 cache, by its bandwidth over multiprocessors: 8.0, 9.0 and 10.0 have several
// times as much as the others.
double L2BytesPerCycle(int compute_capability) {
  return compute_capability == 80 || compute_capability == 90 || compute_capability / 10 == 10 ? 40 : 18;
}

Tile TileOf(Math math, const kernels::GemmBlock& block) {
  Tile tile = {};
  kernels::gemm_mma::ForTiles(math, [&](const Tile& compiled) {
    const bool is_it =
        compiled.m == block.m && compiled.n == block.n && compiled.has_long_stages() == block.long_stages;
    if (is_it) tile = compiled;
  });
  return tile;
}

// Where two limits are about alike, both are felt.
double SmoothMinimum(double a, double b) { return std::pow(std::pow(a, -4) + std::pow(b, -4), -0.25); }

// A small warp tile keeps shared memory busier than the tensor cores: the copies fill a stage, and every warp reads its
// rows of it.
GemmKernelFacts Facts(const GemmProblem& problem, const GemmTactic& tactic) {
  const kernels::GemmBlock& block = tactic.tile.block;
  const Math math = MathOf(problem);
  const Tile tile = TileOf(math, block);
  const double halves = std::min(TensorFlopsPerCycle(problem.device->compute_capability), kMostMmaFlopsPerCycle);
  const double peak = math == Math::kHalf   ? halves
                      : IsQuantized(math)   ? halves * 2
                      : math == Math::kTf32 ? halves / 2
                                            : halves / 6;
  const int warps = tile.threads() / 32 / tile.slices, read_rows = warps * (tile.warp_m + tile.warp_n);
  const double shared_cycles = (tile.m + tile.n + read_rows) * tile.row_bytes / kSharedBytesPerCycle;
  const double flops = 2.0 * tile.m * tile.n * tile.row_bytes / problem.x_bytes;
  constexpr int kBytesOfStep = 32;
  const int steps = tile.row_bytes / kBytesOfStep * (math == Math::kThreeTf32 ? 3 : 1);
  const double products = static_cast<double>(tile.warp_m / 16 * (tile.warp_n / 8) * steps);
  return {tactic.tile,
          tile.row_bytes,
          kernels::gemm_mma::SharedBytes(math, tile, block.stages),
          SmoothMinimum(peak, flops / shared_cycles),
          L2BytesPerCycle(problem.device->compute_capability),
          false,
          (kBarrierLatency + kMmaLatency * products) / tile.slices,
          tile.slices,
          &kMmaConstants};
}

// Every tile adds up k in the same steps, but for those with slices.
bool RoundsAlike(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool rounded = problem.layer_norm && RoundsBeforeLayerNorm(problem);
  const GemmForm form = rounded              ? GemmForm::kRounded
                        : problem.layer_norm ? GemmForm::kPartialSums
                                             : ProductForm(problem);
  return tactic.form == form && tactic.tile.splits == 1 && TileOf(MathOf(problem), tactic.tile.block).slices == 1;
}

}  // namespace

const GemmCandidates kMmaCandidates = {Backend::kMma, List, Facts, RoundsAlike, IsDeep};

}  // namespace bertfuse::cuda
