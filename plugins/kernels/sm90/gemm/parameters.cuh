// The parameters of a launch of a Hopper matrix product.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_PARAMETERS_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_PARAMETERS_CUH_

#include <cuda.h>
#include <cutlass/fast_math.h>

#include "core/activation.h"
#include "kernels/last_wave.h"
#include "kernels/quantized_result.h"

namespace bertfuse::kernels::gemm_sm90 {

struct Parameters {
  CUtensorMap x_map, weight_map, residual_map, y_map;
  const void* bias;
  const void* gamma;
  const void* beta;
  float* float_partials;  // split-K's: [splits, m, n]
  void* y;
  void* partials;  // in y's type, of y's rows from unsplit_rows on: [splits - 1, partial_rows, n]
  int partial_rows;
  int unsplit_rows, unsplit_tiles;
  int m, n, k_stages, stages_per_split;      // n: y's columns
  int cluster_m, cluster_n, x_multicasters;  // x_multicasters: blocks of a cluster row that load a slice of x for all
  int x_slice_rows, weight_slice_rows;       // that a block loads for the others; of weight, of each factor
  uint32_t column_mask;                      // a bit for each block of the cluster's first column, by rank
  int tiles_m, tiles_n, tiles;               // counted in clusters; `tiles` counts each split of a tile
  cutlass::FastDivmod cluster_n_divmod, tiles_n_divmod;
  // With packed rows the kernel reads their number, and computes the number of tiles, and which are split, from it.
  const int32_t* row_count;
  int splits;
  LastWave last_wave;  // clusters is 0: every tile is split
  int clusters;        // of the grid; each takes every clusters-th tile
  float epsilon;
  Activation activation;
  int ring_stages;  // of TileConfig::kTrimsRing
  bool has_residual, weights_are_constant, last_rows_first, dependents_begin_late;
  const float* row_scales;               // of 8-bit operands: x's
  const float* weight_scales;            // and the weight's
  const int32_t* x_compensation;         // [n] of integers: taken off their sums; may be null
  QuantizedResult quantized;             // of a kernel that stores 8 bits
  QuantizedResidual quantized_residual;  // of StationaryNormConfig::kRestoresResidual
  // Of a kernel that rotates heads (rotate.cuh): tables in y's type, each row's place, and how many columns are turned,
  // of Q and K.
  const void* cos;
  const void* sin;
  const int32_t* places;  // null: a row's number; modulo the tables' rows either is one of them
  cutlass::FastDivmod table_rows_divmod;
  int turned_columns;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_PARAMETERS_CUH_
