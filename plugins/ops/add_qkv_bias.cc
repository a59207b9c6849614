#include "kernels/add_qkv_bias.h"

#include "op_table.generated.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

using Op = AddQKVBias;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  SwitchElement(qkv.dtype, [&](auto element) {
    using T = decltype(element);
    kernels::AddQkvBiasArguments<T> a;
    a.qkv = Data<T>(qkv);
    a.bias = Data<T>(call.inputs[Op::In::bias]);
    for (int i = 0; i < 3; ++i) a.out[i] = Data<T>(call.outputs[i]);
    a.batch = qkv.shape[0];
    a.sequence = qkv.shape[1];
    a.heads = call.attributes[Op::Attr::num_heads].i;
    a.head_size = qkv.shape[2] / 3 / a.heads;
    CheckCuda(kernels::AddQkvBias(a, DeviceOf(call), StreamOf(call)), Op::kName);
  });
}

}  // namespace

const bertfuse_kernel kAddQKVBias = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
