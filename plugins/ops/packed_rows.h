// Packed rows on the host: how many it expects.
#ifndef BERTFUSE_OPS_PACKED_ROWS_H_
#define BERTFUSE_OPS_PACKED_ROWS_H_

#include "bertfuse/op.h"
#include "kernels/packed_rows.h"
#include "ops/row_hints.h"

namespace bertfuse::cuda {

// The device's table. Its memory is allocated by the first call that comes while `stream` captures nothing.
RowHints HintsOf(const bertfuse_call& call);

// How many of `capacity` packed rows are probably real, by the device's table; all of them where the call's flags have
// BERTFUSE_NO_ROW_HINTS.
int64_t ExpectedRows(const bertfuse_call& call, int64_t capacity);

// The packed rows of a call; all rows are real where `row_count` is not given.
kernels::PackedRows PackedRowsOf(const bertfuse_call& call, const bertfuse_tensor& row_count, int64_t capacity);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_PACKED_ROWS_H_
