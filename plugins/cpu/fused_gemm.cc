#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = FusedGemm;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& weight = call.inputs[Op::In::weight];
  const float* bias = FloatData(call.inputs[Op::In::bias]);
  float* y = static_cast<float*>(call.outputs[Op::Out::y].data);
  const int64_t n = weight.shape[0];
  const int64_t rows = n == 0 ? 0 : NumElements(call.outputs[Op::Out::y]) / n;
  const int64_t m = RealRows(Op::kName, call.inputs[Op::In::row_count], rows);
  Gemm(call, m, n, weight.shape[1], FloatData(call.inputs[Op::In::x]), FloatData(weight), y);
  if (bias == nullptr) return;
  ParallelFor(call, m, GrainFor(n), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) Loops().add(y + row * n, bias, y + row * n, n);
  });
}

constexpr Float32Kernel kFloat32 = {nullptr, Run};

}  // namespace

const bertfuse_kernel kFusedGemm = AnyFloatKernel<Op, kFloat32>();

}  // namespace bertfuse::cpu
