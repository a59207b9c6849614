// RoPE of heads in the product that makes them.
#ifndef BERTFUSE_KERNELS_ROTATION_H_
#define BERTFUSE_KERNELS_ROTATION_H_

#include <cstdint>

#include "kernels/launch.h"

namespace bertfuse::kernels {

// Of a row of heads of Q, of K and of V those of Q and K are rotated by angles that tables have for the row's place.
template <class T>
struct Rotation {
  const T* cos;  // [table_rows, rotated], as sin is; null: nothing is rotated
  const T* sin;
  // Of each row, a number that comes to its row of the tables, modulo table_rows; null: the row's own number.
  const int32_t* places;
  int64_t table_rows, heads, kv_heads, head_size;
  int64_t rotated;  // pairs of columns, at most half of a head
  bool neighbours;  // columns 2i and 2i + 1 are a pair, not i and i + rotated
};

// Whether an epilogue of Hopper's products rotates them (sm90/gemm/rotate.cuh): there both columns of a pair are in one
// thread, for whole heads of this size.
constexpr int kEpilogueHead = 64;

template <class T>
bool SuitsEpilogue(const Rotation<T>& r) {
  return sizeof(T) == 2 && r.cos != nullptr && r.table_rows > 0 && r.table_rows < (int64_t{1} << 26) &&
         r.head_size == kEpilogueHead && 2 * r.rotated == kEpilogueHead && !r.neighbours && IsAligned(r.cos, 16) &&
         IsAligned(r.sin, 16);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ROTATION_H_
