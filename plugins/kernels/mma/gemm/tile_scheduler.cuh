// Which tile of y, and which split of k, a block computes.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_TILE_SCHEDULER_CUH_

#include "kernels/mma/gemm.h"
#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels::gemm_mma {

// What the kernel is given.
template <class Elements>
struct Parameters {
  const typename Elements::X* x;
  const typename Elements::Weight* weight;
  const typename Elements::Y* bias;  // may be null
  typename Elements::Y* y;
  const float* row_scales;        // of 8-bit operands: x's
  const float* weight_scales;     // and the weight's
  const int32_t* x_compensation;  // [n] of integers: taken off their sums; may be null
  float* float_partials;          // [splits, m, n] in place of y; may be null
  int m, n, k;
  int stages;            // of the ring
  int tiles_n;           // columns of tiles
  int group;             // rows of tiles that are computed column by column
  int splits;            // of k
  int stages_per_split;  // stages of k in a split
  const int32_t* row_count;
  int rows_before;  // that row_count counts, and another launch computes
  Activation activation;
  bool vectorised;           // rows of the output are on 16-byte boundaries
  bool fetch_weights_first;  // before the preceding kernels have ended
  bool last_rows_first;
};

struct TileAt {
  int first_row, first_column, split;
};

// Tiles are taken in groups of p.group rows, column by column, so that blocks that run at a time share both operands:
// in L2, a square of tiles needs fewer rows of x and weight than a strip does.
template <int kM, int kN>
class TileScheduler {
 public:
  template <class Elements>
  __device__ __forceinline__ TileScheduler(const Parameters<Elements>& p, int rows)
      : rows_of_tiles_((rows + kM - 1) / kM),
        columns_(p.tiles_n),
        group_(p.group),
        last_rows_first_(p.last_rows_first) {
    tiles_ = rows_of_tiles_ * columns_ * p.splits;
  }
  __device__ __forceinline__ int tiles() const { return tiles_; }

  __device__ __forceinline__ TileAt operator[](int number) const {
    const int of_split = rows_of_tiles_ * columns_, split = number / of_split, in_split = number - split * of_split;
    const int of_group = group_ * columns_, group = in_split / of_group, in_group = in_split - group * of_group;
    const int first = group * group_, height = min(group_, rows_of_tiles_ - first);
    const int column = in_group / height, row = first + in_group - column * height;
    return {(last_rows_first_ ? rows_of_tiles_ - 1 - row : row) * kM, column * kN, split};
  }

 private:
  int rows_of_tiles_, columns_, group_, tiles_;
  bool last_rows_first_;
};

}  // namespace bertfuse::kernels::gemm_mma
#endif  // BERTFUSE_KERNELS_MMA_GEMM_TILE_SCHEDULER_CUH_
