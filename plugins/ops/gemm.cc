// The ops of one matrix product: arguments, the choice of a tactic, and its launches.

#include <cstdio>

#include "core/gemm_op.h"
#include "core/op_table.h"
#include "kernels/change_heads.h"
#include "kernels/gate.h"
#include "kernels/layer_norm.h"
#include "kernels/quantize_rows.h"
#include "ops/call.h"
#include "ops/gemm_backends.h"
#include "ops/gemm_candidates_cublaslt.h"
#include "ops/gemm_tactic.h"
#include "ops/layer_norm_tactic.h"
#include "ops/packed_rows.h"
#include "ops/prefetch.h"
#include "ops/quantized_result.h"

namespace bertfuse::cuda {
namespace {

// Calls body(Elements) with the types of the call's product.
template <class Body>
auto SwitchElements(const GemmCall& gemm, Body&& body) {
  return SwitchElement(gemm.x->dtype, [&](auto element) {
    using T = decltype(element);
    switch (gemm.weight->dtype) {
      case BERTFUSE_INT8:
        return body(kernels::Int8Elements<T>());
      case BERTFUSE_FLOAT8E4M3FN:
        return body(kernels::Fp8Elements<T>());
      default:
        return body(kernels::Elements<T>());
    }
  });
}

// Where the workspace has x in 8 bits and its rows' scales, unless x comes so: at its beginning. Partial sums come
// behind `bytes`.
struct QuantizedRows {
  size_t scales, bytes;
};

template <class Elements>
QuantizedRows QuantizedRowsOf(const GemmCall& gemm, int64_t m, int64_t k) {
  if (!kIsQuantized<Elements> || gemm.x_quantized != nullptr) return {};
  const auto rounded = [](int64_t bytes) { return static_cast<size_t>(kernels::CeilDiv(bytes, 256)) * 256; };
  return {rounded(m * k), rounded(m * k) + rounded(m * static_cast<int64_t>(sizeof(float)))};
}

template <class Elements>
kernels::GemmArguments<Elements> Arguments(const bertfuse_call& call, const GemmCall& gemm) {
  using T = typename Elements::Y;
  const auto data = [](const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : Data<T>(*tensor); };
  kernels::GemmArguments<Elements> a = {};
  a.n = gemm.weight->shape[0];
  a.k = gemm.weight->shape[1];
  a.m = gemm.rows();
  a.weight = Data<typename Elements::Weight>(*gemm.weight);
  auto* workspace = static_cast<char*>(call.workspace);
  if constexpr (kIsQuantized<Elements>) {
    const QuantizedRows rows = QuantizedRowsOf<Elements>(gemm, a.m, a.k);
    a.x = reinterpret_cast<const typename Elements::X*>(workspace);
    a.weight_scales = Data<const float>(*gemm.weight_scale);
    if (gemm.x_quantized != nullptr) {
      a.x = Data<const typename Elements::X>(*gemm.x_quantized);
      a.row_scales = Data<const float>(*gemm.x_row_scale);
      a.x_compensation = gemm.x_compensation == nullptr ? nullptr : Data<const int32_t>(*gemm.x_compensation);
    } else if (workspace != nullptr) {
      a.row_scales = reinterpret_cast<const float*>(workspace + rows.scales);
      workspace += rows.bytes;
    }
  } else {
    a.x = data(gemm.x);
  }
  a.bias = data(gemm.bias);
  if (gemm.residual_quantized == nullptr) {
    a.residual = data(gemm.residual);
  } else {
    const float* const factor = gemm.residual_factor == nullptr ? nullptr : Data<const float>(*gemm.residual_factor);
    a.quantized_residual = {Data<const int8_t>(*gemm.residual_quantized), Data<const float>(*gemm.residual_row_scale),
                            factor};
  }
  a.gamma = data(gemm.gamma);
  a.beta = data(gemm.beta);
  a.y = data(gemm.y);
  a.total = data(gemm.total);
  a.quantized = QuantizedResultOf(gemm.op.name, gemm.y_quantized, gemm.y_scale, gemm.y_smooth, gemm.y_tensor_scale,
                                  gemm.y_zero_point);
  a.quantized.alone = gemm.y_may_be_left;
  a.rms = gemm.rms;
  a.gates = gemm.op.gates;
  if (gemm.cos != nullptr) {
    a.rotation = {
        data(gemm.cos),     data(gemm.sin), gemm.places == nullptr ? nullptr : Data<const int32_t>(*gemm.places),
        gemm.cos->shape[0], gemm.heads,     gemm.kv_heads,
        gemm.head_size,     gemm.rotated,   gemm.neighbours};
  }
  a.float_partials = reinterpret_cast<float*>(workspace);
  a.partials = reinterpret_cast<T*>(workspace);
  a.packed = PackedRowsOf(call, *gemm.row_count, a.m);
  a.epsilon = gemm.epsilon;
  a.activation = gemm.activation;
  a.weights_are_constant = true;
  for (const bertfuse_tensor* weight :
       {gemm.weight, gemm.bias, gemm.gamma, gemm.beta, gemm.weight_scale, gemm.x_compensation, gemm.y_smooth,
        gemm.y_tensor_scale, gemm.y_zero_point, gemm.product_gamma, gemm.residual_factor}) {
    a.weights_are_constant = a.weights_are_constant && IsConstant(call, weight);
  }
  // Each kernel of an encoder layer that reads or writes wide rows begins with the rows that the one before it ended
  // with: the QKV product begins with the last, attention forwards; the feed-forward's first product forwards, its
  // second one backwards.
  a.allow_tf32 = (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  a.last_rows_first = gemm.op.normalizes() || (gemm.activation == Activation::kNone && !gemm.op.gates);
  return a;
}

// LayerNorm of float32 partial sums in the workspace.
template <class Elements, class T = typename Elements::Y>
kernels::LayerNormArguments<T> Norm(const kernels::GemmArguments<Elements>& a, const GemmCall& gemm) {
  kernels::LayerNormArguments<T> norm = {
      nullptr, a.float_partials, 1, a.bias, a.residual, a.gamma, a.beta, a.y, a.m, a.n, a.epsilon, a.activation};
  norm.vectors_are_constant = a.weights_are_constant, norm.packed = a.packed;
  norm.total = a.total, norm.quantized = a.quantized, norm.gamma_offset = gemm.gamma_offset;
  if (gemm.product_gamma != nullptr) norm.product_gamma = Data<const T>(*gemm.product_gamma);
  norm.quantized_residual = a.quantized_residual;
  norm.norm = a.rms ? kernels::NormKind::kRmsNorm : kernels::NormKind::kLayerNorm;
  return norm;
}

// Adds cuBLASLt and its algorithms, where it has any: asking for them takes a while the first time, so that a choice
// which cannot come to it does not ask. `all`: for the list of tactics.
template <class Elements>
void AddCublasLt(const bertfuse_call& call, const kernels::GemmArguments<Elements>& a, bool all,
                 const kernels::Device& device, GemmProblem* problem) {
  using CublasLt = CublasLtBackend<Elements>;
  const bool named = all || call.tactic >= 0;
  if ((call.flags & BERTFUSE_NO_CUBLASLT) != 0) return;
  if (!named && call.tuning == nullptr && !MayTakeCublasLt(*problem)) return;
  if (!CublasLt::Supports(a, device)) return;
  if (!named && a.y == nullptr) {
    // For TensorRT, which builds an engine for any number of shapes: whatever is chosen when it runs.
    problem->cublaslt = {1, {kernels::cublaslt::WorkspaceLimit(device)}};
  } else {
    const auto plan = CublasLt::PlanOf(CublasLtForm(*problem), a, device);
    if (named || !plan->withdrawn()) problem->cublaslt = plan->algorithms();
  }
  if (problem->cublaslt.count > 0) problem->backends.Add(Backend::kCublasLt);
}

template <class Elements>
GemmProblem Problem(const bertfuse_call& call, const kernels::GemmArguments<Elements>& a, const GemmCall& gemm,
                    const kernels::Device& device, bool all = false) {
  GemmProblem problem = {a.m, a.n, a.k, gemm.op.normalizes(), GemmBackendsFor(a, device), &device, MeasuredOn(device)};
  problem.allow_tf32 = a.allow_tf32;
  problem.x_bytes = sizeof(*a.x), problem.y_bytes = sizeof(*a.y);
  problem.fp8 = std::is_same_v<typename Elements::X, __nv_fp8_e4m3>;
  problem.gates = gemm.op.gates;
  const bool in_8_bits_too = gemm.y_quantized != nullptr || gemm.residual_quantized != nullptr;
  problem.keeps_total = gemm.op.keeps_total() || (problem.layer_norm && in_8_bits_too);
  problem.adds_residual = gemm.op.keeps_total() && !kIsQuantized<Elements> && a.residual != nullptr &&
                          gemm.product_gamma == nullptr && a.activation == Activation::kNone &&
                          (call.flags & BERTFUSE_DETERMINISTIC_ROWS) == 0;
  const bool in_8_bits = kIsQuantized<Elements> && gemm.y_quantized != nullptr &&
                         gemm.y_quantized->dtype == gemm.weight->dtype &&
                         kernels::IsAligned(gemm.y_quantized->data, 8) && kernels::IsAligned(a.quantized.smooth, 16);
  problem.quantizes = in_8_bits && !problem.layer_norm;
  problem.quantizes_rows = in_8_bits && problem.layer_norm && !gemm.op.keeps_total() &&
                           a.activation == Activation::kNone && gemm.y_tensor_scale == nullptr &&
                           (gemm.residual_quantized == nullptr || !problem.fp8) &&
                           kernels::IsAligned(a.quantized_residual.rows, 16);
  problem.rotates = SuitsEpilogue(a.rotation);
  problem.gelu = gemm.activation != Activation::kNone && !problem.gates;
  if (problem.layer_norm) problem.layer_norm_vector = kernels::LayerNormVector(Norm(a, gemm));
  // Hopper's products before LayerNorm are rounded, but for split-K's, and its kernel reads such rows several elements
  // at a time. The backend's own Supports() sees neither product_gamma nor the rows in 8 bits; where one of them is not
  // aligned, which is rare, split-K is given up, too.
  if (problem.layer_norm_vector == 1) problem.backends.Remove(Backend::kSm90);
  if (gemm.row_count->dtype != BERTFUSE_ABSENT) problem.m = a.packed.expected, problem.capacity = a.m;
  problem.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
  const bool activates = a.activation != Activation::kNone && !problem.gates;  // a gate adds its bias to each factor
  problem.biased = activates || (!problem.layer_norm && a.bias != nullptr);
  AddCublasLt(call, a, all, device, &problem);
  return problem;
}

TunedProblem Tuned(const bertfuse_call& call, const GemmCall& gemm) {
  const int64_t n = gemm.weight->shape[0], k = gemm.weight->shape[1];
  const int32_t quantized = IsQuantized(gemm.weight->dtype) ? gemm.weight->dtype : BERTFUSE_ABSENT;
  const bool tf32 =
      gemm.x->dtype == BERTFUSE_FLOAT32 && quantized == BERTFUSE_ABSENT && (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  int64_t m = gemm.rows();
  if (gemm.row_count->dtype != BERTFUSE_ABSENT) m = RoundedRows(ExpectedRows(call, m));
  return {gemm.op.name,
          gemm.x->dtype,
          {m, n, k, 0},
          tf32,
          false,
          gemm.op.approximate >= 0 ? Activation::kGeluErf : gemm.activation,  // both GELUs are measured as one
          false,
          quantized};
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

// x in 8 bits, in the workspace: a kernel of its own before the product.
template <class Elements>
void Quantize(const bertfuse_call& call, const GemmCall& gemm, const kernels::GemmArguments<Elements>& a,
              const kernels::Device& device) {
  using T = typename Elements::Y;
  using X = typename Elements::X;
  const auto scales = [](const bertfuse_tensor* tensor) {
    return tensor == nullptr ? nullptr : Data<const float>(*tensor);
  };
  const kernels::QuantizeRowsArguments<T, X> rows = {Data<T>(*gemm.x),
                                                     scales(gemm.x_smooth),
                                                     scales(gemm.x_scale),
                                                     const_cast<X*>(a.x),
                                                     const_cast<float*>(a.row_scales),
                                                     a.m,
                                                     a.k,
                                                     a.packed};
  CheckCuda(kernels::QuantizeRows(rows, device, StreamOf(call)), gemm.op.name);
}

// Heads of Q and K of y, where they are: a kernel of its own behind the product.
template <class Elements>
void RotateHeads(const bertfuse_call& call, const char* op, const kernels::GemmArguments<Elements>& a,
                 const kernels::Device& device) {
  const auto& r = a.rotation;
  if (r.rotated == 0) return;
  kernels::ChangeHeadsArguments<typename Elements::Y> heads = {};
  heads.qkv = heads.out = a.y;
  heads.cos = r.cos, heads.sin = r.sin, heads.places = r.table_rows, heads.rotated = r.rotated;
  heads.rows = a.m, heads.sequence = r.table_rows;
  heads.heads = r.heads, heads.kv_heads = r.kv_heads, heads.head_size = r.head_size;
  heads.neighbours = r.neighbours;
  heads.row_places = r.places, heads.row_count = a.packed.row_count, heads.expected = a.packed.expected;
  CheckCuda(kernels::ChangeHeads(heads, device, StreamOf(call)), op);
}

template <class Elements>
void RunTactic(const bertfuse_call& call, const GemmCall& gemm, const GemmProblem& problem, const GemmTactic& tactic,
               kernels::GemmArguments<Elements> a, const kernels::Device& device) {
  using T = typename Elements::Y;
  const bool tiled = tactic.tile.block.m > 0;  // else the backend chooses its tile
  if (tactic.form == GemmForm::kRounded && tiled) a.last_wave = LastWaveOf(problem, tactic.tile);
  a.partial_rows = PartialRows(problem, tactic);
  a.scratch = reinterpret_cast<char*>(a.float_partials) + GemmScratchOffset(problem, tactic);
  const size_t needed = GemmWorkspaceSize(problem, tactic);
  if (problem.workspace < needed) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: the workspace has %zu bytes, expected %zu", gemm.op.name, problem.workspace,
         needed);
  }
  if (tactic.layer_norm && !LayerNormSupports(*tactic.layer_norm, LayerNormAfter(problem, tactic))) {
    FailTooWide(gemm.op.name, a.n);
  }
  // What the product's epilogue does, and what is left to LayerNorm or the gate.
  kernels::GemmArguments<Elements> product = a;
  kernels::LayerNormArguments<T> norm = Norm(a, gemm);
  const bool gate_follows = GateIsALaunch(problem, tactic);
  const bool activates = !gate_follows && ActivatesProduct(problem, tactic);
  if (activates) norm.bias = nullptr, norm.activation = Activation::kNone;
  product.adds_residual = AddsResidual(problem, tactic);
  if (product.adds_residual) {
    norm.bias = nullptr, norm.residual = nullptr;
    product.y = a.total;
  } else if (tactic.form == GemmForm::kRounded && !activates) {
    product.bias = nullptr, product.activation = Activation::kNone;
  }
  if constexpr (kIsQuantized<Elements>) {
    if (gemm.x_quantized == nullptr) Quantize(call, gemm, a, device);
  }
  if (gate_follows) product.y = a.partials;
  const bool quantizes_later = a.gamma == nullptr && a.quantized.rows != nullptr && !WritesQuantized(problem, tactic);
  if (quantizes_later) product.quantized = {};
  const bool rotates_later = a.rotation.cos != nullptr && !RotatesInEpilogue(problem, tactic);
  if (rotates_later) product.rotation = {};
  const bool is_last = !tactic.layer_norm && !rotates_later && !gate_follows && !quantizes_later;
  if (is_last) product.next = PrefetchFor(call, problem.m, device);
  // The residual is an input of the op: LayerNorm's first warps load theirs while the product's kernel still runs.
  const bool has_persistent_warps = tactic.layer_norm == kernels::LayerNormKernel::kPersistentWarps ||
                                    tactic.layer_norm == kernels::LayerNormKernel::kPersistentWarpsFewPartials;
  norm.residual_is_complete = product.dependents_begin_late = has_persistent_warps && tactic.backend == Backend::kSm90;
  CheckCuda(LaunchGemm(tactic, product, device, StreamOf(call)), gemm.op.name);
  if (rotates_later) RotateHeads(call, gemm.op.name, a, device);
  if (gate_follows) {
    const kernels::GateArguments<T> gate = {
        a.partials, a.bias, a.y, a.m, gemm.columns(), a.activation, a.weights_are_constant, a.packed, a.quantized};
    CheckCuda(kernels::Gate(gate, device, StreamOf(call)), gemm.op.name);
  } else if (quantizes_later) {
    QuantizeResult(call, gemm.op.name, a.quantized, a.y, a.m, gemm.columns(), a.packed);
  }
  if (!tactic.layer_norm) return;
  norm.splits = tactic.tile.splits;
  norm.next = PrefetchFor(call, problem.m, device);
  if (tactic.form == GemmForm::kRounded) {
    norm.product = product.y, norm.splits = 0;
    norm.partials = a.partials, norm.more_partials = tactic.tile.splits - 1, norm.last_wave = a.last_wave;
    norm.partial_rows = a.partial_rows;
  }
  const bool quantizes_behind_norm = !CanQuantize(norm);
  if (quantizes_behind_norm) norm.quantized = {};
  CheckCuda(kernels::LayerNorm(*tactic.layer_norm, norm, device, StreamOf(call)), gemm.op.name);
  if (quantizes_behind_norm) QuantizeResult(call, gemm.op.name, a.quantized, a.y, a.m, a.n, a.packed);
}

// What the workspace must hold of x in 8 bits, and throws NOT_SUPPORTED where 32 bits cannot sum up their products,
// where 0 is another integer than 0, and for residuals in 8 bits that no kernel adds.
template <class Elements>
size_t QuantizedBytes(const GemmCall& gemm, const kernels::GemmArguments<Elements>& a) {
  if (gemm.x_zero != nullptr) {
    Fail(BERTFUSE_NOT_SUPPORTED, "%s: input 'x_zero' has no CUDA kernel: quantise activations symmetrically",
         gemm.op.name);
  }
  if (gemm.x_compensation != nullptr && !std::is_same_v<typename Elements::X, int8_t>) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'x_compensation' is given beside a weight of float8e4m3fn",
         gemm.op.name);
  }
  if (std::is_same_v<typename Elements::X, int8_t> && a.k > kernels::kMaxInt8K) {
    Fail(BERTFUSE_NOT_SUPPORTED, "%s: rows of %lld 8-bit integers are too long, expected %lld at most", gemm.op.name,
         static_cast<long long>(a.k), static_cast<long long>(kernels::kMaxInt8K));
  }
  if (gemm.residual_quantized != nullptr &&
      (gemm.residual_quantized->dtype != BERTFUSE_INT8 || sizeof(typename Elements::Y) != 2)) {
    Fail(BERTFUSE_NOT_SUPPORTED,
         "%s: input 'residual_quantized' has a CUDA kernel as int8 beside float16 and bfloat16 alone, not as %s beside "
         "%s",
         gemm.op.name, DtypeName(gemm.residual_quantized->dtype), DtypeName(gemm.x->dtype));
  }
  return QuantizedRowsOf<Elements>(gemm, a.m, a.k).bytes;
}

void CheckActivation(const GemmCall& gemm) {
  const Activation activation = gemm.activation;
  if (gemm.op.gates || IsOfProducts(activation)) return;
  Fail(BERTFUSE_NOT_SUPPORTED, "%s: attribute 'activation' is '%s', which has a CUDA kernel with a gate alone",
       gemm.op.name, NameOf(activation));
}

template <class Elements>
void RunTyped(const bertfuse_call& call, const GemmCall& gemm) {
  const kernels::Device& device = DeviceOf(call);
  const kernels::GemmArguments<Elements> a = Arguments<Elements>(call, gemm);
  if (a.m == 0 || a.n == 0) return;
  if (a.residual == a.y) Fail(BERTFUSE_INVALID_ARGUMENT, "%s: residual and y are the same memory", gemm.op.name);
  GemmProblem problem = Problem(call, a, gemm, device);
  problem.workspace = call.workspace == nullptr ? 0 : call.workspace_size;
  const size_t quantized = QuantizedBytes(gemm, a);
  if (problem.workspace < quantized) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: the workspace has %zu bytes, expected %zu", gemm.op.name, problem.workspace,
         quantized);
  }
  problem.workspace -= quantized;
  try {
    RunTactic(call, gemm, problem, Tactic(call, gemm, problem), a, device);
  } catch (const CublasLtError& error) {
    problem.backends.Remove(Backend::kCublasLt);
    const GemmTactic other = call.tactic >= 0 ? GemmTactic() : Tactic(call, gemm, problem);
    if (call.tactic >= 0 || !Runs(problem, other)) Fail(error.code(), "%s: %s", gemm.op.name, error.what());
    if (error.is_first) {
      std::fprintf(stderr, "bertfuse: %s of %lldx%lldx%lld: %s; %s takes its place\n", gemm.op.name,
                   static_cast<long long>(a.m), static_cast<long long>(a.n), static_cast<long long>(a.k), error.what(),
                   Describe(other).c_str());
    }
    RunTactic(call, gemm, problem, other, a, device);
  }
}

// Calls body(problem) with what the choice depends on.
template <class Body>
auto WithProblem(const bertfuse_call& call, const GemmCall& gemm, Body&& body, bool all = false) {
  return SwitchElements(gemm, [&](auto elements) {
    return body(Problem(call, Arguments<decltype(elements)>(call, gemm), gemm, DeviceOf(call), all));
  });
}

template <class Op>
void Run(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  CheckActivation(gemm);
  SwitchElements(gemm, [&](auto elements) { RunTyped<decltype(elements)>(call, gemm); });
}

template <class Op>
size_t WorkspaceSize(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  return SwitchElements(gemm, [&](auto elements) {
    const auto a = Arguments<decltype(elements)>(call, gemm);
    const GemmProblem problem = Problem(call, a, gemm, DeviceOf(call));
    return QuantizedBytes(gemm, a) + GemmWorkspaceSize(problem, Tactic(call, gemm, problem));
  });
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

const bertfuse_kernel kFusedGatedGemm = GemmKernel<FusedGatedGemm>();
const bertfuse_kernel kFusedGemm = GemmKernel<FusedGemm>();
const bertfuse_kernel kFusedGemmGelu = GemmKernel<FusedGemmGelu>();
const bertfuse_kernel kFusedGemmGeluLayerNorm = GemmKernel<FusedGemmGeluLayerNorm>();
const bertfuse_kernel kFusedGemmLayerNorm = GemmKernel<FusedGemmLayerNorm>();
const bertfuse_kernel kFusedGemmResidualNorm = GemmKernel<FusedGemmResidualNorm>();
const bertfuse_kernel kFusedGemmRotary = GemmKernel<FusedGemmRotary>();

}  // namespace bertfuse::cuda
