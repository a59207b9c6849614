#include "ops/gemm_call.h"

#include <cstring>

#include "core/op_table.h"
#include "kernels/gemm.h"
#include "kernels/gemm_sm90.h"
#include "kernels/layer_norm.h"
#include "ops/call.h"
#include "ops/gemm_tactic.h"
#include "ops/layer_norm_tactic.h"
#include "ops/packed_rows.h"

namespace bertfuse::cuda {
namespace {

template <class T>
kernels::GemmSm90Arguments<kernels::Elements<T>> Arguments(const bertfuse_call& call, const GemmCall& gemm) {
  const auto data = [](const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : Data<T>(*tensor); };
  kernels::GemmSm90Arguments<kernels::Elements<T>> a = {};
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
  // with: the QKV product goes backwards, attention forwards; the feed-forward's first product forwards, its second one
  // backwards.
  a.backwards = gemm.gamma != nullptr || gemm.activation == kernels::Activation::kNone;
  return a;
}

template <class T>
kernels::GemmArguments<T> Portable(const kernels::GemmSm90Arguments<kernels::Elements<T>>& a, bool layer_norm) {
  return {a.x, a.weight, a.bias, a.y, layer_norm ? a.float_partials : nullptr, a.m, a.n, a.k, a.activation, a.packed};
}

// LayerNorm of float32 partial sums in the workspace.
template <class T>
kernels::LayerNormArguments<T> Norm(const kernels::GemmSm90Arguments<kernels::Elements<T>>& a) {
  kernels::LayerNormArguments<T> norm = {
      nullptr, a.float_partials, 1, a.bias, a.residual, a.gamma, a.beta, a.y, a.m, a.n, a.epsilon, a.activation};
  norm.vectors_are_constant = a.weights_are_constant, norm.packed = a.packed;
  return norm;
}

template <class T>
GemmProblem Problem(const bertfuse_call& call, const kernels::GemmSm90Arguments<kernels::Elements<T>>& a,
                    const GemmCall& gemm, const kernels::Device& device) {
  GemmProblem problem = {a.m, a.n, a.k, gemm.gamma != nullptr, false, false, device.multiprocessors};
  problem.x_bytes = sizeof(*a.x), problem.y_bytes = sizeof(*a.y);
  problem.gelu = gemm.activation != kernels::Activation::kNone;
  if (problem.layer_norm) problem.layer_norm_vector = kernels::LayerNormVector(Norm<T>(a));
  if (gemm.row_count->dtype != BERTFUSE_ABSENT) problem.m = a.packed.expected, problem.capacity = a.m;
  problem.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
  problem.biased = a.activation != kernels::Activation::kNone || (!problem.layer_norm && a.bias != nullptr);
  const bool allowed = !std::is_same_v<T, float> || (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  problem.tensor_cores = allowed && kernels::GemmMmaSupports(Portable(a, problem.layer_norm));
  if constexpr (kIsHalf<T>) {
    problem.sm90 = problem.tensor_cores && a.k > 0 && kernels::GemmSm90Supports(a, device);
  }
  return problem;
}

// Whether the problem's alignment and workspace allow the tactic, which is one of its sizes and dtype.
bool Runs(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool aligned = tactic.path == GemmPath::kSimt || (tactic.path == GemmPath::kMma && problem.tensor_cores) ||
                       (tactic.path != GemmPath::kMma && problem.sm90);
  return aligned && IsDeterministicByRow(problem, tactic) && GemmWorkspaceSize(problem, tactic) <= problem.workspace;
}

// The measured tactic, where there is one that runs. Where only its LayerNorm kernel does not, another one takes its
// place.
GemmTactic Tactic(const bertfuse_call& call, const GemmCall& gemm, const GemmProblem& problem) {
  if (call.tactic < 0) {
    const GemmTactic* tuned = FindTuned<GemmTactic>(call, TunedGemm(call, gemm));
    if (tuned == nullptr) return ChooseGemmTactic(problem);
    const GemmTactic fitting = WithLayerNormKernel(problem, *tuned);
    return Runs(problem, fitting) ? fitting : ChooseGemmTactic(problem);
  }
  const std::vector<GemmTactic> tactics = GemmTactics(problem);
  if (static_cast<size_t>(call.tactic) >= tactics.size()) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "tactic %d is outside the %zu that this call has", call.tactic, tactics.size());
  }
  return tactics[call.tactic];
}

template <class T>
cudaError_t RunPortable(const kernels::GemmSm90Arguments<kernels::Elements<T>>& a, bool layer_norm, GemmPath path,
                        const kernels::Device& device, cudaStream_t stream) {
  const kernels::GemmArguments<T> product = Portable(a, layer_norm);
  return path == GemmPath::kMma ? kernels::GemmMma(product, device, stream)
                                : kernels::GemmSimt(product, device, stream);
}

template <class T>
bool ActivatesProduct(const kernels::GemmSm90Arguments<kernels::Elements<T>>& a, const GemmTactic& tactic) {
  return ActivatesProduct(tactic, a.activation != kernels::Activation::kNone);
}

template <class T>
cudaError_t RunSm90(const kernels::GemmSm90Arguments<kernels::Elements<T>>& a, bool layer_norm,
                    const GemmTactic& tactic, const kernels::Device& device, cudaStream_t stream) {
  if constexpr (!kIsHalf<T> || !kernels::kHopperIsBuilt) {
    return cudaErrorInvalidConfiguration;
  } else {
    if (tactic.path == GemmPath::kSm90ThenLayerNorm) {
      kernels::GemmSm90Arguments<kernels::Elements<T>> product = a;
      if (!ActivatesProduct(a, tactic)) product.bias = nullptr, product.activation = kernels::Activation::kNone;
      return kernels::GemmSm90Elementwise(tactic.tile, product, device, stream);
    }
    if (tactic.path == GemmPath::kSm90SplitK) {
      return kernels::GemmSm90SplitK(tactic.tile, a, device, stream);
    }
    return layer_norm ? kernels::GemmSm90LayerNorm(tactic.tile, a, device, stream)
                      : kernels::GemmSm90Elementwise(tactic.tile, a, device, stream);
  }
}

template <class T>
void RunTyped(const bertfuse_call& call, const GemmCall& gemm) {
  const kernels::Device& device = DeviceOf(call);
  kernels::GemmSm90Arguments<kernels::Elements<T>> a = Arguments<T>(call, gemm);
  if (a.m == 0 || a.n == 0) return;
  if (a.residual == a.y) Fail(BERTFUSE_INVALID_ARGUMENT, "%s: residual and y are the same memory", gemm.op);
  GemmProblem problem = Problem(call, a, gemm, device);
  const size_t given = call.workspace == nullptr ? 0 : call.workspace_size;
  problem.workspace = given;
  const GemmTactic tactic = Tactic(call, gemm, problem);
  if (tactic.path == GemmPath::kSm90ThenLayerNorm) a.last_wave = LastWaveOf(problem, tactic.tile);
  a.partial_rows = PartialRows(problem, tactic);
  const size_t needed = GemmWorkspaceSize(problem, tactic);
  if (given < needed) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: the workspace has %zu bytes, expected %zu", gemm.op, given, needed);
  }
  const bool portable = tactic.path == GemmPath::kSimt || tactic.path == GemmPath::kMma;
  if (tactic.layer_norm && !LayerNormSupports(*tactic.layer_norm, LayerNormAfter(problem, tactic))) {
    FailTooWide(gemm.op, a.n);
  }
  CheckCuda(portable ? RunPortable(a, problem.layer_norm, tactic.path, device, StreamOf(call))
                     : RunSm90(a, problem.layer_norm, tactic, device, StreamOf(call)),
            gemm.op);
  if (!tactic.layer_norm) return;
  kernels::LayerNormArguments<T> norm = Norm<T>(a);
  if (tactic.path == GemmPath::kSm90SplitK) norm.splits = tactic.tile.splits;
  if (tactic.path == GemmPath::kSm90ThenLayerNorm) {
    norm.product = a.y, norm.splits = 0;
    if (ActivatesProduct(a, tactic)) norm.bias = nullptr, norm.activation = kernels::Activation::kNone;
    norm.partials = a.partials, norm.more_partials = tactic.tile.splits - 1, norm.last_wave = a.last_wave;
    norm.partial_rows = a.partial_rows;
  }
  CheckCuda(kernels::LayerNorm(*tactic.layer_norm, norm, device, StreamOf(call)), gemm.op);
}

// Calls body(problem) with what the choice depends on.
template <class Body>
auto WithProblem(const bertfuse_call& call, const GemmCall& gemm, Body&& body) {
  return SwitchElement(gemm.x->dtype, [&](auto element) {
    return body(Problem(call, Arguments<decltype(element)>(call, gemm), gemm, DeviceOf(call)));
  });
}

}  // namespace

kernels::Activation GeluOf(const bertfuse_value& approximate) {
  for (const kernels::GeluName& gelu : kernels::kGelus) {
    if (std::strcmp(gelu.approximate, approximate.s) == 0) return gelu.activation;
  }
  Fail(BERTFUSE_NOT_SUPPORTED, "there is no kernel for GELU with approximate '%.64s'", approximate.s);
}

void RunGemm(const bertfuse_call& call, const GemmCall& gemm) {
  SwitchElement(gemm.x->dtype, [&](auto element) { RunTyped<decltype(element)>(call, gemm); });
}

size_t GemmWorkspaceSize(const bertfuse_call& call, const GemmCall& gemm) {
  return WithProblem(
      call, gemm, [&](const GemmProblem& problem) { return GemmWorkspaceSize(problem, Tactic(call, gemm, problem)); });
}

int32_t NumGemmTactics(const bertfuse_call& call, const GemmCall& gemm) {
  return WithProblem(call, gemm,
                     [&](const GemmProblem& problem) { return static_cast<int32_t>(GemmTactics(problem).size()); });
}

std::string DescribeGemmTactic(const bertfuse_call& call, const GemmCall& gemm, int32_t tactic) {
  bertfuse_call chosen = call;
  chosen.tactic = tactic;
  return WithProblem(call, gemm, [&](const GemmProblem& problem) { return Describe(Tactic(chosen, gemm, problem)); });
}

TunedProblem TunedGemm(const bertfuse_call& call, const GemmCall& gemm) {
  const int64_t n = gemm.weight->shape[0], k = gemm.weight->shape[1];
  const bool tf32 = gemm.x->dtype == BERTFUSE_FLOAT32 && (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  int64_t m = n == 0 ? 0 : NumElements(*gemm.y) / n;
  if (gemm.row_count->dtype != BERTFUSE_ABSENT) m = RoundedRows(ExpectedRows(call, m));
  return {gemm.op, gemm.x->dtype, {m, n, k, 0}, tf32};
}

}  // namespace bertfuse::cuda
