// The ring of shared-memory stages between producer and consumers, and its mbarriers. Blocks of a cluster multicast
// what they share, so a stage is empty once the consumers of every block that it is multicast to have released it.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_PIPELINE_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_PIPELINE_CUH_

#include "kernels/sm90/gemm/config.cuh"
#include "kernels/sm90/gemm/tile_scheduler.cuh"
#include "kernels/sm90/pipeline_state.cuh"
#include "kernels/sm90/ptx/barrier.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config>
__device__ __forceinline__ int RingStages(const Parameters& p) {
  return Config::kTrimsRing ? p.ring_stages : Config::kStages;
}

template <class Config>
class Pipeline {
 public:
  using State = std::conditional_t<Config::kTrimsRing, TrimmedPipelineState, PipelineState<Config::kStages>>;

  __device__ __forceinline__ Pipeline(const Parameters& parameters, char* shared)
      : shared_(shared),
        behind_ring_(shared - (Config::kStages - RingStages<Config>(parameters)) * Config::kStageBytes),
        scheduler_(parameters, behind_ring_ + Config::kCountsOffset),
        barriers_(reinterpret_cast<uint64_t*>(behind_ring_ + Config::kBarrierOffset)) {}

  // Called by one warp, whose lanes take turns: mbarrier.init has its address in a uniform register.
  __device__ __forceinline__ void InitBarriers() const {
    // This block, the cluster row that it multicasts a slice of x to, and the cluster column, for weight.
    const int readers = (MulticastsX() ? parameters().cluster_n : 1) + parameters().cluster_m - 1;
    const int stage = threadIdx.x % 32;
    static_assert(Config::kStages <= 32);
    if (stage < Config::kStages) {
      InitBarrier(Full(stage), 1);
      InitBarrier(Empty(stage), Config::kConsumersPerStage * readers);
    }
  }

  // Where the ring begins.
  __device__ __forceinline__ State FirstState() const {
    State state;
    if constexpr (Config::kTrimsRing) state.stages = parameters().ring_stages;
    return state;
  }
  __device__ __forceinline__ TileScheduler<Config>& scheduler() { return scheduler_; }
  __device__ __forceinline__ const TileScheduler<Config>& scheduler() const { return scheduler_; }
  __device__ __forceinline__ const Parameters& parameters() const { return scheduler_.parameters(); }
  __device__ __forceinline__ const BlockPosition& block() const { return scheduler_.block(); }
  __device__ __forceinline__ char* shared() const { return shared_; }
  // Config's offsets of what lies behind the ring are counted from here.
  __device__ __forceinline__ char* behind_ring() const { return behind_ring_; }
  __device__ __forceinline__ uint64_t* Full(int stage) const { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* Empty(int stage) const { return barriers_ + Config::kStages + stage; }
  __device__ __forceinline__ char* Stage(int stage) const { return shared_ + stage * Config::kStageBytes; }
  __device__ __forceinline__ bool MulticastsX() const { return block().rank_n < parameters().x_multicasters; }

  // The address of the first stage's empty barrier in block `number`; 0 if that block does not write to this one's
  // stages. The blocks that may do so are numbered: first the cluster row, then the column. Computed before the main
  // loop, in which a tile of 64 x 64 leaves 128 cycles per stage.
  __device__ __forceinline__ uint32_t RemoteEmpty(int number) const {
    if (number < parameters().cluster_n) {
      const bool writes = number == block().rank_n || number < parameters().x_multicasters;
      return writes ? DsmemAddress(Empty(0), block().rank_m * parameters().cluster_n + number) : 0;
    }
    const int row = number - parameters().cluster_n;
    return row < parameters().cluster_m && row != block().rank_m
               ? DsmemAddress(Empty(0), row * parameters().cluster_n + block().rank_n)
               : 0;
  }

 private:
  char* shared_;
  char* behind_ring_;
  TileScheduler<Config> scheduler_;
  uint64_t* barriers_;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_PIPELINE_CUH_
