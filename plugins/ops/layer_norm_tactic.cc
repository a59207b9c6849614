#include "ops/layer_norm_tactic.h"

namespace bertfuse::cuda {
namespace {

using kernels::LayerNormKernel;

// Rows for each multiprocessor from which a kernel is chosen. A warp for each row takes fewer instructions than a
// block, and no barrier. With fewer rows, or several partial sums of each, a block for each row has more loads in
// flight (docs/kernels.md has the figures).
constexpr int64_t kRowsForPersistentWarps = 2;
constexpr int64_t kRowsOfSeveralPartials = 4;  // for persistent warps, with more than one partial sum to add
constexpr int64_t kRowsForWarpPerRow = 16;
// Where it does not begin before the product ends, from half a row for each multiprocessor on: 128x768x3072 by cuBLASLt
// took an H100 10.9 us by a block for each row and 9.8 by persistent warps, 128x768x768 by mma.sync compiled for 8.0
// 8.9 (k split in two) and 7.6. Fewer rows were not measured.
constexpr double kRowsWithoutOverlap = 0.5;

// Whether LayerNorm's kernel begins before the product ends, by programmatic dependent launch, which code for 9.0 and
// later has. Where 9.0 multiplies 16 bits by mma.sync, the library has no code for it.
bool BeginsEarly(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.backend == Backend::kCublasLt) return false;
  if (tactic.backend != Backend::kMma || problem.backends.Has(Backend::kSm90)) return true;
  return problem.device->compute_capability >= 100;
}

}  // namespace

kernels::LayerNormProblem LayerNormAfter(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool rounded = tactic.form == GemmForm::kRounded;
  return {problem.n,
          problem.y_bytes,
          problem.layer_norm_vector,
          rounded,
          rounded ? tactic.tile.splits - 1 : 0,
          problem.gelu && !ActivatesProduct(problem, tactic)};
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
  const auto suits = [&](LayerNormKernel kernel, double least) {
    const double rows = static_cast<double>(problem.m), multiprocessors = problem.device->multiprocessors;
    return (problem.deterministic_rows || rows >= least * multiprocessors) && LayerNormSupports(kernel, norm);
  };
  const bool overlaps = BeginsEarly(problem, tactic);
  const double persistent = norm.more_partials > 1 ? kRowsOfSeveralPartials
                            : overlaps             ? kRowsForPersistentWarps
                                                   : kRowsWithoutOverlap;
  const bool few_partials = UnsplitRows(problem, tactic) > problem.m / 2;
  if (few_partials && suits(LayerNormKernel::kPersistentWarpsFewPartials, persistent)) {
    return LayerNormKernel::kPersistentWarpsFewPartials;
  }
  if (suits(LayerNormKernel::kPersistentWarps, persistent)) return LayerNormKernel::kPersistentWarps;
  if (suits(LayerNormKernel::kWarpPerRow, kRowsForWarpPerRow)) return LayerNormKernel::kWarpPerRow;
  return LayerNormKernel::kBlockPerRow;
}

GemmTactic WithLayerNormKernel(const GemmProblem& problem, GemmTactic tactic) {
  tactic.gate = GateIsALaunch(problem, tactic);
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
