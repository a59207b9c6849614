// The split-K kernel, for few rows: float32 partial sums [splits, m, n], which another kernel adds up.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_SPLIT_K_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_SPLIT_K_CUH_

#include "kernels/sm90/gemm/block.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config>
class SplitKConsumer {
  using Loop = Mainloop<Config>;

 public:
  __device__ __forceinline__ explicit SplitKConsumer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline) {}

  __device__ __forceinline__ void InitBarriers() const {}

  // Warpgroup `group` takes 64 rows of the block's tile. `state`: as for the producer.
  __device__ __forceinline__ void Run(int group, typename Loop::State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    const Loop mainloop(pipeline_);
    const Tile tile = pipeline_.scheduler().TileAt(0);
    typename Loop::Accumulators accumulators;
    mainloop.Finish(accumulators, mainloop.Issue(accumulators, state, tile.stages(), group, [] {}));
    WaitForDependencies();
    Store(accumulators[0], tile, group);
  }

 private:
  __device__ __forceinline__ void Store(float (&accumulators)[Config::kAccumulators], const Tile& tile,
                                        int group) const {
    const int row = tile.row + group * 64 + FirstRow();
    float* out = p_.float_partials + (static_cast<int64_t>(tile.split) * p_.m + row) * p_.n;
#pragma unroll
    for (int j = 0; j < Config::kN / 8; ++j) {
      const int column = tile.column + 8 * j + FirstColumn();
      if (column >= p_.n) continue;
      if (row < p_.m)
        *reinterpret_cast<float2*>(out + column) = make_float2(accumulators[4 * j], accumulators[4 * j + 1]);
      if (row + 8 < p_.m) {
        *reinterpret_cast<float2*>(out + 8 * static_cast<int64_t>(p_.n) + column) =
            make_float2(accumulators[4 * j + 2], accumulators[4 * j + 3]);
      }
    }
  }

  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    SplitKKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, SplitKConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_SPLIT_K_CUH_
