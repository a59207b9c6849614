#include "core/dtype.h"
#include "core/op_table.h"
#include "kernels/packing.h"
#include "op_table.generated.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

using Op = RaggedPositions;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& tokens = call.inputs[Op::In::tokens];
  const int64_t sequences = call.inputs[Op::In::cu_seqlens].shape[0] - 1;
  const int64_t longest = call.inputs[Op::In::max_seqlen].shape[0], all = NumElements(tokens);
  if (all > 0 && (sequences == 0 || longest == 0)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %lld tokens, but %lld sequences of at most %lld", Op::kName,
         static_cast<long long>(all), static_cast<long long>(sequences), static_cast<long long>(longest));
  }
  SwitchIndex(tokens.dtype, [&](auto index) {
    kernels::RaggedPositionsArguments<decltype(index)> a = {};
    a.cu_seqlens = Data<const int32_t>(call.inputs[Op::In::cu_seqlens]);
    a.sequence_ids = Data<decltype(index)>(call.outputs[Op::Out::sequence_ids]);
    a.position_ids = Data<decltype(index)>(call.outputs[Op::Out::position_ids]);
    a.tokens = all;
    a.sequences = sequences;
    a.longest = longest;
    CheckCuda(kernels::RaggedPositions(a, DeviceOf(call), StreamOf(call)), Op::kName);
  });
}

}  // namespace

const bertfuse_kernel kRaggedPositions = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
