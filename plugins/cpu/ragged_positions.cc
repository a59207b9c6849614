#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = RaggedPositions;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor& tokens = call.inputs[Op::In::tokens];
  const bertfuse_tensor& cu_seqlens = call.inputs[Op::In::cu_seqlens];
  const int64_t all = tokens.shape[0] * tokens.shape[1], sequences = cu_seqlens.shape[0] - 1;
  CheckSequences(Op::kName, cu_seqlens, all);
  const auto* offsets = static_cast<const int32_t*>(cu_seqlens.data);
  if (offsets[sequences] != all) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cu_seqlens' ends with %d, expected %lld, the number of tokens",
         Op::kName, offsets[sequences], static_cast<long long>(all));
  }
  const int64_t longest = call.inputs[Op::In::max_seqlen].shape[0];
  for (int64_t i = 0; i < sequences; ++i) {
    if (offsets[i + 1] - offsets[i] > longest) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: sequence %lld has %d tokens, but input 'max_seqlen' is %lld long", Op::kName,
           static_cast<long long>(i), offsets[i + 1] - offsets[i], static_cast<long long>(longest));
    }
  }
  SwitchIndex(tokens.dtype, [&](auto tag) {
    using Index = decltype(tag);
    auto* sequence_ids = static_cast<Index*>(call.outputs[Op::Out::sequence_ids].data);
    auto* position_ids = static_cast<Index*>(call.outputs[Op::Out::position_ids].data);
    for (int64_t i = 0; i < sequences; ++i) {
      for (int64_t at = offsets[i]; at < offsets[i + 1]; ++at) {
        sequence_ids[at] = static_cast<Index>(i);
        position_ids[at] = static_cast<Index>(at - offsets[i]);
      }
    }
  });
}

}  // namespace

const bertfuse_kernel kRaggedPositions = CpuKernel<Op, NoWorkspace, Run>();

}  // namespace bertfuse::cpu
