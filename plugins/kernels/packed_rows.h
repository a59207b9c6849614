// Packed rows: room for all of a padded batch, of which the first *row_count are real. The host does not know how many:
// grids are made for as many as it expects, and their blocks loop where there are more.
#ifndef BERTFUSE_KERNELS_PACKED_ROWS_H_
#define BERTFUSE_KERNELS_PACKED_ROWS_H_

#include <algorithm>
#include <cstdint>

namespace bertfuse::kernels {

struct PackedRows {
  // On the device; null: all rows are real. Kernels read it before the kernels ahead of them have ended, so between
  // them and the one that writes it there has to be one that launches its dependents only when that has ended: the
  // embedding.
  const int32_t* row_count = nullptr;
  int64_t expected = 0;  // by the host; results do not depend on it

  // How many of `rows` a grid is made for. A little more than are expected: blocks without work cost less than a second
  // turn of those that have some.
  int64_t ForGrid(int64_t rows) const {
    return row_count == nullptr ? rows : std::clamp<int64_t>(expected + expected / 8, 1, std::max<int64_t>(rows, 1));
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKED_ROWS_H_
