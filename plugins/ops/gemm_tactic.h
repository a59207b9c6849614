// Choosing how to compute a matrix product with its epilogue; launching it is ops/gemm.cc.
#ifndef BERTFUSE_OPS_GEMM_TACTIC_H_
#define BERTFUSE_OPS_GEMM_TACTIC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cublaslt/plan.h"
#include "kernels/gemm.h"
#include "kernels/layer_norm.h"
#include "kernels/sm90/gemm.h"

namespace bertfuse::cuda {

using kernels::Backend;
using kernels::GemmForm;

struct GemmTactic {
  Backend backend;
  GemmForm form;
  kernels::GemmTile tile = {};                              // of a backend that does not choose it itself
  std::optional<kernels::LayerNormKernel> layer_norm = {};  // where LayerNorm has a launch of its own
  int algorithm = 0;                                        // of problem.cublaslt, by its place there
  bool gate = false;                                        // has a launch of its own
};

class MeasuredGemms;  // ops/measured_gemms.h

// What a choice may depend on.
struct GemmProblem {
  int64_t m, n, k;  // m of packed rows: as many as are expected
  bool layer_norm;
  kernels::BackendSet backends;  // those that run on the device and take the product's types, sizes and alignment
  const kernels::Device* device;
  const MeasuredGemms* measured = nullptr;  // on such a device, where there is any
  size_t workspace = SIZE_MAX;              // bytes available: a choice never takes more
  int64_t capacity = 0;                     // of packed rows; 0: rows are not packed
  int x_bytes = 2, y_bytes = 2;             // of an element
  bool fp8 = false;                         // x of one byte is floats, not integers
  bool deterministic_rows = false;          // a row's bits are to be the same whatever m is
  bool biased = true;                       // a bias is added before the product is rounded, or an activation computed
  bool gelu = false;                        // among the epilogue's steps
  bool gates = false;                       // n is of a gate and what it multiplies: y has half as many columns
  // What is normalised is an output, too, or y or the residual is in 8 bits: the norm has a launch of its own, but for
  // quantizes_rows.
  bool keeps_total = false;
  // The sum is an output, and a product that can may add the residual to it: the norm then reads the sum alone.
  bool adds_residual = false;
  // y is wanted in 8 bits of x's type, by one scale: what does not write it so has a launch more, but a gate's own.
  bool quantizes = false;
  // y is wanted behind the norm in 8 bits of x's type, too, over each row's own scale.
  bool quantizes_rows = false;
  // Heads are rotated as the epilogues of Hopper's blocks do that can: what does not has a launch more. (Rotations of
  // another form have it with any tactic.)
  bool rotates = false;
  int layer_norm_vector = 8;  // elements that LayerNorm's kernel reads at a time (kernels::LayerNormVector())
  bool allow_tf32 = false;    // float32 operands may be rounded
  kernels::cublaslt::Algorithms cublaslt = {};  // some where backends has kCublasLt
};

bool operator==(const GemmProblem& a, const GemmProblem& b);

// The form whose product is rounded to 16 bits once.
inline GemmForm ProductForm(const GemmProblem& problem) {
  return problem.layer_norm || problem.gates ? GemmForm::kRounded : GemmForm::kComplete;
}

inline bool GateIsALaunch(const GemmProblem& problem, const GemmTactic& tactic) {
  return problem.gates && tactic.form == GemmForm::kRounded;
}

// Whether the product's epilogue writes y in 8 bits, where that is wanted.
inline bool WritesQuantized(const GemmProblem& problem, const GemmTactic& tactic) {
  return problem.quantizes && tactic.backend == Backend::kSm90 && tactic.form == GemmForm::kComplete &&
         kernels::gemm_sm90::Quantizes(tactic.tile.block);
}

// Whether the product's epilogue rotates heads, where that is wanted.
inline bool RotatesInEpilogue(const GemmProblem& problem, const GemmTactic& tactic) {
  return problem.rotates && tactic.backend == Backend::kSm90 && tactic.form == GemmForm::kComplete &&
         kernels::gemm_sm90::Rotates(tactic.tile.block);
}

// Whether the product's epilogue adds the residual, where that may be.
inline bool AddsResidual(const GemmProblem& problem, const GemmTactic& tactic) {
  return problem.adds_residual && tactic.backend == Backend::kSm90 && tactic.form == GemmForm::kRounded &&
         tactic.tile.splits == 1 && kernels::gemm_sm90::AddsResidual(tactic.tile.block);
}

// Stages of the pipeline along k, or along one of its splits.
inline int64_t Stages(const GemmProblem& problem, int splits = 1) {
  return kernels::CeilDiv(kernels::CeilDiv(problem.k * problem.x_bytes, kernels::kStageRowBytes), splits);
}

// Whether Hopper's kernels are to promote their sums over k, or over one of its splits (GemmBlock::promotes), unless
// the user's tuning file says otherwise.
inline bool Promotes(const GemmProblem& problem, int splits = 1) {
  return problem.fp8 && Stages(problem, splits) * kernels::kStageRowBytes > kernels::kLongestUnpromotedK;
}

// Every tactic that computes the problem, in an order that does not change from call to call. (LayerNorm of rows that
// no kernel takes fails when it is run.)
std::vector<GemmTactic> GemmTactics(const GemmProblem& problem);

// The one of that name (Describe()), if the problem has it.
std::optional<GemmTactic> FindGemmTactic(const GemmProblem& problem, std::string_view name);

// What chose a tactic.
enum class ChosenBy {
  kModel,     // the cost model (ops/gemm_cost.h): the least expected time; or a rule: weight-stationary kernels, narrow
              // tiles
  kMeasured,  // measurements on such a device, which the library has (ops/measured_gemms.h)
  kTuningFile  // measurements on the user's device
};

struct GemmChoice {
  GemmTactic tactic;
  ChosenBy by;
};

// The one to use unless the user's tuning file names another. It fits problem.workspace.
GemmChoice ChooseGemmTactic(const GemmProblem& problem);

// Whether the problem's backends, alignment, workspace and rows allow the tactic, which is one of its n, k and dtype:
// of packed rows those that are real, too, for one that computes all that there is room for.
bool Runs(const GemmProblem& problem, const GemmTactic& tactic);

// Whether a row's bits are those that ChooseGemmTactic() gives it for every other m, where these are to be the same.
bool IsDeterministicByRow(const GemmProblem& problem, const GemmTactic& tactic);

// The last wave of a kRounded tactic with splits: its tiles are split along k, and their partial sums rounded
// to 16 bits.
kernels::LastWave LastWaveOf(const GemmProblem& problem, const kernels::GemmTile& tile);

// How many of the m rows are not split along k.
int64_t UnsplitRows(const GemmProblem& problem, const GemmTactic& tactic);

// Rows of partial sums that the workspace must have room for, for each split but the first.
int64_t PartialRows(const GemmProblem& problem, const GemmTactic& tactic);

// Bytes of scratch that the tactic takes, whatever problem.workspace is.
size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic);

// Where of it GemmArguments::scratch begins.
size_t GemmScratchOffset(const GemmProblem& problem, const GemmTactic& tactic);

// "sm90 64x96 cluster 1x4 split-K 2 then LayerNorm, block per row", "simt then gate". Different tactics of one problem
// have different names.
std::string Describe(const GemmTactic& tactic);

// "model", "measured" or "tuning file".
const char* Describe(ChosenBy by);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_TACTIC_H_
