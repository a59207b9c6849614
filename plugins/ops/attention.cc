// Attention, BERT's and its variants: arguments, the choice of a tactic, and its launches.
#include "kernels/attention.h"

#include <optional>

#include "core/attention_variant.h"
#include "core/op_table.h"
#include "kernels/change_heads.h"
#include "op_table.generated.h"
#include "ops/attention_backends.h"
#include "ops/attention_tactic.h"
#include "ops/call.h"
#include "ops/packed_rows.h"
#include "ops/prefetch.h"
#include "ops/quantized_result.h"

namespace bertfuse::cuda {
namespace {

constexpr int kMaxPacked = 1 << 30;  // rows, and sequences: the kernels count both, and a tile more, in 32 bits

// `token_index` may be null.
kernels::PackedSequences SequencesOf(const char* op, const bertfuse_tensor& cu_seqlens,
                                     const bertfuse_tensor* token_index, int64_t rows) {
  const int64_t count = cu_seqlens.shape[0] - 1;
  if (std::max(rows, count) > kMaxPacked) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %lld rows of %lld packed sequences, expected at most %d", op,
         static_cast<long long>(rows), static_cast<long long>(count), kMaxPacked);
  }
  return {Data<int32_t>(cu_seqlens), static_cast<int>(count), static_cast<int>(rows),
          token_index == nullptr ? nullptr : Data<int32_t>(*token_index)};
}

kernels::PackedSequences PackedOf(const AttentionVariantCall& v) {
  if (!v.packed()) return {};
  return SequencesOf(FusedAttentionVariant::kName, *v.cu_seqlens, v.token_index, v.batch * v.sequence);
}

template <class T, class Op>
struct Arguments;

template <class T>
struct Arguments<T, FusedAttention> {
  using Op = FusedAttention;
  static kernels::AttentionArguments<T> Of(const bertfuse_call& call);
};

template <class T>
kernels::AttentionArguments<T> Arguments<T, FusedAttention>::Of(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  const bertfuse_tensor& mask = call.inputs[Op::In::mask];
  kernels::AttentionArguments<T> a;
  a.qkv = Data<T>(qkv);
  a.bias = Data<T>(call.inputs[Op::In::bias]);
  a.bias_is_constant = IsConstant(call, &call.inputs[Op::In::bias]);
  a.mask = Data<void>(mask);
  a.mask_is_int64 = mask.dtype == BERTFUSE_INT64;
  a.y = Data<T>(call.outputs[Op::Out::y]);
  a.batch = qkv.shape[0];
  a.sequence = qkv.shape[1];
  a.heads = call.attributes[Op::Attr::num_heads].i;
  a.head_size = qkv.shape[2] / 3 / a.heads;
  a.scale = call.attributes[Op::Attr::scale].f;
  a.variant = {};
  a.allow_tf32 = (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  const bertfuse_tensor& cu_seqlens = call.inputs[Op::In::cu_seqlens];
  a.packed = {};
  if (cu_seqlens.dtype != BERTFUSE_ABSENT) a.packed = SequencesOf(Op::kName, cu_seqlens, nullptr, a.batch * a.sequence);
  return a;
}

// Where heads are normalised or rotated, a launch of its own writes them to the workspace, with their bias, unless the
// tactic rotates them itself.
template <class T>
struct Arguments<T, FusedAttentionVariant> {
  // Without that launch, where Hopper's attention can do what it would.
  static std::optional<kernels::AttentionArguments<T>> Rotating(const bertfuse_call& call,
                                                                const kernels::Device& device) {
    const AttentionVariantCall v(call);
    if (!kIsHalf<T> || v.cos == nullptr || v.q_gamma != nullptr || v.k_gamma != nullptr) return std::nullopt;
    if (v.neighbours || 2 * v.rotated != v.head_size) return std::nullopt;
    kernels::AttentionArguments<T> a = Of(call);
    a.qkv = Data<T>(*v.qkv);
    a.bias = v.bias == nullptr ? nullptr : Data<T>(*v.bias);
    a.packed = PackedOf(v);
    a.variant.cos = Data<T>(*v.cos), a.variant.sin = Data<T>(*v.sin), a.variant.places = v.cos->shape[0];
    if (!kernels::AttentionSm90Supports(a, device)) return std::nullopt;
    return a;
  }

  static kernels::AttentionArguments<T> Of(const bertfuse_call& call) {
    const AttentionVariantCall v(call);
    const auto data = [](const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : Data<T>(*tensor); };
    kernels::AttentionArguments<T> a = {};
    a.qkv = v.changes_heads() ? static_cast<const T*>(call.workspace) : data(v.qkv);
    a.bias = v.changes_heads() ? nullptr : data(v.bias);
    a.bias_is_constant = IsConstant(call, v.bias);
    a.mask = v.mask == nullptr ? nullptr : v.mask->data;
    a.mask_is_int64 = v.mask != nullptr && v.mask->dtype == BERTFUSE_INT64;
    a.y = Data<T>(call.outputs[FusedAttentionVariant::Out::y]);
    a.batch = v.batch, a.sequence = v.sequence, a.heads = v.heads, a.head_size = v.head_size, a.scale = v.scale;
    a.allow_tf32 = (call.flags & BERTFUSE_ALLOW_TF32) != 0;
    a.packed = PackedOf(v);
    if (!v.counts_distances()) a.packed.token_index = nullptr;  // heads are turned before
    a.variant.kv_heads = v.kv_heads == v.heads ? 0 : v.kv_heads;
    a.variant.window_left = v.window_left, a.variant.window_right = v.window_right;
    a.variant.hidden_alike = v.alike;
    if (v.positions != nullptr) {
      a.variant.positions = data(v.positions);
      a.variant.position_rows = v.positions->shape[2], a.variant.position_left = v.positions_left;
    }
    if (v.distance_bias == nullptr) return a;
    a.variant.distance_bias = data(v.distance_bias);
    a.variant.bias_heads = v.distance_bias->shape[1], a.variant.bias_columns = v.distance_bias->shape[2];
    a.variant.bias_left = v.bias_left;
    return a;
  }

  static kernels::ChangeHeadsArguments<T> OfHeads(const bertfuse_call& call, const AttentionVariantCall& v) {
    const auto data = [](const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : Data<T>(*tensor); };
    return {data(v.qkv),
            data(v.bias),
            data(v.cos),
            data(v.sin),
            data(v.q_gamma),
            data(v.k_gamma),
            static_cast<T*>(call.workspace),
            v.batch * v.sequence,
            v.sequence,
            v.cos == nullptr ? 0 : v.cos->shape[0],
            v.heads,
            v.kv_heads,
            v.head_size,
            v.rotated,
            v.neighbours,
            v.epsilon,
            v.gamma_offset,
            PackedOf(v),
            v.packed() ? ExpectedRows(call, v.batch * v.sequence) : 0};
  }
};

template <class Op>
bool IsPacked(const bertfuse_call& call) {
  return call.inputs[Op::In::cu_seqlens].dtype != BERTFUSE_ABSENT;
}

template <class Op, class T>
AttentionProblem Problem(const bertfuse_call& call, const kernels::AttentionArguments<T>& a,
                         const kernels::Device& device) {
  AttentionProblem problem = {
      a.batch, a.sequence, a.heads, a.head_size, AttentionBackendsFor<T>(a, device), device.multiprocessors};
  problem.packed = a.packed.count > 0;
  problem.variant = !a.variant.IsPlain();
  problem.positions = a.variant.positions != nullptr;
  if constexpr (std::is_same_v<Op, FusedAttentionVariant>) {
    problem.rotates = Arguments<T, Op>::Rotating(call, device).has_value();
  }
  if (a.variant.window_left >= 0 && a.variant.window_right >= 0) {
    problem.window = a.variant.window_left + a.variant.window_right + 1;
  }
  problem.shared_bytes = device.shared_bytes;
  problem.math = kernels::attention_mma::MathOf<T>(a.allow_tf32);
  problem.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
  if (problem.packed) {
    problem.batch = a.packed.count;
    problem.sequence = kernels::CeilDiv(ExpectedRows(call, a.packed.rows), problem.batch);
  }
  return problem;
}

template <class Op>
TunedProblem ProblemOf(const bertfuse_call& call) {
  const bertfuse_tensor &qkv = call.inputs[Op::In::qkv], &y = call.outputs[Op::Out::y];
  const int64_t heads = call.attributes[Op::Attr::num_heads].i;
  TunedProblem problem = {Op::kName, qkv.dtype, {qkv.shape[0], qkv.shape[1], heads, y.shape[2] / heads}};
  problem.tf32 = qkv.dtype == BERTFUSE_FLOAT32 && (call.flags & BERTFUSE_ALLOW_TF32) != 0;
  if (IsPacked<Op>(call)) {
    problem.packed = true;
    problem.sizes[0] = call.inputs[Op::In::cu_seqlens].shape[0] - 1;
    problem.sizes[1] = RoundedRows(ExpectedRows(call, qkv.shape[0] * qkv.shape[1]));
  }
  return problem;
}

template <class Op>
AttentionTactic Choose(const bertfuse_call& call, int32_t tactic, const AttentionProblem& problem) {
  if (tactic < 0) {
    const AttentionTactic* tuned = FindTuned<AttentionTactic>(call, ProblemOf<Op>(call));
    const bool takes = tuned != nullptr && HasTactic(problem, *tuned);
    const bool runs = takes && (!problem.deterministic_rows || IsDeterministicByRow(problem, *tuned));
    return runs ? *tuned : ChooseAttentionTactic(problem);
  }
  const std::vector<AttentionTactic> tactics = AttentionTactics(problem);
  if (static_cast<size_t>(tactic) >= tactics.size()) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: tactic %d is outside the %zu that this call has", Op::kName, tactic,
         tactics.size());
  }
  return tactics[tactic];
}

// Calls body(problem) with what the choice depends on.
template <class Op, class Body>
auto WithProblem(const bertfuse_call& call, Body&& body) {
  return SwitchElement(call.inputs[Op::In::qkv].dtype, [&](auto element) {
    return body(Problem<Op>(call, Arguments<decltype(element), Op>::Of(call), DeviceOf(call)));
  });
}

size_t WorkspaceSize(const bertfuse_call& call) {
  const AttentionVariantCall v(call);
  return v.changes_heads() ? static_cast<size_t>(NumElements(*v.qkv)) * DtypeSize(v.qkv->dtype) : 0;
}

template <class T>
void PrepareHeads(const bertfuse_call& call, const AttentionTactic& tactic, const kernels::Device& device,
                  kernels::AttentionArguments<T>* attention) {
  const AttentionVariantCall v(call);
  if (!v.changes_heads()) return;
  const size_t needed = WorkspaceSize(call), given = call.workspace == nullptr ? 0 : call.workspace_size;
  if (given < needed) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: the workspace has %zu bytes, expected %zu", FusedAttentionVariant::kName, given,
         needed);
  }
  auto heads = Arguments<T, FusedAttentionVariant>::OfHeads(call, v);
  // V, up to a third of what would be read and written, stays where it is.
  heads.keeps_values = tactic.backend == Backend::kSm90 && heads.bias == nullptr && !attention->variant.IsPlain() &&
                       kernels::IsAligned(heads.qkv, 16);
  if (heads.keeps_values) attention->values = heads.qkv;
  CheckCuda(kernels::ChangeHeads(heads, device, StreamOf(call)), FusedAttentionVariant::kName);
}

template <class Op>
kernels::QuantizedResult QuantizedOf(const bertfuse_call& call) {
  const bool given = call.num_outputs > Op::Out::y_quantized;
  return QuantizedResultOf(Op::kName, given ? &call.outputs[Op::Out::y_quantized] : nullptr,
                           given ? &call.outputs[Op::Out::y_scale] : nullptr, &call.inputs[Op::In::y_smooth],
                           &call.inputs[Op::In::y_tensor_scale], &call.inputs[Op::In::y_zero_point]);
}

// Packed rows from the last sequence's end on are not quantised.
template <class Op, class T>
kernels::PackedRows RowsOf(const bertfuse_call& call, const kernels::AttentionArguments<T>& a) {
  if (!IsPacked<Op>(call)) return {};
  return {a.packed.cu_seqlens + a.packed.count, ExpectedRows(call, a.packed.rows)};
}

template <class Op>
void Run(const bertfuse_call& call) {
  SwitchElement(call.inputs[Op::In::qkv].dtype, [&](auto element) {
    using T = decltype(element);
    auto a = Arguments<T, Op>::Of(call);
    if (IsPacked<Op>(call) && a.packed.count < 1) return;
    const kernels::Device& device = DeviceOf(call);
    if (std::is_same_v<Op, FusedAttentionVariant> && NumElements(call.outputs[Op::Out::y]) == 0) return;
    const AttentionTactic tactic = Choose<Op>(call, call.tactic, Problem<Op>(call, a, device));
    if constexpr (std::is_same_v<Op, FusedAttentionVariant>) {
      if (tactic.rotates) {
        a = Arguments<T, Op>::Rotating(call, device).value();
      } else {
        PrepareHeads<T>(call, tactic, device, &a);
      }
    }
    const kernels::QuantizedResult quantized = QuantizedOf<Op>(call);
    const bool stores_quantized = tactic.backend == Backend::kSm90 && kernels::AttentionSm90Quantizes(quantized);
    if (stores_quantized) a.quantized = quantized;
    a.next = PrefetchFor(call, a.batch * a.sequence, device);
    CheckCuda(LaunchAttention(tactic, a, device, StreamOf(call)), Op::kName);
    if (quantized.rows == nullptr || stores_quantized) return;
    QuantizeResult(call, Op::kName, quantized, a.y, a.batch * a.sequence, a.heads * a.head_size, RowsOf<Op>(call, a));
  });
}

template <class Op>
int32_t NumTactics(const bertfuse_call& call) {
  return WithProblem<Op>(
      call, [](const AttentionProblem& problem) { return static_cast<int32_t>(AttentionTactics(problem).size()); });
}

template <class Op>
std::string DescribeTactic(const bertfuse_call& call, int32_t tactic) {
  return WithProblem<Op>(call,
                         [&](const AttentionProblem& problem) { return Describe(Choose<Op>(call, tactic, problem)); });
}

template <class Op>
constexpr Tactics kTactics = {NumTactics<Op>, DescribeTactic<Op>, ProblemOf<Op>};

}  // namespace

const bertfuse_kernel kFusedAttention =
    CudaKernel<FusedAttention, Run<FusedAttention>, nullptr, &kTactics<FusedAttention>>();
const bertfuse_kernel kFusedAttentionVariant =
    CudaKernel<FusedAttentionVariant, Run<FusedAttentionVariant>, WorkspaceSize, &kTactics<FusedAttentionVariant>>();

}  // namespace bertfuse::cuda
