#include "ops/gemm_candidates_cublaslt.h"

#include <algorithm>

#include "ops/gemm_candidates.h"
#include "ops/layer_norm_tactic.h"

namespace bertfuse::cuda {
namespace {

// Of packed rows cuBLASLt computes as many as are expected, and kernels/mma what there are more. Without that it
// computes the whole capacity, because it takes m on the host; up to so many rows for each expected one it is the
// faster.
constexpr int64_t kMostRowsForEach = 2;

// With so few rows what has to be done behind the product decides: the launch that an activation takes behind cuBLASLt,
// and its float32 sums before LayerNorm, where cuBLASLt does not round them.
constexpr int64_t kFewRows = 128;

bool TakesPackedRows(const GemmProblem& problem) {
  return problem.backends.Has(Backend::kMma) || problem.capacity <= kMostRowsForEach * problem.m;
}

}  // namespace

GemmForm CublasLtForm(const GemmProblem& problem) {
  if (!problem.layer_norm) return ProductForm(problem);
  const GemmTactic rounded = {Backend::kCublasLt, GemmForm::kRounded};
  const bool reads = LayerNormSupports(kernels::LayerNormKernel::kBlockPerRow, LayerNormAfter(problem, rounded));
  return reads ? GemmForm::kRounded : GemmForm::kPartialSums;
}

void ListCublasLt(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  for (int i = 0; i < problem.cublaslt.count; ++i) {
    GemmTactic tactic = {Backend::kCublasLt, CublasLtForm(problem)};
    tactic.algorithm = i;
    tactics->push_back(tactic);
  }
}

bool CublasLtHas(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.backend != Backend::kCublasLt) return true;
  return tactic.algorithm < problem.cublaslt.count && tactic.form == CublasLtForm(problem);
}

bool TakesPackedRows(const GemmProblem& problem, const GemmTactic& tactic) {
  return tactic.backend != Backend::kCublasLt || TakesPackedRows(problem);
}

size_t CublasLtScratch(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool known = tactic.backend == Backend::kCublasLt && tactic.algorithm < problem.cublaslt.count;
  return known ? problem.cublaslt.workspace_bytes[tactic.algorithm] : 0;
}

// Exact float32 by three products of TF32 numbers, where the tensor cores do these faster than the others do float32
// arithmetic (9.0: 4/3, 8.0: 8/3; not 8.6, 8.9 and 12.0: 2/3). On an H100, in us, and in cuBLASLt: 32x2304x768 8.2 and
// 13.0, 128x2304x768 14.9 and 19.4, 128x768x3072 with LayerNorm 18.6 and 27.9, 4096x2304x768 256 and 383.
bool PrefersThreeTf32(const GemmProblem& problem) {
  const bool exact = problem.x_bytes == 4 && !problem.allow_tf32;
  if (!exact || !problem.backends.Has(Backend::kMma)) return false;
  const int capability = problem.device->compute_capability;
  return std::min(TensorFlopsPerCycle(capability), kMostMmaFlopsPerCycle) / 6 > Float32FlopsPerCycle(capability);
}

// The same by code of 8.0, 128 rows: 3072x768 with GELU 6.0 and 7.9, 768x768 with LayerNorm 6.5 and 6.9, 768x3072 with
// LayerNorm 9.3 and 9.8; by TF32 8.7 and 11.2, 8.7 and 11.5, 12.0 and 15.4. 256 rows: 9.5 and 8.8, 7.3 and 7.1, 11.1
// and 10.4. Without either cuBLASLt has the faster product: 2304x768 5.6 and 4.9.
bool PrefersFewRows(const GemmProblem& problem) {
  const bool rounds = problem.x_bytes == 2 || (problem.x_bytes == 4 && problem.allow_tf32);
  return rounds && (problem.gelu || problem.layer_norm) && problem.m <= kFewRows && problem.backends.Has(Backend::kMma);
}

bool PrefersMma(const GemmProblem& problem) { return PrefersThreeTf32(problem) || PrefersFewRows(problem); }

// Measured on an H200 (docs/performance.md): there 16-bit products stay with kernels/sm90, which with bias or GELU
// takes 0.84 to 1.27 times what cuBLAS takes for the product alone. Everything else, and what kernels/mma took there,
// is faster in cuBLASLt but for what PrefersMma() names. Not measured: kMostRowsForEach.
bool MayTakeCublasLt(const GemmProblem& problem) {
  return !problem.deterministic_rows && !problem.backends.Has(Backend::kSm90) && TakesPackedRows(problem);
}

std::optional<GemmTactic> CublasLtByDefault(const GemmProblem& problem) {
  if (!problem.backends.Has(Backend::kCublasLt) || !MayTakeCublasLt(problem)) return {};
  std::vector<GemmTactic> tactics;
  ListCublasLt(problem, &tactics);
  for (const GemmTactic& tactic : tactics) {
    if (GemmWorkspaceSize(problem, tactic) <= problem.workspace) return tactic;
  }
  return {};
}

// It does not say what its kernels are: CublasLtByDefault() chooses it, not the cost model.
const GemmCandidates kCublasLtCandidates = {Backend::kCublasLt, ListCublasLt};

}  // namespace bertfuse::cuda
