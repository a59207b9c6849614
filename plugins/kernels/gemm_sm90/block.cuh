// What the blocks of all three Hopper matrix products do: set up, and take their roles. Consumer is the kernel's own.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_BLOCK_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_BLOCK_CUH_

#include "kernels/gemm_sm90/mainloop.cuh"
#include "kernels/gemm_sm90/producer.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config, class Consumer>
__device__ __forceinline__ void SetUp(const Parameters& p, const Pipeline<Config>& pipeline) {
  const Consumer consumer(pipeline);
  if (threadIdx.x == 0) {
    pipeline.InitBarriers();
    consumer.InitBarriers();
    FenceBarrierInit();
  }
  LaunchDependents();
  if (p.cluster_m * p.cluster_n > 1) SyncCluster();
}

template <class Config, class Consumer>
__device__ __forceinline__ void TakeRoles(const Parameters& p, const Pipeline<Config>& pipeline) {
  const Consumer consumer(pipeline);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  __syncthreads();
  if (warp < 4 * Config::kWarpgroups) {
    if constexpr (Config::kPersistent) AllocateRegisters<240>();
    consumer.Run(warp / 4);
  } else {
    if constexpr (Config::kPersistent) DeallocateRegisters<24>();
    if (warp == 4 * Config::kWarpgroups && threadIdx.x % 32 == 0) Producer<Config>(pipeline).Run();
    __syncwarp();
  }
  // A block's shared memory must outlive what is read there by TMA: statistics on their way to the cluster's other
  // blocks, which wait for them. For what TMA writes there somebody in the block has waited.
  if (p.cluster_m * p.cluster_n > 1) SyncCluster();
}

template <class Config, class Consumer>
__device__ __forceinline__ void RunBlock(const Parameters& p, char* shared) {
  Pipeline<Config> pipeline(p, shared);
  if constexpr (!Config::kPacked) {
    SetUp<Config, Consumer>(p, pipeline);
    TakeRoles<Config, Consumer>(p, pipeline);
  } else {
    const int row_count = LoadRowCount(p.row_count);  // on its way while the block is set up
    SetUp<Config, Consumer>(p, pipeline);
    // All of a cluster's blocks leave together.
    if (!pipeline.CountTiles(row_count)) return LeaveEarly(blockIdx.x == 0);
    TakeRoles<Config, Consumer>(p, pipeline);
    // Rows that the grid was not made for. Every round is as the first one: that is slower than going on with the
    // pipeline would be, and rare.
    while (!Config::kPersistent && pipeline.NextRound()) {
      __syncthreads();
      if (threadIdx.x == 0) pipeline.InvalidateBarriers();
      SetUp<Config, Consumer>(p, pipeline);
      TakeRoles<Config, Consumer>(p, pipeline);
    }
  }
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_GEMM_SM90_BLOCK_CUH_
