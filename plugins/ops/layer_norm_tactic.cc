#include "ops/layer_norm_tactic.h"

namespace bertfuse::cuda {
namespace {

using kernels::LayerNormKernel;

// The fewest rows for which a kernel is chosen. A warp for each row takes fewer instructions than a block: on an H200,
// 6.3 instead of 7.3 us at 1024 rows (docs/notebook.md). With few rows, or several partial sums of each, a block for
// each row has more loads in flight. No figures were kept of where the limits were found, on an H200. Some that were
// measured later are in docs/kernels.md.
constexpr int64_t kLeastForPersistentWarps = 256;
constexpr int64_t kLeastOfSeveralPartials = 512;  // for persistent warps, with more than one partial sum to add
constexpr int64_t kLeastForWarpPerRow = 2048;

}  // namespace

kernels::LayerNormProblem LayerNormAfter(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool rounded = tactic.path == GemmPath::kSm90ThenLayerNorm;
  return {problem.n,
          problem.y_bytes,
          problem.layer_norm_vector,
          rounded,
          rounded ? tactic.tile.splits - 1 : 0,
          problem.gelu && !ActivatesProduct(tactic, problem.gelu)};
}

std::vector<LayerNormKernel> LayerNormKernels(const GemmProblem& problem, const GemmTactic& tactic) {
  const kernels::LayerNormProblem norm = LayerNormAfter(problem, tactic);
  std::vector<LayerNormKernel> found = {LayerNormKernel::kBlockPerRow};
  for (LayerNormKernel kernel : {LayerNormKernel::kPersistentWarps, LayerNormKernel::kPersistentWarpsFewPartials}) {
    if (LayerNormSupports(kernel, norm)) found.push_back(kernel);
  }
  // Fewer loads in flight than persistent warps have.
  if (found.size() == 1 && LayerNormSupports(LayerNormKernel::kWarpPerRow, norm)) {
    found.push_back(LayerNormKernel::kWarpPerRow);
  }
  return found;
}

LayerNormKernel ChooseLayerNormKernel(const GemmProblem& problem, const GemmTactic& tactic) {
  const kernels::LayerNormProblem norm = LayerNormAfter(problem, tactic);
  const int64_t rows = problem.deterministic_rows ? INT64_MAX : problem.m;
  const auto choose = [&](LayerNormKernel kernel, int64_t least) {
    return rows >= least && LayerNormSupports(kernel, norm);
  };
  const int64_t persistent = norm.more_partials > 1 ? kLeastOfSeveralPartials : kLeastForPersistentWarps;
  // bert-base with 8,500 packed rows, 52 of them with five more partial sums: 14.5 us where one partial sum took 10.
  const bool few = UnsplitRows(problem, tactic) > problem.m / 2;
  if (few && choose(LayerNormKernel::kPersistentWarpsFewPartials, persistent)) {
    return LayerNormKernel::kPersistentWarpsFewPartials;
  }
  if (choose(LayerNormKernel::kPersistentWarps, persistent)) return LayerNormKernel::kPersistentWarps;
  if (choose(LayerNormKernel::kWarpPerRow, kLeastForWarpPerRow)) return LayerNormKernel::kWarpPerRow;
  return LayerNormKernel::kBlockPerRow;
}

GemmTactic WithLayerNormKernel(const GemmProblem& problem, GemmTactic tactic) {
  if (!LayerNormIsALaunch(problem, tactic)) return tactic;
  const bool keeps = tactic.layer_norm && !problem.deterministic_rows &&
                     LayerNormSupports(*tactic.layer_norm, LayerNormAfter(problem, tactic));
  if (!keeps) tactic.layer_norm = ChooseLayerNormKernel(problem, tactic);
  return tactic;
}

const char* Describe(LayerNormKernel kernel) {
  switch (kernel) {
    case LayerNormKernel::kBlockPerRow:
      return "block per row";
    case LayerNormKernel::kWarpPerRow:
      return "warp per row";
    case LayerNormKernel::kPersistentWarps:
      return "persistent warps";
    case LayerNormKernel::kPersistentWarpsFewPartials:
      return "persistent warps, few partial sums";
  }
  return "";
}

}  // namespace bertfuse::cuda
