#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = AddQKVBias;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
  const float* x = FloatData(qkv);
  const float* bias = FloatData(call.inputs[Op::In::bias]);
  const int64_t batch = qkv.shape[0], sequence = qkv.shape[1], hidden = qkv.shape[2] / 3;
  const int64_t heads = call.attributes[Op::Attr::num_heads].i, head_size = hidden / heads;
  float* outputs[3];
  for (int part = 0; part < 3; ++part) outputs[part] = static_cast<float*>(call.outputs[part].data);
  ParallelFor(call, batch * sequence, GrainFor(6 * hidden), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / sequence, s = row % sequence;
      for (int64_t part = 0; part < 3; ++part) {
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t column = part * hidden + head * head_size;
          Loops().add(x + row * 3 * hidden + column, bias + column,
                      outputs[part] + ((b * heads + head) * sequence + s) * head_size, head_size);
        }
      }
    }
  });
}

constexpr Float32Kernel kFloat32 = {nullptr, Run};

}  // namespace

const bertfuse_kernel kAddQKVBias = AnyFloatKernel<Op, kFloat32>();

}  // namespace bertfuse::cpu
