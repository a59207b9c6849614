// Launching the Hopper matrix products: how the output is tiled, tensor maps, cluster and grid.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_LAUNCH_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_LAUNCH_CUH_

#include <algorithm>
#include <limits>

#include "kernels/sm90/gemm.h"
#include "kernels/sm90/gemm/one_tile.cuh"
#include "kernels/sm90/gemm/persistent.cuh"
#include "kernels/sm90/gemm/split_k.cuh"
#include "kernels/sm90/gemm/stationary_norm.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels::gemm_sm90 {

// Takes over the arguments and counts the tiles, none of them split. Fails if the tile does not suit the sizes.
template <class Config, class T>
cudaError_t Prepare(const GemmTile& tile, const GemmArguments<T>& a, Parameters* p) {
  const int cluster = tile.cluster_m * tile.cluster_n;
  if (cluster < 1 || cluster > kMaxCluster || tile.splits < 1 || Config::kOutN / 8 % tile.cluster_m != 0) {
    return cudaErrorInvalidConfiguration;
  }
  p->bias = a.bias;
  p->gamma = a.gamma;
  p->beta = a.beta;
  p->row_scales = a.row_scales;
  p->weight_scales = a.weight_scales;
  p->x_compensation = a.x_compensation;
  p->quantized = a.quantized;
  p->float_partials = a.float_partials;
  p->y = a.y;
  p->partials = a.partials;
  p->partial_rows = static_cast<int>(a.partial_rows);
  p->m = static_cast<int>(a.m);
  p->n = static_cast<int>(a.n / Config::kFactors);
  p->k_stages = static_cast<int>(CeilDiv(a.k, Config::kStageK));
  p->stages_per_split = static_cast<int>(CeilDiv(p->k_stages, tile.splits));
  if ((tile.splits - 1) * p->stages_per_split >= p->k_stages) return cudaErrorInvalidConfiguration;
  p->cluster_m = tile.cluster_m;
  p->cluster_n = tile.cluster_n;
  // A slice of x must be a multiple of the swizzle's 8 rows.
  p->x_multicasters = 1;
  while (p->x_multicasters * 2 <= tile.cluster_n && Config::kM / (p->x_multicasters * 2) % 8 == 0) {
    p->x_multicasters *= 2;
  }
  p->x_slice_rows = Config::kM / p->x_multicasters;
  p->weight_slice_rows = Config::kOutN / tile.cluster_m;
  p->column_mask = 0;
  for (int i = 0; i < tile.cluster_m; ++i) p->column_mask |= 1u << (i * tile.cluster_n);
  // Counted in 64 bits: a grid takes fewer than 2^31 blocks.
  const int64_t tiles_m = CeilDiv(a.m, static_cast<int64_t>(tile.cluster_m) * Config::kM);
  const int64_t tiles_n = CeilDiv(p->n, static_cast<int64_t>(tile.cluster_n) * Config::kOutN);
  if (tiles_m * tiles_n * tile.splits * cluster > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  p->tiles_m = static_cast<int>(tiles_m);
  p->tiles_n = static_cast<int>(tiles_n);
  p->cluster_n_divmod = cutlass::FastDivmod(tile.cluster_n);
  p->tiles_n_divmod = cutlass::FastDivmod(p->tiles_n);
  p->unsplit_rows = p->m;
  p->unsplit_tiles = p->tiles = p->tiles_m * p->tiles_n;
  p->row_count = a.packed.row_count;
  p->splits = tile.splits;
  p->last_wave = {tile.cluster_m * Config::kM, p->tiles_n, 0};
  p->epsilon = a.epsilon;
  p->activation = a.activation;
  p->has_residual = a.residual != nullptr;
  p->weights_are_constant = a.weights_are_constant;
  p->last_rows_first = a.last_rows_first;
  p->dependents_begin_late = a.dependents_begin_late;
  if (Config::Epilogue::kRotates) {
    if (!SuitsEpilogue(a.rotation)) return cudaErrorInvalidValue;
    p->cos = a.rotation.cos, p->sin = a.rotation.sin, p->places = a.rotation.places;
    p->table_rows_divmod = cutlass::FastDivmod(static_cast<int>(a.rotation.table_rows));
    p->turned_columns = static_cast<int>((a.rotation.heads + a.rotation.kv_heads) * a.rotation.head_size);
  }
  return cudaSuccess;
}

// Splits the tiles of the panels after the first `full_panels` along k.
inline void Split(const GemmTile& tile, int full_panels, Parameters* p) {
  p->unsplit_rows = full_panels * p->last_wave.panel_rows;
  p->unsplit_tiles = full_panels * p->tiles_n;
  p->tiles = p->unsplit_tiles + (p->tiles_m * p->tiles_n - p->unsplit_tiles) * tile.splits;
}

// Clusters of the grid, where each takes one tile. For packed rows, as many as the expected rows need.
template <class Config, class T>
int ClustersOfOneTile(const GemmArguments<T>& a, const Parameters& p) {
  if (!Config::kPacked) return p.tiles;
  const int64_t panels = Panels(p.last_wave, a.packed.LaunchRows(a.m));
  return static_cast<int>(std::min<int64_t>(panels * p.tiles_n * p.splits, p.tiles));
}

// Tensor maps of x and weight.
template <class Config, class T>
cudaError_t MakeOperandMaps(const GemmArguments<T>& a, Parameters* p) {
  const MatrixView x = {a.x, a.m, a.k, a.k, p->x_slice_rows, Config::kStageK};
  const cudaError_t error = MakeTensorMap(x, kTensorMapType<typename Config::X>, &p->x_map);
  if (error != cudaSuccess) return error;
  const MatrixView weight = {a.weight, a.n, a.k, a.k, p->weight_slice_rows, Config::kStageK};
  return (Config::kPermutesWeight ? MakePermutedRowsMap : MakeTensorMap)(
      weight, kTensorMapType<typename Config::Weight>, &p->weight_map);
}

// Where there are more blocks than multiprocessors: leaves out stages of their rings that neither a block's part of k
// nor its epilogue comes to, as many as it takes for all of them to run at once, or else as many to a multiprocessor as
// have room. No more than that, and none of a smaller grid: where two blocks fit side by side, a multiprocessor gets
// two and another one none. On an H200 bert-base takes 0.260 ms in fp8 for 1x128 where only what has to be is left out,
// 0.277 with all that one-tile blocks do not use, and 0.296 with none; and for 1x16 0.218, 0.234 and 0.217.
template <class Config>
void TrimRing(Parameters* p, LaunchConfig* config) {
  static_assert(Config::kTrimsRing);
  p->ring_stages = Config::kStages;
  const int unused = std::max(Config::kStages - p->stages_per_split - Config::kEpilogueStages, 0);
  for (int64_t together = CeilDiv(config->grid.x, config->device->multiprocessors); together > 1; --together) {
    const int64_t most = config->device->shared_bytes_per_multiprocessor / together - kReservedShared;
    const int64_t idle = CeilDiv(static_cast<int64_t>(config->shared_bytes) - most, Config::kStageBytes);
    if (idle > unused) continue;
    p->ring_stages -= static_cast<int>(std::max<int64_t>(idle, 0));
    break;
  }
  config->shared_bytes -= static_cast<size_t>(Config::kStages - p->ring_stages) * Config::kStageBytes;
}

template <class Config>
LaunchConfig MakeLaunchConfig(const GemmTile& tile, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  config.block = dim3(Config::kThreads);
  config.shared_bytes = Config::SharedBytes(tile.cluster_n);
  config.cluster = static_cast<unsigned>(tile.cluster_m * tile.cluster_n);
  config.stream = stream;
  config.device = &device;
  return config;
}

template <class Config, class T>
cudaError_t LaunchPersistent(const GemmTile& tile, const GemmArguments<T>& a, const Device& device,
                             cudaStream_t stream) {
  if (!Config::Epilogue::Supports(a.activation)) return cudaErrorInvalidValue;
  // All of it: maps that the kernel does not read are not what lay on the stack.
  Parameters p = {};
  cudaError_t error = Prepare<Config>(tile, a, &p);
  if (error != cudaSuccess) return error;
  if (p.n % kPermutedRows != 0 || p.weight_slice_rows % kPermutedRows != 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (tile.splits > 1) {
    const LastWave& wave = a.last_wave;
    const bool planned = wave.panel_rows == p.last_wave.panel_rows && wave.tiles_per_panel == p.tiles_n &&
                         wave.clusters > 0 && a.partial_rows >= a.m - RowsOfFullPanels(wave, a.m);
    // The epilogue comes after the splits' sum.
    if (!planned || a.partials == nullptr || !Config::Epilogue::AppliesToSplits(p)) {
      return cudaErrorInvalidValue;
    }
    p.last_wave = wave;
    Split(tile, static_cast<int>(FullPanels(wave, p.tiles_m)), &p);
  }
  error = MakeOperandMaps<Config>(a, &p);
  if (error != cudaSuccess) return error;
  LaunchConfig config = MakeLaunchConfig<Config>(tile, device, stream);
  error = ResidentClusters(config, BERTFUSE_KERNEL_HANDLE(PersistentKernel<Config>), &p.clusters);
  if (error != cudaSuccess) return error;
  // With packed rows any of the tiles may turn out to be split.
  p.clusters = std::min(p.clusters, Config::kPacked ? p.tiles_m * p.tiles_n * p.splits : p.tiles);
  config.grid = dim3(static_cast<unsigned>(p.clusters) * config.cluster);
  return Launch(config, PersistentKernel<Config>, p);
}

// Each block has tiles of one column of them: there are as many blocks as whole rows of tiles have.
template <class Config, class T>
cudaError_t LaunchStationary(const GemmTile& tile, const GemmArguments<T>& a, const Device& device,
                             cudaStream_t stream) {
  if (!Config::Epilogue::Supports(a.activation)) return cudaErrorInvalidValue;
  if (tile.splits > 1 || tile.cluster_m > 1 || tile.cluster_n > 1) return cudaErrorInvalidConfiguration;
  Parameters p = {};
  cudaError_t error = Prepare<Config>(tile, a, &p);
  if (error != cudaSuccess) return error;
  if (p.n % kPermutedRows != 0 || p.k_stages > Config::kStages) return cudaErrorInvalidConfiguration;
  error = MakeOperandMaps<Config>(a, &p);
  if (error != cudaSuccess) return error;
  LaunchConfig config = MakeLaunchConfig<Config>(tile, device, stream);
  error = ResidentClusters(config, BERTFUSE_KERNEL_HANDLE(StationaryKernel<Config>), &p.clusters);
  if (error != cudaSuccess) return error;
  p.clusters = std::min(p.clusters / p.tiles_n * p.tiles_n, p.tiles);
  if (p.clusters == 0) return cudaErrorInvalidConfiguration;
  config.grid = dim3(static_cast<unsigned>(p.clusters));
  return Launch(config, StationaryKernel<Config>, p);
}

template <class Config, class T>
cudaError_t LaunchStationaryNorm(const GemmTile& tile, const GemmArguments<T>& a, const Device& device,
                                 cudaStream_t stream) {
  const bool suits = tile.splits == 1 && tile.cluster_m == 1 && tile.cluster_n <= Config::kMostBlocks;
  if (!suits) return cudaErrorInvalidConfiguration;
  Parameters p = {};
  cudaError_t error = Prepare<Config>(tile, a, &p);
  if (error != cudaSuccess) return error;
  if (p.n != tile.cluster_n * Config::kN || p.k_stages > Config::kStages) return cudaErrorInvalidConfiguration;
  p.x_multicasters = 0, p.x_slice_rows = Config::kM;  // each block loads all of x's rows
  error = MakeOperandMaps<Config>(a, &p);
  if (error != cudaSuccess) return error;
  const void* const residual = Config::kRestoresResidual ? static_cast<const void*>(a.quantized_residual.rows)
                                                         : static_cast<const void*>(a.residual);
  p.has_residual = residual != nullptr, p.quantized_residual = a.quantized_residual;
  if (p.has_residual) {
    const MatrixView view = {residual, a.m, a.n, a.n, 64, Config::kBoxColumns};
    error = MakeTensorMap(view, kTensorMapType<typename Config::Residual>, &p.residual_map);
    if (error != cudaSuccess) return error;
  }
  LaunchConfig config = MakeLaunchConfig<Config>(tile, device, stream);
  error = ResidentClusters(config, BERTFUSE_KERNEL_HANDLE(StationaryNormKernel<Config>), &p.clusters);
  if (error != cudaSuccess) return error;
  p.clusters = std::min(p.clusters, p.tiles);
  if (p.clusters == 0) return cudaErrorInvalidConfiguration;
  config.grid = dim3(static_cast<unsigned>(p.clusters) * config.cluster);
  return Launch(config, StationaryNormKernel<Config>, p);
}

template <class Config, class T>
cudaError_t LaunchOneTile(const GemmTile& tile, const GemmArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (tile.splits > 1) return cudaErrorInvalidConfiguration;
  if (Config::Epilogue::kNormalizes && a.n != static_cast<int64_t>(Config::kN) * tile.cluster_n) {
    return cudaErrorInvalidConfiguration;
  }
  if (!Config::Epilogue::Supports(a.activation)) return cudaErrorInvalidValue;
  Parameters p = {};
  cudaError_t error = Prepare<Config>(tile, a, &p);
  if (error != cudaSuccess) return error;
  error = MakeOperandMaps<Config>(a, &p);
  if (error != cudaSuccess) return error;
  constexpr auto kType = kTensorMapType<typename Config::Y>;
  error = MakeTensorMap({a.y, a.m, p.n, p.n, 64, Config::kBoxColumns}, kType, &p.y_map);
  if (error != cudaSuccess) return error;
  if (Config::Epilogue::kAddsResidual && p.has_residual) {
    error = MakeTensorMap({a.residual, a.m, a.n, a.n, 64, Config::kBoxColumns}, kType, &p.residual_map);
    if (error != cudaSuccess) return error;
  }
  LaunchConfig config = MakeLaunchConfig<Config>(tile, device, stream);
  p.clusters = ClustersOfOneTile<Config>(a, p);
  config.grid = dim3(static_cast<unsigned>(p.clusters) * config.cluster);
  TrimRing<Config>(&p, &config);
  return Launch(config, OneTileKernel<Config>, p);
}

template <class Config, class T>
cudaError_t LaunchSplitK(const GemmTile& tile, const GemmArguments<T>& a, const Device& device, cudaStream_t stream) {
  Parameters p = {};
  cudaError_t error = Prepare<Config>(tile, a, &p);
  if (error != cudaSuccess) return error;
  Split(tile, 0, &p);
  error = MakeOperandMaps<Config>(a, &p);
  if (error != cudaSuccess) return error;
  LaunchConfig config = MakeLaunchConfig<Config>(tile, device, stream);
  p.clusters = ClustersOfOneTile<Config>(a, p);
  config.grid = dim3(static_cast<unsigned>(p.clusters) * config.cluster);
  TrimRing<Config>(&p, &config);
  return Launch(config, SplitKKernel<Config>, p);
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_LAUNCH_CUH_
