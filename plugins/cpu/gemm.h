// A matrix product over the host's threads, block by block.
#ifndef BERTFUSE_CPU_GEMM_H_
#define BERTFUSE_CPU_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "cpu/call.h"
#include "cpu/vector_loops.h"

namespace bertfuse::cpu {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// y[m,n] = x[m,k] weight[n,k]ᵀ. Each block is handed to finish(row, rows, column, columns) while it is in the cache.
template <class Finish>
void Gemm(const bertfuse_call& call, int64_t m, int64_t n, int64_t k, const float* x, const float* weight, float* y,
          Finish&& finish) {
  if (m == 0 || n == 0) return;
  // 32 blocks to a product keep many threads busy, and those of a quarter of a million multiply-adds take some
  // microseconds, which is worth waking one. Reading a weight costs as much as two rows.
  constexpr int64_t kWork = 256 * 1024, kBlocks = 32, kMaxRows = 96, kRows = 6, kColumns = 16;
  const int64_t row_blocks = CeilDiv(m, kMaxRows), rows = CeilDiv(CeilDiv(m, row_blocks), kRows) * kRows;
  const int64_t column_work = std::max<int64_t>(1, k) * (std::min(rows, m) + 2);
  const int64_t wanted = std::max({kWork / column_work, n * row_blocks / kBlocks, kColumns});
  const int64_t column_blocks = CeilDiv(n, wanted), columns = CeilDiv(CeilDiv(n, column_blocks), kColumns) * kColumns;
  const int64_t down = CeilDiv(m, rows), across = CeilDiv(n, columns);
  ParallelFor(call, down * across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block % down * rows, column = block / down * columns;
      const int64_t height = std::min(rows, m - row), width = std::min(columns, n - column);
      Loops().gemm(x + row * k, weight + column * k, y + row * n + column, height, width, k, n);
      finish(row, height, column, width);
    }
  });
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_GEMM_H_
