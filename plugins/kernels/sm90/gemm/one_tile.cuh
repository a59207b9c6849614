// The one-tile kernel, for few rows: y = Epilogue(x weight^T). Results leave through shared memory and TMA, in 8 bits
// from registers.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_ONE_TILE_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_ONE_TILE_CUH_

#include "kernels/sm90/gemm/block.cuh"
#include "kernels/sm90/gemm/layer_norm.cuh"
#include "kernels/sm90/gemm/store_quantized.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// What the steps of an epilogue are given about a warpgroup's 64 rows.
template <class Config_>
class TileRows {
 public:
  using Config = Config_;
  static constexpr bool kAdjacentPairs = false;
  using Staged = StagedRows<typename Config::Y, Config::kBoxColumns>;
  __device__ __forceinline__ TileRows(const Pipeline<Config>& pipeline, const Tile& tile, const float* vectors,
                                      const RowScales<Config>& row_scales, const Staged& staged, int group,
                                      int first_barrier, float zero_share = 0.0f)
      : pipeline_(pipeline),
        tile_(tile),
        vectors_(vectors),
        row_scales_(row_scales),
        staged_(staged),
        group_(group),
        first_barrier_(first_barrier),
        zero_share_(zero_share) {}
  __device__ __forceinline__ const Parameters& parameters() const { return pipeline_.parameters(); }
  __device__ __forceinline__ const Pipeline<Config>& pipeline() const { return pipeline_; }
  __device__ __forceinline__ const Staged& staged() const { return staged_; }
  __device__ __forceinline__ int group() const { return group_; }                  // which of the block's warpgroups
  __device__ __forceinline__ int first_barrier() const { return first_barrier_; }  // named; one per warpgroup

  __device__ __forceinline__ float zero_share() const { return zero_share_; }

  __device__ __forceinline__ int Row(int half) const { return tile_.row + group_ * 64 + FirstRow() + 8 * half; }
  __device__ __forceinline__ float RowScale(int half) const { return row_scales_.At(0, half); }
  __device__ __forceinline__ int Column(int j) const { return tile_.column + ColumnInTile(j); }
  template <class Step>
  __device__ __forceinline__ ColumnPair<Step::kVectors> Vectors(int j) const {
    return VectorRegisters<Config>::template Read<Step>(vectors_, ColumnInTile(j));
  }

 private:
  __device__ __forceinline__ static int ColumnInTile(int j) { return 8 * j + FirstColumn(); }

  const Pipeline<Config>& pipeline_;
  const Tile& tile_;
  const float* vectors_;
  const RowScales<Config>& row_scales_;
  const Staged& staged_;
  int group_, first_barrier_;
  float zero_share_;
};

template <class Config>
class OneTileConsumer {
  using T = typename Config::Y;
  using Loop = Mainloop<Config>;
  using State = typename Loop::State;
  using Staged = StagedRows<T, Config::kBoxColumns>;

 public:
  using Producer = gemm_sm90::Producer<Config>;
  __device__ __forceinline__ explicit OneTileConsumer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline), block_(pipeline.block()), shared_(pipeline.shared()) {}

  __device__ __forceinline__ void InitBarriers() const { Config::Epilogue::InitBarriers(pipeline_); }

  // Warpgroup `group` takes 64 rows of the block's tile. `state`: as for the producer.
  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    const Loop mainloop(pipeline_);
    // The stages of the epilogue before are free only now: at the end of that round, a block of the cluster that waits
    // for fewer blocks than the others could have released them while others had yet to release the same stages of the
    // main loop, and its release would have counted as theirs.
    if (pipeline_.scheduler().round() > 0) {
#pragma unroll 1
      for (int i = 0; i < Config::kEpilogueStages; ++i, state.Advance()) mainloop.Release(state.stage);
    }
    const Tile tile = pipeline_.scheduler().TileAt(0);
    const int stages = tile.stages();
    typename Loop::Accumulators accumulators;
    const VectorRegisters<Config> vectors(p_, tile.column);
    RowScales<Config> row_scales;
    ResultScale<Config> result_scale;
    result_scale.Load(p_);
    const bool starts = StartFromCompensation<Config>(accumulators, p_, tile.column, tile.split);
    row_scales.Load(p_, tile.row + group * 64 + FirstRow());
    const int last_stage = mainloop.Issue(accumulators, state, stages, group, starts,
                                          [&] { vectors.Store(Vectors(), result_scale.Factor()); });
    mainloop.Finish(accumulators, last_stage);
    WithFloats(accumulators[0], [&](auto& values) {
      if constexpr (Config::Epilogue::kQuantizes) {
        FinishQuantized(values, row_scales, result_scale, tile, group);
      } else {
        Finish(values, row_scales, tile, group, state);
      }
    });
  }

 private:
  // Named barriers: one per warpgroup from kWarpgroup on, and one for all of them.
  enum NamedBarrier : int { kWarpgroup = 1, kVectors = 8 };

  __device__ __forceinline__ void Finish(float (&values)[Config::kAccumulators], const RowScales<Config>& row_scales,
                                         const Tile& tile, int group, State state) const {
    state.Advance(group / Config::kWarpgroupsPerStage);
    char* staging = pipeline_.Stage(state.stage) + group % Config::kWarpgroupsPerStage * Config::kStagingBytes;
    WaitBarrier(pipeline_.Full(state.stage), state.parity);
    const Staged staged(staging);
    WaitForVectors();
    const TileRows<Config> rows(pipeline_, tile, Vectors(), row_scales, staged, group, kWarpgroup);
    const auto finish = Config::Epilogue::Apply(values, rows);
#pragma unroll
    for (int i = 0; i < Config::kOutAccumulators / 8; ++i) {
      finish(i, &values[8 * i]);
      staged.Store(i, &values[8 * i]);
    }
    FenceAsyncProxy();
    SyncWarpgroup(kWarpgroup + group);
    if (threadIdx.x % 128 == 0) {
      WaitForDependencies();
      StoreStaging(tile, group, staging);
      TmaWaitStoresRead<0>();
    }
  }

  __device__ __forceinline__ void FinishQuantized(float (&values)[Config::kAccumulators],
                                                  const RowScales<Config>& row_scales,
                                                  const ResultScale<Config>& result_scale, const Tile& tile,
                                                  int group) const {
    WaitForVectors();
    const Staged nothing_staged(shared_);
    const TileRows<Config> rows(pipeline_, tile, Vectors(), row_scales, nothing_staged, group, kWarpgroup,
                                result_scale.ZeroShare());
    Config::Epilogue::Apply(values, rows);
    WaitForDependencies();  // an earlier kernel may still be reading what this overwrites
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.Row(half);
      StoreQuantizedRow<typename Config::X>(values, half, row, tile.column, p_);
      result_scale.Store(row, tile.column, p_);
    }
  }

  // Waits until all warpgroups have written their elements of the vectors to shared memory.
  __device__ __forceinline__ static void WaitForVectors() { SyncNamed<128 * Config::kWarpgroups>(kVectors); }

  // Called by one thread.
  __device__ __forceinline__ void StoreStaging(const Tile& tile, int group, const char* staging) const {
#pragma unroll 1
    for (int i = 0; i < Config::kBoxes; ++i) {
      TmaStore2d(&p_.y_map, staging + i * Config::kBoxBytes, tile.column + i * Config::kBoxColumns,
                 tile.row + group * 64);
    }
    TmaCommitStores();
  }

  __device__ __forceinline__ float* Vectors() const {
    return reinterpret_cast<float*>(pipeline_.behind_ring() + Config::kVectorOffset);
  }

  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
  const BlockPosition& block_;
  char* shared_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    OneTileKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, OneTileConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_ONE_TILE_CUH_
