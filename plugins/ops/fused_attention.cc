#include "kernels/attention.h"
#include "op_table.generated.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedAttention;

template <class T>
kernels::AttentionArguments<T> Arguments(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  const bertfuse_tensor& mask = call.inputs[Op::In::mask];
  kernels::AttentionArguments<T> a;
  a.qkv = Data<T>(qkv);
  a.bias = Data<T>(call.inputs[Op::In::bias]);
  a.mask = Data<void>(mask);
  a.mask_is_int64 = mask.dtype == BERTFUSE_INT64;
  a.y = Data<T>(call.outputs[Op::Out::y]);
  a.batch = qkv.shape[0];
  a.sequence = qkv.shape[1];
  a.heads = call.attributes[Op::Attr::num_heads].i;
  a.head_size = qkv.shape[2] / 3 / a.heads;
  a.scale = call.attributes[Op::Attr::scale].f;
  return a;
}

template <class T>
bool Takes(AttentionPath path, const kernels::AttentionArguments<T>& a, const kernels::Device& device) {
  if (path == AttentionPath::kSimt) return true;
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    return path == AttentionPath::kSm90 ? kernels::AttentionSm90Takes(a, device) : kernels::AttentionMmaTakes(a);
  }
}

template <class T>
cudaError_t Launch(AttentionPath path, const kernels::AttentionArguments<T>& a, const kernels::Device& device,
                   cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, float> && kernels::kHopperIsBuilt) {
    if (path == AttentionPath::kSm90) return kernels::AttentionSm90(a, device, stream);
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (path == AttentionPath::kMma) return kernels::AttentionMma(a, device, stream);
  }
  return kernels::AttentionSimt(a, device, stream);
}

TunedProblem ProblemOf(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  const int64_t heads = call.attributes[Op::Attr::num_heads].i;
  return {Op::kName, qkv.dtype, {qkv.shape[0], qkv.shape[1], heads, qkv.shape[2] / 3 / heads}};
}

// Tactics are the paths that take the call, in their order.
template <class T>
int32_t CountPaths(const kernels::AttentionArguments<T>& a, const kernels::Device& device) {
  int32_t count = 0;
  for (AttentionPath path : kAttentionPaths) count += Takes(path, a, device);
  return count;
}

template <class T>
AttentionPath Choose(const bertfuse_call& call, int32_t tactic, const kernels::AttentionArguments<T>& a,
                     const kernels::Device& device) {
  if (tactic < 0) {
    const AttentionPath* tuned = FindTuned<AttentionPath>(call, ProblemOf(call));
    if (tuned != nullptr && Takes(*tuned, a, device)) return *tuned;
  }
  int32_t left = tactic < 0 ? 0 : tactic;
  for (AttentionPath path : kAttentionPaths) {
    if (Takes(path, a, device) && left-- == 0) return path;
  }
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: tactic %d is outside the %d that this call has", Op::kName, tactic,
       CountPaths(a, device));
}

void Run(const bertfuse_call& call) {
  SwitchElement(call.inputs[Op::In::qkv].dtype, [&](auto element) {
    const auto a = Arguments<decltype(element)>(call);
    const kernels::Device& device = DeviceOf(call);
    CheckCuda(Launch(Choose(call, call.tactic, a, device), a, device, StreamOf(call)), Op::kName);
  });
}

int32_t NumTactics(const bertfuse_call& call) {
  return SwitchElement(call.inputs[Op::In::qkv].dtype,
                       [&](auto element) { return CountPaths(Arguments<decltype(element)>(call), DeviceOf(call)); });
}

std::string DescribeTactic(const bertfuse_call& call, int32_t tactic) {
  return SwitchElement(call.inputs[Op::In::qkv].dtype, [&](auto element) -> std::string {
    return Describe(Choose(call, tactic, Arguments<decltype(element)>(call), DeviceOf(call)));
  });
}

constexpr Tactics kTactics = {NumTactics, DescribeTactic, ProblemOf};

}  // namespace

const bertfuse_kernel kFusedAttention = CudaKernel<Op, Run, nullptr, &kTactics>();

}  // namespace bertfuse::cuda
