#include "kernels/attention.h"
#include "op_table.generated.h"
#include "ops/attention_backends.h"
#include "ops/attention_tactic.h"
#include "ops/call.h"
#include "ops/packed_rows.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedAttention;

constexpr int kMaxPacked = 1 << 30;  // rows, and sequences: the kernels count both, and a tile more, in 32 bits

template <class T>
kernels::AttentionArguments<T> Arguments(const bertfuse_call& call) {
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
  const bertfuse_tensor& cu_seqlens = call.inputs[Op::In::cu_seqlens];
  a.packed = {};
  if (cu_seqlens.dtype != BERTFUSE_ABSENT) {
    const int64_t rows = a.batch * a.sequence, count = cu_seqlens.shape[0] - 1;
    if (std::max(rows, count) > kMaxPacked) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %lld rows of %lld packed sequences, expected at most %d", Op::kName,
           static_cast<long long>(rows), static_cast<long long>(count), kMaxPacked);
    }
    a.packed = {Data<int32_t>(cu_seqlens), static_cast<int>(count), static_cast<int>(rows)};
  }
  return a;
}

bool IsPacked(const bertfuse_call& call) { return call.inputs[Op::In::cu_seqlens].dtype != BERTFUSE_ABSENT; }

template <class T>
AttentionProblem Problem(const bertfuse_call& call, const kernels::AttentionArguments<T>& a,
                         const kernels::Device& device) {
  AttentionProblem problem = {
      a.batch, a.sequence, a.heads, a.head_size, AttentionBackendsFor<T>(a, device), device.multiprocessors};
  problem.packed = a.packed.count > 0;
  problem.shared_bytes = device.shared_bytes;
  problem.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
  if (problem.packed) {
    problem.batch = a.packed.count;
    problem.sequence = kernels::CeilDiv(ExpectedRows(call, a.packed.rows), problem.batch);
  }
  return problem;
}

TunedProblem ProblemOf(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  const int64_t heads = call.attributes[Op::Attr::num_heads].i;
  TunedProblem problem = {Op::kName, qkv.dtype, {qkv.shape[0], qkv.shape[1], heads, qkv.shape[2] / 3 / heads}};
  if (IsPacked(call)) {
    problem.packed = true;
    problem.sizes[0] = call.inputs[Op::In::cu_seqlens].shape[0] - 1;
    problem.sizes[1] = RoundedRows(ExpectedRows(call, qkv.shape[0] * qkv.shape[1]));
  }
  return problem;
}

AttentionTactic Choose(const bertfuse_call& call, int32_t tactic, const AttentionProblem& problem) {
  if (tactic < 0) {
    const AttentionTactic* tuned = FindTuned<AttentionTactic>(call, ProblemOf(call));
    const bool takes = tuned != nullptr && problem.backends.Has(tuned->backend);
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
template <class Body>
auto WithProblem(const bertfuse_call& call, Body&& body) {
  return SwitchElement(call.inputs[Op::In::qkv].dtype, [&](auto element) {
    return body(Problem(call, Arguments<decltype(element)>(call), DeviceOf(call)));
  });
}

void Run(const bertfuse_call& call) {
  SwitchElement(call.inputs[Op::In::qkv].dtype, [&](auto element) {
    const auto a = Arguments<decltype(element)>(call);
    if (IsPacked(call) && a.packed.count < 1) return;
    const kernels::Device& device = DeviceOf(call);
    CheckCuda(LaunchAttention(Choose(call, call.tactic, Problem(call, a, device)), a, device, StreamOf(call)),
              Op::kName);
  });
}

int32_t NumTactics(const bertfuse_call& call) {
  return WithProblem(
      call, [](const AttentionProblem& problem) { return static_cast<int32_t>(AttentionTactics(problem).size()); });
}

std::string DescribeTactic(const bertfuse_call& call, int32_t tactic) {
  return WithProblem(call, [&](const AttentionProblem& problem) { return Describe(Choose(call, tactic, problem)); });
}

constexpr Tactics kTactics = {NumTactics, DescribeTactic, ProblemOf};

}  // namespace

const bertfuse_kernel kFusedAttention = CudaKernel<Op, Run, nullptr, &kTactics>();

}  // namespace bertfuse::cuda
