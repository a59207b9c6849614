// What a block of each of the Hopper matrix products does: set up barriers, then split into producer and
// consumers (warp specialization). Each kernel has a Consumer of its own, which names its Producer.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_BLOCK_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_BLOCK_CUH_

#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/gemm/mainloop.cuh"
#include "kernels/sm90/gemm/producer.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config, class Consumer>
__device__ __forceinline__ void SetUp(const Parameters& p, const Pipeline<Config>& pipeline) {
  const Consumer consumer(pipeline);
  if (threadIdx.x < 32) {
    pipeline.InitBarriers();
    if (threadIdx.x == 0) consumer.InitBarriers();
    FenceBarrierInit();
  }
  if (!p.dependents_begin_late) LaunchDependents();
  if (p.cluster_m * p.cluster_n > 1) SyncCluster();
}

template <class Config, class Consumer>
__device__ __forceinline__ void RunRoles(const Parameters& p, const Pipeline<Config>& pipeline,
                                         typename Pipeline<Config>::State& state) {
  const Consumer consumer(pipeline);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  __syncthreads();
  if (warp < 4 * Config::kWarpgroups) {
    if constexpr (Config::kPersistent) AllocateRegisters<Config::kConsumerRegisters>();
    consumer.Run(warp / 4, state);
  } else {
    if constexpr (Config::kPersistent) DeallocateRegisters<Config::kProducerRegisters>();
    if (warp == 4 * Config::kWarpgroups && threadIdx.x % 32 == 0) typename Consumer::Producer(pipeline).Run(state);
    if constexpr (Config::kHasResidualWarp) {
      const bool loads = warp == 4 * Config::kWarpgroups + 1 && threadIdx.x % 32 == 0;
      if (loads) typename Consumer::Producer(pipeline).RunResidual();
    }
    __syncwarp();
  }
  // Shared memory must outlive the bulk copies that read it: one-tile kernels' statistics on their way to the cluster's
  // other blocks, which wait for them. (Copies that write it have been waited for within the block.)
  if (p.cluster_m * p.cluster_n > 1) SyncCluster();
}

template <class Config, class Consumer>
__device__ __forceinline__ void RunBlock(const Parameters& p, char* shared) {
  Pipeline<Config> pipeline(p, shared);
  typename Pipeline<Config>::State state = pipeline.FirstState();
  if constexpr (!Config::kPacked) {
    SetUp<Config, Consumer>(p, pipeline);
    RunRoles<Config, Consumer>(p, pipeline, state);
  } else {
    const int row_count = LoadRowCount(p.row_count);  // in flight while the block sets up
    SetUp<Config, Consumer>(p, pipeline);
    // All of a cluster's blocks leave together.
    if (!pipeline.scheduler().CountTiles(row_count)) return LeaveEarly(blockIdx.x == 0);
    RunRoles<Config, Consumer>(p, pipeline, state);
    // More rounds, for rows beyond those that the grid was sized for, which is rare. A round begins when the whole
    // block, and its cluster, are done with the one before. (A single loop over all rounds takes up to 60 more
    // registers, or spills: the compiler keeps what it computes for every round.)
    while (!Config::kPersistent && pipeline.scheduler().NextRound()) RunRoles<Config, Consumer>(p, pipeline, state);
  }
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_BLOCK_CUH_
