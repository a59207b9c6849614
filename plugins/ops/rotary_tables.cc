#include "kernels/rotary_tables.h"

#include <string_view>

#include "core/dtype.h"
#include "op_table.generated.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

using Op = RotaryTables;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor &frequencies = call.inputs[Op::In::frequencies], &cos = call.outputs[Op::Out::cos];
  SwitchElement(cos.dtype, [&](auto element) {
    using T = decltype(element);
    kernels::RotaryTablesArguments<T> a = {};
    a.frequencies = Data<const float>(frequencies);
    a.cos = Data<T>(cos);
    a.sin = Data<T>(call.outputs[Op::Out::sin]);
    a.places = cos.shape[0];
    a.pairs = cos.shape[1];
    a.scaling = call.attributes[Op::Attr::scaling].f;
    a.divides = std::string_view(call.attributes[Op::Attr::angle].s) == "quotient";
    a.frequencies_are_constant = IsConstant(call, &frequencies);
    CheckCuda(kernels::RotaryTables(a, DeviceOf(call), StreamOf(call)), Op::kName);
  });
}

}  // namespace

const bertfuse_kernel kRotaryTables = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
