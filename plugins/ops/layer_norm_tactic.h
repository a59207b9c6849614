// Choosing the kernel of LayerNorm where it follows a product in a launch of its own.
#ifndef BERTFUSE_OPS_LAYER_NORM_TACTIC_H_
#define BERTFUSE_OPS_LAYER_NORM_TACTIC_H_

#include <vector>

#include "kernels/layer_norm.h"
#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

inline bool LayerNormIsALaunch(const GemmProblem& problem, const GemmTactic& tactic) {
  return problem.layer_norm && tactic.form != GemmForm::kComplete;
}

// Whether the epilogue of a product that is rounded before LayerNorm adds the bias, which costs it nothing, and
// computes the activation. Partial sums cannot have them, and cuBLASLt has no exact GELU. Of deterministic rows the
// norm adds a bias without an activation: some kernels would begin with it, and others end.
inline bool ActivatesProduct(const GemmProblem& problem, const GemmTactic& tactic) {
  return tactic.form == GemmForm::kRounded && tactic.tile.splits == 1 && tactic.backend != Backend::kCublasLt &&
         (problem.gelu || !problem.deterministic_rows);
}

// What the kernel is to do after the tactic's product.
kernels::LayerNormProblem LayerNormAfter(const GemmProblem& problem, const GemmTactic& tactic);

// The kernels that GemmTactics() lists with the tactic's product; the first one takes every problem that any takes.
std::vector<kernels::LayerNormKernel> LayerNormKernels(const GemmProblem& problem, const GemmTactic& tactic);

// The kernel to use unless a measurement says otherwise: by the number of rows, except where rows are deterministic.
kernels::LayerNormKernel ChooseLayerNormKernel(const GemmProblem& problem, const GemmTactic& tactic);

// The tactic with a kernel that runs: its own if it has one, else the chosen one. Deterministic rows all take the
// latter.
GemmTactic WithLayerNormKernel(const GemmProblem& problem, GemmTactic tactic);

// "block per row".
const char* Describe(kernels::LayerNormKernel kernel);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_LAYER_NORM_TACTIC_H_
