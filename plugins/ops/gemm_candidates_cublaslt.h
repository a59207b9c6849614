// Products in cuBLASLt as tactics: which there are, and when they are chosen without a measurement.
#ifndef BERTFUSE_OPS_GEMM_CANDIDATES_CUBLASLT_H_
#define BERTFUSE_OPS_GEMM_CANDIDATES_CUBLASLT_H_

#include <optional>
#include <vector>

#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

// The form of its products: what follows reads 16 bits where LayerNorm's kernels take them, else float32.
GemmForm CublasLtForm(const GemmProblem& problem);

// Appends a tactic for each of problem.cublaslt.
void ListCublasLt(const GemmProblem& problem, std::vector<GemmTactic>* tactics);

// Whether the tactic is one of these. Its form may be another one where alignment differs. True of other backends'.
bool CublasLtHas(const GemmProblem& problem, const GemmTactic& tactic);

// Whether the tactic takes no more rows than it is worth: where kernels/mma cannot take those that were not expected,
// cuBLASLt computes all packed rows that there is room for. True of other backends', which read on the device how many
// are real.
bool TakesPackedRows(const GemmProblem& problem, const GemmTactic& tactic);

// Bytes of scratch that cuBLASLt's algorithm takes, beside partial sums; 0 of other backends' tactics.
size_t CublasLtScratch(const GemmProblem& problem, const GemmTactic& tactic);

// Whether cuBLASLt may be chosen unless a measurement says so.
bool MayTakeCublasLt(const GemmProblem& problem);

// Unless a measurement says otherwise: the first of cuBLASLt's algorithms that fits problem.workspace, where the
// process has it and it may be chosen, and whether mma.sync, if the model chooses it, is taken in its place. The one
// place for this rule.
std::optional<GemmTactic> CublasLtByDefault(const GemmProblem& problem);
bool PrefersMma(const GemmProblem& problem);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_CANDIDATES_CUBLASLT_H_
