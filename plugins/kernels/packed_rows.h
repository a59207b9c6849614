// Packed rows: tensors have room for all tokens of a padded batch, and the first *row_count rows are real. The host
// does not know how many: it sizes grids for as many as it expects, and blocks loop if there are more.
#ifndef BERTFUSE_KERNELS_PACKED_ROWS_H_
#define BERTFUSE_KERNELS_PACKED_ROWS_H_

#include <algorithm>
#include <cstdint>

namespace bertfuse::kernels {

struct PackedRows {
  // In device memory; null: all rows are real. Kernels read it before the preceding kernels have ended. So PackTokens
  // launches its dependents only after it has written it, and the first to use it, embedding or RMSNorm, its own only
  // when PackTokens has ended. (UnpackTokens, which may come right after PackTokens, waits before it reads it.)
  const int32_t* row_count = nullptr;
  int64_t expected = 0;  // by the host; results depend on it by their rounding alone

  // How many of `rows` a grid is sized for. A few more than are expected: blocks without work cost less than a second
  // round of the others.
  int64_t LaunchRows(int64_t rows) const {
    return row_count == nullptr ? rows : std::clamp<int64_t>(expected + expected / 8, 1, std::max<int64_t>(rows, 1));
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKED_ROWS_H_
