// Packed rows on the host: how many it expects.
#ifndef BERTFUSE_OPS_PACKED_ROWS_H_
#define BERTFUSE_OPS_PACKED_ROWS_H_

#include "bertfuse/op.h"
#include "kernels/packed_rows.h"
#include "ops/row_hints.h"

namespace bertfuse::cuda {

// The device's table. Its memory is allocated by the first call that comes while `stream` captures nothing.
RowHints HintsOf(const bertfuse_call& call);

// How many of packed rows, with room for `room`, are probably real. By the device's table, unless the call's flags say
// BERTFUSE_NO_ROW_HINTS: then all of them.
int64_t ExpectedRows(const bertfuse_call& call, int64_t room);

// Of a call's rows: all of them where `row_count` is not given.
kernels::PackedRows PackedRowsOf(const bertfuse_call& call, const bertfuse_tensor& row_count, int64_t room);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_PACKED_ROWS_H_
