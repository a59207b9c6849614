// Choosing how to compute a matrix product with its epilogue; launching it is ops/gemm_call.
#ifndef BERTFUSE_OPS_GEMM_TACTIC_H_
#define BERTFUSE_OPS_GEMM_TACTIC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm_sm90.h"
#include "kernels/layer_norm.h"

namespace bertfuse::cuda {

enum class GemmPath {
  kSimt,               // float32 arithmetic, any alignment
  kMma,                // tensor cores of any architecture
  kSm90,               // Hopper: all in one launch
  kSm90SplitK,         // Hopper: float32 partial sums of split-K into scratch, then a LayerNorm kernel adds them up
  kSm90ThenLayerNorm,  // Hopper: the product into y, rounded to 16 bits, then a LayerNorm kernel over it
};

struct GemmTactic {
  GemmPath path;
  kernels::GemmSm90Tile tile;                               // for the Hopper paths
  std::optional<kernels::LayerNormKernel> layer_norm = {};  // where LayerNorm has a launch of its own
};

// What a choice may depend on.
struct GemmProblem {
  int64_t m, n, k;  // m of packed rows: as many as are expected
  bool layer_norm;
  bool tensor_cores;  // 2-byte elements, or float32 with TF32 allowed; rows on 16-byte boundaries
  bool sm90;          // 2-byte elements, and a device that runs the Hopper kernels
  int multiprocessors;
  size_t workspace = SIZE_MAX;      // bytes available: a choice never takes more
  int64_t capacity = 0;             // of packed rows; 0: rows are not packed
  int x_bytes = 2, y_bytes = 2;     // of an element
  bool deterministic_rows = false;  // a row's bits are to be the same whatever m is
  bool biased = true;               // a bias is added before the product is rounded, or an activation computed
  bool gelu = false;                // among the epilogue's steps
  int layer_norm_vector = 8;        // elements that LayerNorm's kernel reads at a time (kernels::LayerNormVector())
};

bool operator==(const GemmProblem& a, const GemmProblem& b);

// A product that LayerNorm follows, and whose k alone keeps many multiprocessors busy.
inline bool HasLongK(const GemmProblem& problem) { return problem.layer_norm && problem.k > 2 * problem.n; }

// Stages of the pipeline along k, or along one of its splits.
inline int64_t Stages(const GemmProblem& problem, int splits = 1) {
  return kernels::CeilDiv(kernels::CeilDiv(problem.k * problem.x_bytes, kernels::kStageRowBytes), splits);
}

// Every tactic that computes the problem, in an order that does not change from call to call. (LayerNorm of rows that
// no kernel takes fails when it is run.)
std::vector<GemmTactic> GemmTactics(const GemmProblem& problem);

// The one to use unless a measurement on the user's device says otherwise: of those that fit problem.workspace the one
// that is expected to take the least time (ops/gemm_time).
GemmTactic ChooseGemmTactic(const GemmProblem& problem);

// Whether a row's bits are those that ChooseGemmTactic() gives it for every other m, where these are to be the same.
bool IsDeterministicByRow(const GemmProblem& problem, const GemmTactic& tactic);

// The last wave of a kSm90ThenLayerNorm tactic with splits: its tiles are split along k, and their partial sums rounded
// to 16 bits.
kernels::LastWave LastWaveOf(const GemmProblem& problem, const kernels::GemmSm90Tile& tile);

// How many of the m rows are not split along k.
int64_t UnsplitRows(const GemmProblem& problem, const GemmTactic& tactic);

// Rows of partial sums that the workspace must have room for, for each split but the first.
int64_t PartialRows(const GemmProblem& problem, const GemmTactic& tactic);

// Bytes of scratch that the tactic takes, whatever problem.workspace is.
size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic);

// "sm90 64x96 cluster 1x4 split-K 2 then LayerNorm, block per row". Different tactics of one problem have different
// names.
std::string Describe(const GemmTactic& tactic);

// The names that older tuning files have for it. They did not name LayerNorm's kernel: it is the one that is chosen.
std::vector<std::string> FormerNames(const GemmProblem& problem, const GemmTactic& tactic);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_TACTIC_H_
