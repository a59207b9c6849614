// The main loop of the Hopper matrix products: a consumer warpgroup multiplies the pipeline's stages (wgmma).
#ifndef BERTFUSE_KERNELS_SM90_GEMM_MAINLOOP_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_MAINLOOP_CUH_

#include "kernels/sm90/gemm/pipeline.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config>
class Mainloop {
 public:
  using State = typename Pipeline<Config>::State;
  using Accumulators = typename Config::Accumulator[Config::kRowBlocks][Config::kAccumulators];

  __device__ __forceinline__ explicit Mainloop(const Pipeline<Config>& pipeline)
      : pipeline_(pipeline), remote_empty_(pipeline.RemoteEmpty(threadIdx.x % 128)) {}

  // Issues the products of the next `stages` stages, with x's rows from 64 * first_row_block on; with `accumulate`
  // added to what the accumulators hold. Calls under_first() while the first product is in flight. Returns the last
  // stage, for Finish().
  template <class UnderFirst>
  __device__ __forceinline__ int Issue(Accumulators& accumulators, State& state, int stages, int first_row_block,
                                       bool accumulate, UnderFirst&& under_first) const {
    if constexpr (Config::kPromotes) return IssuePromoting(accumulators, state, stages, first_row_block, under_first);
    return IssueBlocks<Config::kRowBlocks>(accumulators, state, stages, first_row_block, accumulate, under_first);
  }

  // The same for `row_blocks` blocks of 64 rows only, always added to what the accumulators hold. What is beyond the
  // last row of x costs neither time nor power then. Each number of blocks has a loop of its own, so that the one of
  // full tiles has no condition in it.
  template <int kBlocks = Config::kRowBlocks, class UnderFirst>
  __device__ __forceinline__ int IssueSome(Accumulators& accumulators, State& state, int stages, int first_row_block,
                                           int row_blocks, UnderFirst&& under_first) const {
    if constexpr (kBlocks > 1) {
      if (row_blocks < kBlocks) {
        return IssueSome<kBlocks - 1>(accumulators, state, stages, first_row_block, row_blocks, under_first);
      }
    }
    return IssueBlocks<kBlocks>(accumulators, state, stages, first_row_block, true, under_first);
  }

  // Waits until the accumulators are complete.
  __device__ __forceinline__ void Finish(Accumulators& accumulators, int last_stage) const {
    WaitWgmma<0>();
    Fence(accumulators);
    Release(last_stage);
  }

  // Tells the producers that this warpgroup is done with a stage.
  __device__ __forceinline__ void Release(int stage) const {
    if (remote_empty_ != 0) ArriveRemote(remote_empty_ + stage * sizeof(uint64_t));
  }

  __device__ __forceinline__ static void Fence(Accumulators& accumulators) {
    FenceBlocks<Config::kRowBlocks>(accumulators);
  }

 private:
  template <int kBlocks>
  __device__ __forceinline__ static void FenceBlocks(Accumulators& accumulators) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) FenceRegisters(accumulators[b]);
  }

  // `accumulate`: whether the accumulators already hold something.
  template <int kBlocks, class UnderFirst>
  __device__ __forceinline__ int IssueBlocks(Accumulators& accumulators, State& state, int stages, int first_row_block,
                                             bool accumulate, UnderFirst&& under_first) const {
    int previous = -1;
    // Not unrolled, nor are the producer's loops: unrolled four times, a third of the 12 iterations of k = 768 would be
    // code that runs for the first time (docs/kernels.md, "Short kernels").
#pragma unroll 1
    for (int i = 0; i < stages; ++i, state.Advance()) {
      WaitBarrier(pipeline_.Full(state.stage), state.parity);
      Multiply<kBlocks>(accumulators, state.stage, first_row_block, accumulate || i > 0);
      if (i == 0) under_first();
      WaitWgmma<1>();
      if (previous >= 0) Release(previous);
      previous = state.stage;
    }
    return previous;
  }

  // The tensor cores sum up one stage at a time. While this warpgroup adds, another one multiplies.
  template <class UnderFirst>
  __device__ __forceinline__ int IssuePromoting(Accumulators& sums, State& state, int stages, int first_row_block,
                                                UnderFirst&& under_first) const {
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (auto& sum : block) sum = 0;
    }
    int previous = -1;
#pragma unroll 1
    for (int i = 0; i < stages; ++i, state.Advance()) {
      WaitBarrier(pipeline_.Full(state.stage), state.parity);
      Accumulators of_stage;
      Multiply<Config::kRowBlocks>(of_stage, state.stage, first_row_block, false);
      if (i == 0) under_first();
      WaitWgmma<0>();
      Fence(of_stage);
      previous = state.stage;
      if (i + 1 < stages) Release(previous);
#pragma unroll
      for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
        for (int e = 0; e < Config::kAccumulators; ++e) sums[b][e] += of_stage[b][e];
      }
    }
    return previous;
  }

  template <int kBlocks>
  __device__ __forceinline__ void Multiply(Accumulators& accumulators, int stage, int first_row_block,
                                           bool accumulate) const {
    const char* const x = pipeline_.Stage(stage);
    MultiplyBy<kBlocks>(accumulators, x + first_row_block * kBlockBytes, x + Config::kXBytes, accumulate);
  }

 public:
  // One stage of k: of x's rows, and of the weight.
  template <int kBlocks>
  __device__ __forceinline__ void MultiplyBy(Accumulators& accumulators, const char* x_stage, const char* weight_stage,
                                             bool accumulate) const {
    constexpr int kStepK = 32 / sizeof(typename Config::X);
    uint64_t x = TileDescriptor(x_stage);
    uint64_t weight = TileDescriptor(weight_stage);
    FenceBlocks<kBlocks>(accumulators);
    BeginWgmma();
#pragma unroll
    for (int step = 0; step < Config::kStageK / kStepK; ++step, x += 2, weight += 2) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        WgmmaSs<typename Config::X, Config::kN>(accumulators[b], x + b * (kBlockBytes >> 4), weight,
                                                step > 0 || accumulate);
      }
    }
    CommitWgmma();
    FenceBlocks<kBlocks>(accumulators);
  }

 private:
  static constexpr int kBlockBytes = 64 * Config::kRowBytes;

  const Pipeline<Config>& pipeline_;
  uint32_t remote_empty_;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_MAINLOOP_CUH_
