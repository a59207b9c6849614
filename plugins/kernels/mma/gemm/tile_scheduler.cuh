// Which tile of y, and which split of k, a block computes.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_TILE_SCHEDULER_CUH_

#include "kernels/divisor.h"
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
  // Where rows are not packed: tiles of a split and of a group, rows of tiles in a group and in the last one.
  Divisor of_split, of_group, height, last_height;
  const int32_t* row_count;
  int rows_before;  // that row_count counts, and another launch computes
  Activation activation;
  bool vectorised;           // rows of the output are on 16-byte boundaries
  bool fetch_weights_first;  // before the preceding kernels have ended
  bool last_rows_first;
  Prefetch next;
};

struct TileAt {
  int first_row, first_column, split;
};

// Tiles are taken in groups of p.group rows, column by column, so that blocks that run at a time share both operands:
// in L2, a square of tiles needs fewer rows of x and weight than a strip does.
template <int kM, int kN, class Elements>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Parameters<Elements>& p, int rows)
      : p_(p), rows_of_tiles_((rows + kM - 1) / kM) {}
  __device__ __forceinline__ int tiles() const { return rows_of_tiles_ * p_.tiles_n * p_.splits; }

  __device__ __forceinline__ TileAt operator[](int number) const {
    if (p_.row_count == nullptr) {
      const int split = p_.of_split.Divide(number), in_split = number - split * rows_of_tiles_ * p_.tiles_n;
      const int group = p_.of_group.Divide(in_split), in_group = in_split - group * p_.group * p_.tiles_n;
      int height = p_.group, column = p_.height.Divide(in_group);
      if ((group + 1) * p_.group > rows_of_tiles_) {
        height = rows_of_tiles_ - group * p_.group, column = p_.last_height.Divide(in_group);
      }
      return At(split, group, column, in_group - column * height);
    }
    const int of_split = rows_of_tiles_ * p_.tiles_n, split = number / of_split, in_split = number - split * of_split;
    const int of_group = p_.group * p_.tiles_n, group = in_split / of_group, in_group = in_split - group * of_group;
    const int height = min(p_.group, rows_of_tiles_ - group * p_.group), column = in_group / height;
    return At(split, group, column, in_group - column * height);
  }

 private:
  __device__ __forceinline__ TileAt At(int split, int group, int column, int row_of_group) const {
    const int row = group * p_.group + row_of_group;
    return {(p_.last_rows_first ? rows_of_tiles_ - 1 - row : row) * kM, column * kN, split};
  }

  const Parameters<Elements>& p_;
  int rows_of_tiles_;
};

}  // namespace bertfuse::kernels::gemm_mma
#endif  // BERTFUSE_KERNELS_MMA_GEMM_TILE_SCHEDULER_CUH_
