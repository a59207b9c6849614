#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = FusedGemmLayerNorm;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& weight = call.inputs[Op::In::weight];
  const float* bias = FloatData(call.inputs[Op::In::bias]);
  const float* residual = FloatData(call.inputs[Op::In::residual]);
  const float* gamma = FloatData(call.inputs[Op::In::gamma]);
  const float* beta = FloatData(call.inputs[Op::In::beta]);
  float* y = static_cast<float*>(call.outputs[Op::Out::y].data);
  const int64_t n = weight.shape[0];
  const int64_t rows = n == 0 ? 0 : NumElements(call.outputs[Op::Out::y]) / n;
  const int64_t m = RealRows(Op::kName, call.inputs[Op::In::row_count], rows);
  const float epsilon = call.attributes[Op::Attr::epsilon].f;
  Gemm(call, m, n, weight.shape[1], FloatData(call.inputs[Op::In::x]), FloatData(weight), y);
  ParallelFor(call, m, GrainFor(n), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Loops().layer_norm(y + row * n, bias, residual + row * n, gamma, beta, n, epsilon);
    }
  });
}

constexpr Float32Kernel kFloat32 = {nullptr, Run};

}  // namespace

const bertfuse_kernel kFusedGemmLayerNorm = AnyFloatKernel<Op, kFloat32>();

}  // namespace bertfuse::cpu
