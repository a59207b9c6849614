// How long a tactic for a matrix product is expected to take, by which ChooseGemmTactic() chooses.
#ifndef BERTFUSE_OPS_GEMM_TIME_H_
#define BERTFUSE_OPS_GEMM_TIME_H_

#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

// Microseconds of one of GemmTactics(problem) in a model on an H200; infinity where its product is never chosen without
// a measurement. LayerNorm's kernel is chosen apart (ops/layer_norm_tactic) and counts as if it were that one.
double ExpectedTime(const GemmProblem& problem, const GemmTactic& tactic);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_TIME_H_
