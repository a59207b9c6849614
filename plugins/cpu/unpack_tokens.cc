#include <cstring>

#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = UnpackTokens;

// Rows are moved, not computed with, so their dtype does not matter.
void Run(const bertfuse_call& call) {
  const bertfuse_tensor& x = call.inputs[Op::In::x];
  const auto* index = static_cast<const int32_t*>(call.inputs[Op::In::token_index].data);
  const int64_t all = NumElements(call.inputs[Op::In::token_index]);
  const int64_t count = RealRows(Op::kName, call.inputs[Op::In::row_count], std::min(all, x.shape[0] * x.shape[1]));
  const size_t bytes = static_cast<size_t>(x.shape[2]) * DtypeSize(x.dtype);
  const auto* from = static_cast<const char*>(x.data);
  auto* to = static_cast<char*>(call.outputs[Op::Out::y].data);
  for (int64_t row = 0; row < all; ++row) {
    if (index[row] < 0 || index[row] >= all) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'token_index' holds %d, expected a place among %lld tokens", Op::kName,
           index[row], static_cast<long long>(all));
    }
  }
  ParallelFor(call, all, GrainFor(x.shape[2]), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* target = to + static_cast<size_t>(index[row]) * bytes;
      if (row < count) {
        std::memcpy(target, from + static_cast<size_t>(row) * bytes, bytes);
      } else {
        std::memset(target, 0, bytes);
      }
    }
  });
}

}  // namespace

const bertfuse_kernel kUnpackTokens = CpuKernel<Op, NoWorkspace, Run>();

}  // namespace bertfuse::cpu
