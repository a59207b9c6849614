#include <cmath>
#include <string_view>

#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = RotaryTables;
constexpr int64_t kChunk = 64;  // places of pairs that are converted at a time
constexpr int64_t kCost = 16;   // of a cosine and a sine, in floats read

void Run(const bertfuse_call& call) {
  const bertfuse_tensor &cos = call.outputs[Op::Out::cos], &sin = call.outputs[Op::Out::sin];
  const auto* const frequencies = static_cast<const float*>(call.inputs[Op::In::frequencies].data);
  const bool divides = std::string_view(call.attributes[Op::Attr::angle].s) == "quotient";
  const float scaling = call.attributes[Op::Attr::scaling].f;
  const int64_t pairs = cos.shape[1], bytes = static_cast<int64_t>(DtypeSize(cos.dtype));
  ParallelFor(call, cos.shape[0], GrainFor(kCost * pairs), [&](int64_t begin, int64_t end) {
    float cosines[kChunk], sines[kChunk];
    for (int64_t place = begin; place < end; ++place) {
      for (int64_t first = 0; first < pairs; first += kChunk) {
        const int64_t count = std::min(kChunk, pairs - first);
        for (int64_t i = 0; i < count; ++i) {
          const float at = static_cast<float>(place), frequency = frequencies[first + i];
          const float angle = divides ? at / frequency : at * frequency;
          cosines[i] = std::cos(angle) * scaling, sines[i] = std::sin(angle) * scaling;
        }
        const int64_t offset = (place * pairs + first) * bytes;
        FromFloat(cos.dtype, cosines, static_cast<char*>(cos.data) + offset, count);
        FromFloat(sin.dtype, sines, static_cast<char*>(sin.data) + offset, count);
      }
    }
  });
}

}  // namespace

const bertfuse_kernel kRotaryTables = CpuKernel<Op, NoWorkspace, Run>();

}  // namespace bertfuse::cpu
