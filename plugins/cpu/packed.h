// Packed rows: how many are real, and where each sequence's begin.
#ifndef BERTFUSE_CPU_PACKED_H_
#define BERTFUSE_CPU_PACKED_H_

#include <algorithm>

#include "bertfuse/op.h"
#include "core/status.h"

namespace bertfuse::cpu {

// The first `rows` rows that `row_count` leaves to compute: all of them where it is not given. What lies outside
// [0, rows] is a mistake that a device cannot report: its kernels take the nearest.
inline int64_t RealRows(const char* op, const bertfuse_tensor& row_count, int64_t rows) {
  if (row_count.dtype == BERTFUSE_ABSENT) return rows;
  const int64_t count = *static_cast<const int32_t*>(row_count.data);
  if (count < 0 || count > rows) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'row_count' is %lld, expected 0 to %lld, the rows there are", op,
         static_cast<long long>(count), static_cast<long long>(rows));
  }
  return count;
}

// Throws INVALID_ARGUMENT with the place unless cu_seqlens begins with 0, ascends, and ends within `rows`.
inline void CheckSequences(const char* op, const bertfuse_tensor& cu_seqlens, int64_t rows) {
  const auto* offsets = static_cast<const int32_t*>(cu_seqlens.data);
  const int64_t sequences = cu_seqlens.shape[0] - 1;
  if (offsets[0] != 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cu_seqlens' begins with %d, expected 0", op, offsets[0]);
  }
  for (int64_t i = 0; i < sequences; ++i) {
    if (offsets[i + 1] < offsets[i]) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cu_seqlens' falls from %d to %d at %lld, expected it to ascend", op,
           offsets[i], offsets[i + 1], static_cast<long long>(i + 1));
    }
  }
  if (offsets[sequences] > rows) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cu_seqlens' ends with %d, expected at most %lld, the rows there are",
         op, offsets[sequences], static_cast<long long>(rows));
  }
}

// Throws INVALID_ARGUMENT unless places ascend within each of the sequences, which CheckSequences() has looked at.
inline void CheckPlaces(const char* op, const bertfuse_tensor& cu_seqlens, const bertfuse_tensor& token_index) {
  const auto* offsets = static_cast<const int32_t*>(cu_seqlens.data);
  const auto* index = static_cast<const int32_t*>(token_index.data);
  for (int64_t b = 0; b + 1 < cu_seqlens.shape[0]; ++b) {
    for (int64_t row = offsets[b]; row < offsets[b + 1]; ++row) {
      const bool ascends = row == offsets[b] ? index[row] >= 0 : index[row] > index[row - 1];
      if (ascends) continue;
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'token_index' holds %d at %lld, expected places that ascend from 0 on",
           op, index[row], static_cast<long long>(row));
    }
  }
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_PACKED_H_
