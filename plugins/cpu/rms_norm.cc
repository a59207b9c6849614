#include <algorithm>

#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = FusedRMSNorm;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& input = call.inputs[Op::In::x];
  const float *const x = FloatData(input), *const gamma = FloatData(call.inputs[Op::In::gamma]);
  float* const y = static_cast<float*>(call.outputs[Op::Out::y].data);
  const int64_t n = call.inputs[Op::In::gamma].shape[0], all = n == 0 ? 0 : NumElements(input) / n;
  const int64_t rows = RealRows(Op::kName, call.inputs[Op::In::row_count], all);
  const float epsilon = call.attributes[Op::Attr::epsilon].f, offset = call.attributes[Op::Attr::gamma_offset].f;
  ParallelFor(call, rows, GrainFor(2 * n), [=](int64_t begin, int64_t end) {
    for (int64_t at = begin * n; at < end * n; at += n) {
      std::copy(x + at, x + at + n, y + at);
      Loops().norm({y + at, nullptr, nullptr, gamma, nullptr, nullptr, n, epsilon, true, nullptr, offset});
    }
  });
}

constexpr Float32Kernel kFloat32 = {nullptr, Run};

}  // namespace

const bertfuse_kernel kFusedRMSNorm = AnyFloatKernel<Op, kFloat32>();

}  // namespace bertfuse::cpu
