// The ops of one matrix product: arguments, the choice of a tactic, and its launches.

#include <cstdio>

#include "core/gemm_op.h"
#include "core/op_table.h"
#include "kernels/layer_norm.h"
#include "ops/call.h"
#include "ops/gemm_backends.h"
#include "ops/gemm_candidates_cublaslt.h"
#include "ops/gemm_tactic.h"
#include "ops/layer_norm_tactic.h"
#include "ops/packed_rows.h"

namespace bertfuse::cuda {
namespace {

template <class T>
kernels::GemmArguments<kernels::Elements<T>> Arguments(const bertfuse_call& call, const GemmCall& gemm) {
  const auto data = [](const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : Data<T>(*tensor); };
  kernels::GemmArguments<kernels::Elements<T>> a = {};
  a.x = data(gemm.x);
  a.weight = data(gemm.weight);
  a.bias = data(gemm.bias);
  a.residual = data(gemm.residual);
  a.gamma = data(gemm.gamma);
  a.beta = data(gemm.beta);
  a.y = data(gemm.y);
  a.float_partials = static_cast<float*>(call.workspace);
  a.partials = static_cast<T*>(call.workspace);
  a.n = gemm.weight->shape[0];
  a.k = gemm.weight->shape[1];
  a.m = a.n == 0 ? 0 : NumElements(*gemm.y) / a.n;
  a.packed = PackedRowsOf(call, *gemm.row_count, a.m);
  a.epsilon = gemm.epsilon;
  a.activation = gemm.activation;
  a.weights_are_constant = IsConstant(call, gemm.weight) && IsConstant(call, gemm.bias) &&
                           IsConstant(call, gemm.gamma) && IsConstant(call, gemm.beta);
  // Each kernel of an encoder layer that reads or writes wide rows begins with the rows that the one before it ended
  // with: the QKV product begins with the last, attention forwards; the feed-forward's first product forwards, its
  // second one backwards.
  a.allow_tf32 = (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  a.last_rows_first = gemm.op.normalizes() || gemm.activation == Activation::kNone;
  return a;
}

// LayerNorm of float32 partial sums in the workspace.
template <class T>
kernels::LayerNormArguments<T> Norm(const kernels::GemmArguments<kernels::Elements<T>>& a) {
  kernels::LayerNormArguments<T> norm = {
      nullptr, a.float_partials, 1, a.bias, a.residual, a.gamma, a.beta, a.y, a.m, a.n, a.epsilon, a.activation};
  norm.vectors_are_constant = a.weights_are_constant, norm.packed = a.packed;
  return norm;
}

// Adds cuBLASLt and its algorithms, where it has any: asking for them takes a while the first time, so that a choice
// which cannot come to it does not ask. `all`: for the list of tactics.
template <class T>
void AddCublasLt(const bertfuse_call& call, const kernels::GemmArguments<kernels::Elements<T>>& a, bool all,
                 const kernels::Device& device, GemmProblem* problem) {
  const bool named = all || call.tactic >= 0;
  if ((call.flags & BERTFUSE_NO_CUBLASLT) != 0) return;
  if (!named && call.tuning == nullptr && !PrefersCublasLt(*problem)) return;
  if (!CublasLtGemm<T>::Supports(a, device)) return;
  if (!named && a.y == nullptr) {
    // For TensorRT, which builds an engine for any number of shapes: whatever is chosen when it runs.
    problem->cublaslt = {1, {kernels::cublaslt::WorkspaceLimit(device)}};
  } else {
    const auto plan = CublasLtGemm<T>::PlanOf(CublasLtForm(*problem), a, device);
    if (named || !plan->withdrawn()) problem->cublaslt = plan->algorithms();
  }
  if (problem->cublaslt.count > 0) problem->backends.Add(Backend::kCublasLt);
}

template <class T>
GemmProblem Problem(const bertfuse_call& call, const kernels::GemmArguments<kernels::Elements<T>>& a,
                    const GemmCall& gemm, const kernels::Device& device, bool all = false) {
  GemmProblem problem = {
      a.m, a.n, a.k, gemm.op.normalizes(), GemmBackendsFor<T>(a, device), &device, MeasuredOn(device)};
  problem.allow_tf32 = a.allow_tf32;
  problem.x_bytes = sizeof(*a.x), problem.y_bytes = sizeof(*a.y);
  problem.gelu = gemm.activation != Activation::kNone;
  if (problem.layer_norm) problem.layer_norm_vector = kernels::LayerNormVector(Norm<T>(a));
  if (gemm.row_count->dtype != BERTFUSE_ABSENT) problem.m = a.packed.expected, problem.capacity = a.m;
  problem.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
  problem.biased = a.activation != Activation::kNone || (!problem.layer_norm && a.bias != nullptr);
  AddCublasLt<T>(call, a, all, device, &problem);
  return problem;
}

TunedProblem Tuned(const bertfuse_call& call, const GemmCall& gemm) {
  const int64_t n = gemm.weight->shape[0], k = gemm.weight->shape[1];
  const bool tf32 = gemm.x->dtype == BERTFUSE_FLOAT32 && (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  int64_t m = n == 0 ? 0 : NumElements(*gemm.y) / n;
  if (gemm.row_count->dtype != BERTFUSE_ABSENT) m = RoundedRows(ExpectedRows(call, m));
  return {gemm.op.name,
          gemm.x->dtype,
          {m, n, k, 0},
          tf32,
          false,
          gemm.op.approximate >= 0 ? Activation::kGeluErf : gemm.activation};  // both GELUs are measured as one
}

// What the user measured, where that runs; else what the library chooses. Where only the measured tactic's LayerNorm
// kernel does not run, another one takes its place.
GemmChoice Choose(const bertfuse_call& call, const GemmCall& gemm, const GemmProblem& problem) {
  if (call.tuning == nullptr) return ChooseGemmTactic(problem);
  TunedProblem wanted = Tuned(call, gemm);
  const bool packed = problem.capacity > 0, deterministic = problem.deterministic_rows;
  for (const auto& [as_packed, as_deterministic] :
       {std::pair(packed, deterministic), {false, deterministic}, {packed, false}, {false, false}}) {
    wanted.packed = as_packed, wanted.deterministic_rows = as_deterministic;
    const GemmTactic* const tuned = FindTuned<GemmTactic>(call, wanted);
    if (tuned == nullptr) continue;
    const GemmTactic fitting = WithLayerNormKernel(problem, *tuned);
    if (Runs(problem, fitting)) return {fitting, ChosenBy::kTuningFile};
  }
  return ChooseGemmTactic(problem);
}

GemmTactic Tactic(const bertfuse_call& call, const GemmCall& gemm, const GemmProblem& problem) {
  if (call.tactic < 0) return Choose(call, gemm, problem).tactic;
  const std::vector<GemmTactic> tactics = GemmTactics(problem);
  if (static_cast<size_t>(call.tactic) >= tactics.size()) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "tactic %d is outside the %zu that this call has", call.tactic, tactics.size());
  }
  return tactics[call.tactic];
}

template <class T>
void RunTactic(const bertfuse_call& call, const GemmCall& gemm, const GemmProblem& problem, const GemmTactic& tactic,
               kernels::GemmArguments<kernels::Elements<T>> a, const kernels::Device& device) {
  const bool tiled = tactic.tile.block.m > 0;  // else the backend chooses its tile
  if (tactic.form == GemmForm::kRounded && tiled) a.last_wave = LastWaveOf(problem, tactic.tile);
  a.partial_rows = PartialRows(problem, tactic);
  a.scratch = static_cast<char*>(call.workspace) + GemmScratchOffset(problem, tactic);
  const size_t needed = GemmWorkspaceSize(problem, tactic);
  if (problem.workspace < needed) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: the workspace has %zu bytes, expected %zu", gemm.op.name, problem.workspace,
         needed);
  }
  if (tactic.layer_norm && !LayerNormSupports(*tactic.layer_norm, LayerNormAfter(problem, tactic))) {
    FailTooWide(gemm.op.name, a.n);
  }
  // What the product's epilogue does, and what is left to LayerNorm.
  kernels::GemmArguments<kernels::Elements<T>> product = a;
  kernels::LayerNormArguments<T> norm = Norm<T>(a);
  const bool activates = ActivatesProduct(tactic, a.activation != Activation::kNone);
  if (activates) norm.bias = nullptr, norm.activation = Activation::kNone;
  if (tactic.form == GemmForm::kRounded && !activates) product.bias = nullptr, product.activation = Activation::kNone;
  CheckCuda(LaunchGemm<T>(tactic, product, device, StreamOf(call)), gemm.op.name);
  if (!tactic.layer_norm) return;
  norm.splits = tactic.tile.splits;
  if (tactic.form == GemmForm::kRounded) {
    norm.product = a.y, norm.splits = 0;
    norm.partials = a.partials, norm.more_partials = tactic.tile.splits - 1, norm.last_wave = a.last_wave;
    norm.partial_rows = a.partial_rows;
  }
  CheckCuda(kernels::LayerNorm(*tactic.layer_norm, norm, device, StreamOf(call)), gemm.op.name);
}

template <class T>
void RunTyped(const bertfuse_call& call, const GemmCall& gemm) {
  const kernels::Device& device = DeviceOf(call);
  const kernels::GemmArguments<kernels::Elements<T>> a = Arguments<T>(call, gemm);
  if (a.m == 0 || a.n == 0) return;
  if (a.residual == a.y) Fail(BERTFUSE_INVALID_ARGUMENT, "%s: residual and y are the same memory", gemm.op.name);
  GemmProblem problem = Problem(call, a, gemm, device);
  problem.workspace = call.workspace == nullptr ? 0 : call.workspace_size;
  try {
    RunTactic<T>(call, gemm, problem, Tactic(call, gemm, problem), a, device);
  } catch (const CublasLtError& error) {
    problem.backends.Remove(Backend::kCublasLt);
    const GemmTactic other = call.tactic >= 0 ? GemmTactic() : Tactic(call, gemm, problem);
    if (call.tactic >= 0 || !Runs(problem, other)) Fail(error.code(), "%s: %s", gemm.op.name, error.what());
    if (error.is_first) {
      std::fprintf(stderr, "bertfuse: %s of %lldx%lldx%lld: %s; %s takes its place\n", gemm.op.name,
                   static_cast<long long>(a.m), static_cast<long long>(a.n), static_cast<long long>(a.k), error.what(),
                   Describe(other).c_str());
    }
    RunTactic<T>(call, gemm, problem, other, a, device);
  }
}

// Calls body(problem) with what the choice depends on.
template <class Body>
auto WithProblem(const bertfuse_call& call, const GemmCall& gemm, Body&& body, bool all = false) {
  return SwitchElement(gemm.x->dtype, [&](auto element) {
    return body(Problem(call, Arguments<decltype(element)>(call, gemm), gemm, DeviceOf(call), all));
  });
}

template <class Op>
void Run(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  SwitchElement(gemm.x->dtype, [&](auto element) { RunTyped<decltype(element)>(call, gemm); });
}

template <class Op>
size_t WorkspaceSize(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  return WithProblem(
      call, gemm, [&](const GemmProblem& problem) { return GemmWorkspaceSize(problem, Tactic(call, gemm, problem)); });
}

template <class Op>
constexpr Tactics kTactics = {
    [](const bertfuse_call& call) {
      const auto count = [](const GemmProblem& problem) { return static_cast<int32_t>(GemmTactics(problem).size()); };
      return WithProblem(call, GemmCall(call, kGemmOp<Op>), count, true);
    },
    [](const bertfuse_call& call, int32_t tactic) {
      bertfuse_call chosen = call;
      chosen.tactic = tactic;
      const GemmCall gemm(call, kGemmOp<Op>);
      return WithProblem(chosen, gemm,
                         [&](const GemmProblem& problem) { return Describe(Tactic(chosen, gemm, problem)); });
    },
    [](const bertfuse_call& call) { return Tuned(call, GemmCall(call, kGemmOp<Op>)); },
    [](const bertfuse_call& call) {
      const GemmCall gemm(call, kGemmOp<Op>);
      return WithProblem(call, gemm,
                         [&](const GemmProblem& problem) { return Describe(Choose(call, gemm, problem).by); });
    }};

template <class Op>
constexpr bertfuse_kernel GemmKernel() {
  return CudaKernel<Op, Run<Op>, WorkspaceSize<Op>, &kTactics<Op>>();
}

}  // namespace

const bertfuse_kernel kFusedGemm = GemmKernel<FusedGemm>();
const bertfuse_kernel kFusedGemmGelu = GemmKernel<FusedGemmGelu>();
const bertfuse_kernel kFusedGemmGeluLayerNorm = GemmKernel<FusedGemmGeluLayerNorm>();
const bertfuse_kernel kFusedGemmLayerNorm = GemmKernel<FusedGemmLayerNorm>();

}  // namespace bertfuse::cuda
