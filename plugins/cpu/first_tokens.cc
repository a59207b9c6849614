#include <cstring>

#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = FirstTokens;

// Rows are moved, not computed with, so their dtype does not matter.
void Run(const bertfuse_call& call) {
  const bertfuse_tensor& x = call.inputs[Op::In::x];
  const bertfuse_tensor& cu_seqlens = call.inputs[Op::In::cu_seqlens];
  CheckSequences(Op::kName, cu_seqlens, x.shape[0] * x.shape[1]);
  const auto* offsets = static_cast<const int32_t*>(cu_seqlens.data);
  const size_t bytes = static_cast<size_t>(x.shape[2]) * DtypeSize(x.dtype);
  auto* to = static_cast<char*>(call.outputs[Op::Out::y].data);
  for (int64_t i = 0; i + 1 < cu_seqlens.shape[0]; ++i, to += bytes) {
    if (offsets[i] < offsets[i + 1]) {
      std::memcpy(to, static_cast<const char*>(x.data) + static_cast<size_t>(offsets[i]) * bytes, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
}

}  // namespace

const bertfuse_kernel kFirstTokens = CpuKernel<Op, NoWorkspace, Run>();

}  // namespace bertfuse::cpu
