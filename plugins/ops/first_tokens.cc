#include "core/dtype.h"
#include "kernels/packing.h"
#include "op_table.generated.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

using Op = FirstTokens;

// Rows are moved, not computed with, so their dtype does not matter.
void Run(const bertfuse_call& call) {
  const bertfuse_tensor& x = call.inputs[Op::In::x];
  kernels::FirstTokensArguments a = {};
  a.x = x.data;
  a.cu_seqlens = Data<const int32_t>(call.inputs[Op::In::cu_seqlens]);
  a.y = call.outputs[Op::Out::y].data;
  a.rows = x.shape[0] * x.shape[1];
  a.sequences = call.inputs[Op::In::cu_seqlens].shape[0] - 1;
  a.row_bytes = x.shape[2] * static_cast<int64_t>(DtypeSize(x.dtype));
  CheckCuda(kernels::FirstTokens(a, DeviceOf(call), StreamOf(call)), Op::kName);
}

}  // namespace

const bertfuse_kernel kFirstTokens = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
