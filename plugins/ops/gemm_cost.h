// How long a tactic for a matrix product is expected to take, by which ChooseGemmTactic() chooses where nothing was
// measured.
#ifndef BERTFUSE_OPS_GEMM_COST_H_
#define BERTFUSE_OPS_GEMM_COST_H_

#include "ops/gemm_candidates.h"

namespace bertfuse::cuda {

// Microseconds of the tactic's launches one after the other, from FLOPs, bytes, waves, stages and problem.device's
// numbers. Which of LayerNorm's kernels runs makes no difference: that is chosen apart (ops/layer_norm_tactic.h).
double ExpectedMicroseconds(const GemmProblem& problem, const GemmTactic& tactic, const GemmKernelFacts& facts);

// Blocks of a tactic that a multiprocessor runs at a time.
int ResidentBlocks(const kernels::Device& device, const GemmKernelFacts& facts);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_COST_H_
