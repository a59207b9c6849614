#include "kernels/attention.h"
#include "op_table.generated.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedAttention;

// Tactics: 0 the fastest kernel that takes the call, 1 the one without tensor cores.
int32_t NumTactics(const bertfuse_call&) { return 2; }

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  const bertfuse_tensor& mask = call.inputs[Op::In::mask];
  SwitchElement(qkv.dtype, [&](auto element) {
    using T = decltype(element);
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
    const kernels::Device& device = DeviceOf(call);
    if constexpr (!std::is_same_v<T, float>) {
      if (call.tactic != 1 && kernels::AttentionSm90Takes(a, device)) {
        return CheckCuda(kernels::AttentionSm90(a, device, StreamOf(call)), Op::kName);
      }
    }
    CheckCuda(kernels::AttentionSimt(a, device, StreamOf(call)), Op::kName);
  });
}

}  // namespace

const bertfuse_kernel kFusedAttention = CudaKernel<Op, Run, nullptr, NumTactics>();

}  // namespace bertfuse::cuda
