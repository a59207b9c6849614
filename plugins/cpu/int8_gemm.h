// A matrix product of 8-bit integers over the host's threads: x is quantised row by row, then multiplied block by
// block.
#ifndef BERTFUSE_CPU_INT8_GEMM_H_
#define BERTFUSE_CPU_INT8_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "cpu/call.h"
#include "cpu/gemm.h"
#include "cpu/vector_loops.h"

namespace bertfuse::cpu {

// Sums of more products may not fit 32 bits.
inline constexpr int64_t kMaxInt8Depth = 131072;

// Room for m rows of k, and for the packed weight where nobody has prepared it.
struct Int8Buffers {
  Int8Buffers(int64_t m, int64_t n, int64_t k, bool prepared, Arena& arena) {
    x.k = k, x.stride = Loops().quantized_stride(k);
    x.rows = arena.Take<char>(m * x.stride);
    x.scales = arena.Take<float>(m);
    x.offsets = arena.Take<int32_t>(m);
    packed = arena.Take<char>(prepared ? 0 : Loops().packed_bytes(n, k));
  }
  Int8Rows x;
  char* packed;
};

// y[m,n] = x[m,k] weight[n,k]ᵀ of what `buffers` hold of x and a packed weight. `finish` as Gemm has it.
template <class Finish>
void Int8Gemm(const bertfuse_call& call, int64_t m, int64_t n, const Int8Rows& x, const void* packed,
              const float* weight_scale, float* y, Finish&& finish) {
  if (m == 0 || n == 0) return;
  // A block's rows of x stay in the first cache level, its part of the weight and of y in the second. Of MiniLM's 1,024
  // rows blocks of 64 took 1.2 times as long by VNNI in single runs on a loaded machine, 1.02 times by AVX2.
  constexpr int64_t kWork = 1024 * 1024, kBlocks = 16, kMaxRows = 32;
  const int64_t step = Loops().tile_columns, tile = Loops().tile_rows;
  const int64_t row_blocks = CeilDiv(m, kMaxRows), rows = CeilDiv(CeilDiv(m, row_blocks), tile) * tile;
  const int64_t column_work = std::max<int64_t>(1, x.k) * (std::min(rows, m) + 2);
  const int64_t wanted = std::max({kWork / column_work, n * row_blocks / kBlocks, step});
  const int64_t column_blocks = CeilDiv(n, wanted), columns = CeilDiv(CeilDiv(n, column_blocks), step) * step;
  const int64_t down = CeilDiv(m, rows), across = CeilDiv(n, columns);
  ParallelFor(call, down * across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block % down * rows, column = block / down * columns;
      const int64_t height = std::min(rows, m - row), width = std::min(columns, n - column);
      Loops().gemm_int8(x, row, height, packed, weight_scale, column, width, y + row * n + column, n);
      finish(row, height, column, width);
    }
  });
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_INT8_GEMM_H_
