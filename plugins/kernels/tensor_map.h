// Tensor maps: how TMA, on Hopper and later, sees a matrix in global memory.
#ifndef BERTFUSE_KERNELS_TENSOR_MAP_H_
#define BERTFUSE_KERNELS_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace bertfuse::kernels {

// An element's type and size (sm90/tma.cuh: kTensorMapType<T>).
struct TensorMapElement {
  CUtensorMapDataType type;
  size_t bytes;
};

// A row-major matrix, or `count` of them one after the other, copied in boxes of box_rows x box_columns; a box's row is
// 32, 64 or 128 bytes in shared memory and swizzled over that width.
struct MatrixView {
  const void* data;
  int64_t rows, columns;
  int64_t pitch;  // elements from one row to the next
  int box_rows, box_columns;
  int64_t count = 0;  // 0: the map has two dimensions; else three, and a box lies within one matrix
};

cudaError_t MakeTensorMap(const MatrixView& matrix, TensorMapElement element, CUtensorMap* map);

// How many rows MakePermutedRowsMap() permutes among each other.
constexpr int kPermutedRows = 32;

// The same, but the rows of a box (and of the matrix: a multiple of 32) come in another order: of every 32, in shared
// memory row 8 t + 2 q + e is row 8 q + 2 t + e of the matrix. As the second operand of a warpgroup's product that
// gives each thread q of four 8 results side by side. Five dimensions: column, e, q, t, and 32 rows.
cudaError_t MakePermutedRowsMap(const MatrixView& matrix, TensorMapElement element, CUtensorMap* map);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_TENSOR_MAP_H_
