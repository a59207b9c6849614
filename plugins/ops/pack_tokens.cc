#include "core/op_table.h"
#include "kernels/packing.h"
#include "op_table.generated.h"
#include "ops/call.h"
#include "ops/packed_rows.h"

namespace bertfuse::cuda {
namespace {

using Op = PackTokens;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& mask = call.inputs[Op::In::mask];
  const int64_t all = NumElements(mask);
  if (all > INT32_MAX) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %lld tokens, expected at most %d", Op::kName, static_cast<long long>(all),
         INT32_MAX);
  }
  SwitchIndex(mask.dtype, [&](auto index) {
    kernels::PackTokensArguments<decltype(index)> a = {};
    a.mask = Data<const decltype(index)>(mask);
    a.sequences = mask.shape[0];
    a.length = mask.shape[1];
    a.token_index = Data<int32_t>(call.outputs[Op::Out::token_index]);
    a.cu_seqlens = Data<int32_t>(call.outputs[Op::Out::cu_seqlens]);
    a.row_count = Data<int32_t>(call.outputs[Op::Out::row_count]);
    a.hint = const_cast<uint64_t*>(HintsOf(call).Slot(all));
    CheckCuda(kernels::PackTokens(a, DeviceOf(call), StreamOf(call)), Op::kName);
  });
}

}  // namespace

const bertfuse_kernel kPackTokens = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
