// The producer of the Hopper matrix products: one thread that fills the pipeline by TMA.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_PRODUCER_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_PRODUCER_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/quantized_row.cuh"
#include "kernels/sm90/gemm/pipeline.cuh"
#include "kernels/sm90/ptx/tma.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config>
class Producer {
  using State = typename Pipeline<Config>::State;

 public:
  __device__ __forceinline__ explicit Producer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), block_(pipeline.block()), pipeline_(pipeline) {}

  // `state`: position in the pipeline's ring, at the start and on return.
  __device__ __forceinline__ void Run(State& state) const {
    PrefetchTensorMap(&p_.x_map);
    PrefetchTensorMap(&p_.weight_map);
    if constexpr (Config::Epilogue::kQuantizes) PrefetchScale(p_.quantized);
    const Slice x = SliceOfX(), weight = SliceOfWeight();
    if (!p_.weights_are_constant) WaitForDependencies();
    // A constant weight does not depend on the preceding kernel: fill the pipeline with it while that one ends.
    Tile tile = pipeline_.scheduler().TileAt(0);
    int ahead = pipeline_.scheduler().round() == 0 ? min(tile.stages(), RingStages<Config>(p_)) : 0;
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) {
      ArriveExpectTx(pipeline_.Full(i), Config::kStageBytes);
      LoadWeight(tile, tile.first_stage + i, i, weight);
    }
    WaitForDependencies();
    if (p_.dependents_begin_late) LaunchDependents();
    for (int number = 0;;) {
#pragma unroll 1
      for (int k_stage = tile.first_stage; k_stage < tile.last_stage; ++k_stage, state.Advance()) {
        if (--ahead < 0) {
          WaitBarrier(pipeline_.Empty(state.stage), state.parity ^ 1);
          ArriveExpectTx(pipeline_.Full(state.stage), Config::kStageBytes);
          LoadWeight(tile, k_stage, state.stage, weight);
        }
        LoadX(tile, k_stage, state.stage, x);
      }
      if constexpr (Config::kEpilogueStages > 0) ProvideStaging(tile, state);
      if (!pipeline_.scheduler().HasTile(++number)) break;
      tile = pipeline_.scheduler().TileAt(number);
    }
    // A block must not exit before the cluster's other blocks have arrived at its barriers.
    if (p_.cluster_m * p_.cluster_n == 1) return;
    State last = state;
#pragma unroll 1
    for (int i = Config::kEpilogueStages; i < RingStages<Config>(p_); ++i, last.Advance()) {
      WaitBarrier(pipeline_.Empty(last.stage), last.parity ^ 1);
    }
  }

 private:
  // The slice of a multicast tile that this block loads: rows from `first` on, for the blocks of the cluster whose bit
  // is set in `blocks`.
  struct Slice {
    int first;
    uint32_t blocks;
  };

  __device__ __forceinline__ Slice SliceOfX() const {
    return {block_.rank_n * p_.x_slice_rows, ((1u << p_.cluster_n) - 1) << (block_.rank_m * p_.cluster_n)};
  }

  __device__ __forceinline__ Slice SliceOfWeight() const {
    return {block_.rank_m * p_.weight_slice_rows, p_.column_mask << block_.rank_n};
  }

  __device__ __forceinline__ void LoadX(const Tile& tile, int k_stage, int stage, const Slice& slice) const {
    if (p_.cluster_n == 1) {
      TmaLoad2d(pipeline_.Stage(stage), &p_.x_map, k_stage * Config::kStageK, tile.row, pipeline_.Full(stage));
    } else if (pipeline_.MulticastsX()) {
      TmaLoad2dMulticast(pipeline_.Stage(stage) + slice.first * Config::kRowBytes, &p_.x_map, k_stage * Config::kStageK,
                         tile.row + slice.first, pipeline_.Full(stage), slice.blocks);
    }
  }

  __device__ __forceinline__ void LoadWeight(const Tile& tile, int k_stage, int stage, const Slice& slice) const {
#pragma unroll
    for (int factor = 0; factor < Config::kFactors; ++factor) LoadFactor(factor, tile, k_stage, stage, slice);
  }

  // In the last tile the first factor's rows go on into the second's: those columns are not stored.
  __device__ __forceinline__ void LoadFactor(int factor, const Tile& tile, int k_stage, int stage,
                                             const Slice& slice) const {
    char* to = pipeline_.Stage(stage) + Config::kXBytes + (factor * Config::kOutN + slice.first) * Config::kRowBytes;
    const int row = factor * p_.n + tile.column + slice.first, k = k_stage * Config::kStageK;
    if constexpr (Config::kPermutesWeight) {
      const int group = row / kPermutedRows;
      if (p_.cluster_m == 1) {
        TmaLoadPermutedRows(to, &p_.weight_map, k, group, pipeline_.Full(stage));
      } else {
        TmaLoadPermutedRowsMulticast(to, &p_.weight_map, k, group, pipeline_.Full(stage), slice.blocks);
      }
    } else if (p_.cluster_m == 1) {
      TmaLoad2d(to, &p_.weight_map, k, row, pipeline_.Full(stage));
    } else {
      TmaLoad2dMulticast(to, &p_.weight_map, k, row, pipeline_.Full(stage), slice.blocks);
    }
  }

  // Hands the warpgroups stages to stage their rows of the tile in, filled with the residual if there is one.
  __device__ __forceinline__ void ProvideStaging(const Tile& tile, State& state) const {
#pragma unroll 1
    for (int i = 0; i < Config::kEpilogueStages; ++i, state.Advance()) {
      WaitBarrier(pipeline_.Empty(state.stage), state.parity ^ 1);
      if (!Config::Epilogue::kAddsResidual || !p_.has_residual) {
        Arrive(pipeline_.Full(state.stage));
        continue;
      }
      ArriveExpectTx(pipeline_.Full(state.stage), WarpgroupsIn(i) * Config::kStagingBytes);
#pragma unroll 1
      for (int j = 0; j < WarpgroupsIn(i) * Config::kBoxes; ++j) {
        const int group = i * Config::kWarpgroupsPerStage + j / Config::kBoxes;
        TmaLoad2d(pipeline_.Stage(state.stage) + j * Config::kBoxBytes, &p_.residual_map,
                  tile.column + j % Config::kBoxes * Config::kBoxColumns, tile.row + group * 64,
                  pipeline_.Full(state.stage));
      }
    }
  }

  // How many warpgroups' rows are staged in the i-th of those stages.
  __device__ __forceinline__ static int WarpgroupsIn(int i) {
    return min(Config::kWarpgroupsPerStage, Config::kWarpgroups - i * Config::kWarpgroupsPerStage);
  }

  const Parameters& p_;
  const BlockPosition& block_;
  const Pipeline<Config>& pipeline_;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_PRODUCER_CUH_
