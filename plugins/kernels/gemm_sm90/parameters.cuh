// What a launch of a Hopper matrix product is given.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_PARAMETERS_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_PARAMETERS_CUH_

#include <cuda.h>

#include "kernels/activation.h"
#include "kernels/last_wave.h"

namespace bertfuse::kernels::gemm_sm90 {

struct Parameters {
  CUtensorMap x_map, weight_map, residual_map, y_map;
  const void* bias;
  const void* gamma;
  const void* beta;
  float* float_partials;  // of split-K, one [m, n] for each split
  void* y;
  void* partials;  // of y's rows from unsplit_rows on, in y's type: `partial_rows` of the second split first
  int partial_rows;
  int unsplit_rows, unsplit_tiles;
  int m, n, k_stages, stages_per_split;
  int cluster_m, cluster_n, x_multicasters;  // x_multicasters: blocks of a cluster row that load a slice of x for all
  int tiles_m, tiles_n, tiles;               // in clusters; `tiles` counts each split of a tile
  // Where rows are packed, the kernel works out for itself what hangs on their number: tiles and what is not split.
  const int32_t* row_count;
  int splits;
  LastWave last_wave;  // no clusters: every tile is split
  int clusters;        // that run, each of them taking every clusters-th tile
  float epsilon;
  Activation activation;
  bool has_residual, weights_are_constant, backwards;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_GEMM_SM90_PARAMETERS_CUH_
