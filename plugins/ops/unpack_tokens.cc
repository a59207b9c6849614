#include "core/dtype.h"
#include "core/op_table.h"
#include "kernels/packing.h"
#include "op_table.generated.h"
#include "ops/call.h"
#include "ops/packed_rows.h"

namespace bertfuse::cuda {
namespace {

using Op = UnpackTokens;

// Rows are moved, not computed with, so their dtype does not matter.
void Run(const bertfuse_call& call) {
  const bertfuse_tensor& x = call.inputs[Op::In::x];
  kernels::UnpackTokensArguments a = {};
  a.x = x.data;
  a.token_index = Data<const int32_t>(call.inputs[Op::In::token_index]);
  a.y = call.outputs[Op::Out::y].data;
  a.rows = x.shape[0] * x.shape[1];
  a.places = NumElements(call.inputs[Op::In::token_index]);
  a.row_bytes = x.shape[2] * static_cast<int64_t>(DtypeSize(x.dtype));
  a.packed = PackedRowsOf(call, call.inputs[Op::In::row_count], a.places);
  CheckCuda(kernels::UnpackTokens(a, DeviceOf(call), StreamOf(call)), Op::kName);
}

}  // namespace

const bertfuse_kernel kUnpackTokens = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
