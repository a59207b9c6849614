#include "kernels/rms_norm.h"

#include "core/op_table.h"
#include "op_table.generated.h"
#include "ops/call.h"
#include "ops/packed_rows.h"

namespace bertfuse::cuda {
namespace {

using Op = FusedRMSNorm;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor &x = call.inputs[Op::In::x], &gamma = call.inputs[Op::In::gamma];
  SwitchElement(x.dtype, [&](auto element) {
    using T = decltype(element);
    kernels::RmsNormArguments<T> a = {};
    a.x = Data<T>(x);
    a.gamma = Data<T>(gamma);
    a.y = Data<T>(call.outputs[Op::Out::y]);
    a.columns = gamma.shape[0];
    if (a.columns == 0) return;
    a.rows = NumElements(x) / a.columns;
    a.packed = PackedRowsOf(call, call.inputs[Op::In::row_count], a.rows);
    a.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
    a.epsilon = call.attributes[Op::Attr::epsilon].f;
    a.gamma_offset = call.attributes[Op::Attr::gamma_offset].f;
    if (!kernels::RmsNormSupports(a)) FailTooWide(Op::kName, a.columns);
    CheckCuda(kernels::RmsNorm(a, DeviceOf(call), StreamOf(call)), Op::kName);
  });
}

}  // namespace

const bertfuse_kernel kFusedRMSNorm = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
