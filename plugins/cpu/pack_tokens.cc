#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = PackTokens;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& mask = call.inputs[Op::In::mask];
  auto* index = static_cast<int32_t*>(call.outputs[Op::Out::token_index].data);
  auto* cu_seqlens = static_cast<int32_t*>(call.outputs[Op::Out::cu_seqlens].data);
  const int64_t batch = mask.shape[0], sequence = mask.shape[1], all = batch * sequence;
  if (all > INT32_MAX) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %lld tokens, expected at most %d", Op::kName, static_cast<long long>(all),
         INT32_MAX);
  }
  SwitchIndex(mask.dtype, [&](auto tag) {
    const auto* real = static_cast<const decltype(tag)*>(mask.data);
    int32_t count = 0;
    for (int64_t b = 0; b < batch; ++b) {
      cu_seqlens[b] = count;
      for (int64_t at = b * sequence; at < (b + 1) * sequence; ++at) {
        if (real[at] != 0) index[count++] = static_cast<int32_t>(at);
      }
    }
    cu_seqlens[batch] = count;
    *static_cast<int32_t*>(call.outputs[Op::Out::row_count].data) = count;
    for (int64_t at = 0; at < all; ++at) {
      if (real[at] == 0) index[count++] = static_cast<int32_t>(at);
    }
  });
}

}  // namespace

const bertfuse_kernel kPackTokens = CpuKernel<Op, NoWorkspace, Run>();

}  // namespace bertfuse::cpu
