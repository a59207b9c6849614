// The one-tile kernel, for few rows: y = Epilogue(x weight^T). Results leave through shared memory and TMA.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_ONE_TILE_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_ONE_TILE_CUH_

#include "kernels/gemm_sm90/block.cuh"
#include "kernels/gemm_sm90/layer_norm.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// What the steps of an epilogue are given about a warpgroup's 64 rows.
template <class Config_>
class TileRows {
 public:
  using Config = Config_;
  using Staged = StagedRows<typename Config::Y, Config::kBoxColumns>;
  __device__ __forceinline__ TileRows(const Pipeline<Config>& pipeline, const float* vectors, const Staged& staged,
                                      int group, int first_barrier)
      : pipeline_(pipeline), vectors_(vectors), staged_(staged), group_(group), first_barrier_(first_barrier) {}
  __device__ __forceinline__ const Parameters& parameters() const { return pipeline_.parameters(); }
  __device__ __forceinline__ const Pipeline<Config>& pipeline() const { return pipeline_; }
  __device__ __forceinline__ const float* vectors() const { return vectors_; }  // as VectorRegisters stores them
  __device__ __forceinline__ const Staged& staged() const { return staged_; }
  __device__ __forceinline__ int group() const { return group_; }                  // which of the block's warpgroups
  __device__ __forceinline__ int first_barrier() const { return first_barrier_; }  // named; one per warpgroup

 private:
  const Pipeline<Config>& pipeline_;
  const float* vectors_;
  const Staged& staged_;
  int group_, first_barrier_;
};

template <class Config>
class OneTileConsumer {
  using T = typename Config::Y;
  using Loop = Mainloop<Config>;
  using State = typename Loop::State;
  using Staged = StagedRows<T, Config::kBoxColumns>;

 public:
  __device__ __forceinline__ explicit OneTileConsumer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline), block_(pipeline.block()), shared_(pipeline.shared()) {}

  __device__ __forceinline__ void InitBarriers() const { Config::Epilogue::InitBarriers(pipeline_); }

  // Warpgroup `group` takes 64 rows of the block's tile. `state`: as for the producer.
  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    const Loop mainloop(pipeline_);
    const Tile tile = pipeline_.TileAt(0);
    const int stages = tile.stages();
    typename Loop::Accumulators accumulators;
    const VectorRegisters<Config> vectors(p_, tile.column);
    const int last_stage = mainloop.Issue(accumulators, state, stages, group, [&] { vectors.Store(Vectors()); });
    mainloop.Finish(accumulators, last_stage);
    Finish(accumulators[0], tile, group, state);
    if constexpr (Config::kPacked) {
      // The next round may use the epilogue's stages: it begins when TMA has read what it stores from them.
#pragma unroll 1
      for (int i = 0; i < Config::kEpilogueStages; ++i, state.Advance()) mainloop.Release(state.stage);
    }
  }

 private:
  // Named barriers: one per warpgroup from kWarpgroup on, and one for all of them.
  enum NamedBarrier : int { kWarpgroup = 1, kVectors = 8 };

  __device__ __forceinline__ void Finish(float (&values)[Config::kAccumulators], const Tile& tile, int group,
                                         State state) const {
    state.Advance(group / Config::kWarpgroupsPerStage);
    char* staging = pipeline_.Stage(state.stage) + group % Config::kWarpgroupsPerStage * Config::kStagingBytes;
    WaitBarrier(pipeline_.Full(state.stage), state.parity);
    const Staged staged(staging);
    WaitForVectors();
    const auto finish =
        Config::Epilogue::Apply(values, TileRows<Config>(pipeline_, Vectors(), staged, group, kWarpgroup));
#pragma unroll
    for (int i = 0; i < Config::kAccumulators / 8; ++i) {
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

  // Waits until all warpgroups have written their elements of the vectors to shared memory.
  __device__ __forceinline__ static void WaitForVectors() {
    asm volatile("bar.sync %0, %1;" ::"n"(static_cast<int>(kVectors)), "n"(128 * Config::kWarpgroups) : "memory");
  }

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
    return reinterpret_cast<float*>(shared_ + Config::kVectorOffset);
  }

  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
  const BlockPosition& block_;
  char* shared_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    OneTileKernel(const __grid_constant__ Parameters parameters) {
  extern __shared__ __align__(1024) char shared[];  // tiles are swizzled by address bits
  RunBlock<Config, OneTileConsumer<Config>>(parameters, shared);
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_GEMM_SM90_ONE_TILE_CUH_
