// A matrix product over the host's threads, block by block.
#ifndef BERTFUSE_CPU_GEMM_H_
#define BERTFUSE_CPU_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "cpu/call.h"
#include "cpu/vector_loops.h"

namespace bertfuse::cpu {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A product's blocks: rows by columns, for the loops that suit them.
struct GemmBlocks {
  int64_t rows, columns;
  bool panels;  // whether gemm_panels computes them
};

// 32 blocks to a product keep many threads busy, and those of a quarter of a million multiply-adds take some
// microseconds, which is worth waking one. Reading a weight costs as much as two rows.
inline GemmBlocks BlocksOfFewRows(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kWork = 256 * 1024, kBlocks = 32, kRows = 6, kColumns = 16;
  const int64_t column_work = std::max<int64_t>(1, k) * (m + 2);
  const int64_t column_blocks = CeilDiv(n, std::max({kWork / column_work, n / kBlocks, kColumns}));
  return {CeilDiv(m, kRows) * kRows, CeilDiv(CeilDiv(n, column_blocks), kColumns) * kColumns, false};
}

// Every block of rows turns the weight into panels anew, which costs as much as eight rows, and every block of columns
// copies x: high blocks, wide ones, and sixteen where there is enough to do.
inline GemmBlocks BlocksOfPanels(int64_t m, int64_t n, int64_t parts) {
  constexpr int64_t kBlocks = 16, kAcross = 8, kMinRows = 96, kRows = 12, kColumns = 32, kMaxColumns = 192;
  const int64_t columns = std::min(CeilDiv(CeilDiv(n * parts, kAcross), kColumns) * kColumns, kMaxColumns);
  const int64_t down =
      std::clamp<int64_t>(CeilDiv(kBlocks, CeilDiv(n, columns)), 1, std::max<int64_t>(1, m / kMinRows));
  return {CeilDiv(CeilDiv(m, down), kRows) * kRows, columns, true};
}

struct GemmPart {
  const float* weight;  // [n, k]
  float* y;             // [m, n]
};

// y[m,n] = x[m,k] weight[n,k]ᵀ of one or several weights. Each block, of all of them, is handed to finish(row, rows,
// column, columns) while it is in the cache.
template <int kParts, class Finish>
void Gemm(const bertfuse_call& call, int64_t m, int64_t n, int64_t k, const float* x, const GemmPart (&parts)[kParts],
          Finish&& finish) {
  if (m == 0 || n == 0) return;
  constexpr int64_t kFewRows = 64;  // up to here panels cost more than they save
  const auto [rows, columns, panels] = m <= kFewRows ? BlocksOfFewRows(m, n, k) : BlocksOfPanels(m, n, kParts);
  const auto multiply = panels ? Loops().gemm_panels : Loops().gemm;
  const int64_t down = CeilDiv(m, rows), across = CeilDiv(n, columns);
  ParallelFor(call, down * across, 1, [&, rows = rows, columns = columns](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block % down * rows, column = block / down * columns;
      const int64_t height = std::min(rows, m - row), width = std::min(columns, n - column);
      for (const GemmPart& part : parts) {
        multiply(x + row * k, part.weight + column * k, part.y + row * n + column, height, width, k, n);
      }
      finish(row, height, column, width);
    }
  });
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_GEMM_H_
