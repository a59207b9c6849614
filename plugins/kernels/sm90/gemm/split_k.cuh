// The split-K kernel, for few rows: float32 partial sums [splits, m, n], which another kernel adds up.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_SPLIT_K_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_SPLIT_K_CUH_

#include "kernels/sm90/gemm/block.cuh"
#include "kernels/sm90/gemm/epilogue.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// What the steps of an epilogue are given about a warpgroup's 64 rows.
template <class Config>
class SplitKRows {
 public:
  __device__ __forceinline__ SplitKRows(const Parameters& p, const Tile& tile, int group, const float* vectors,
                                        const RowScales<Config>& row_scales)
      : p_(p),
        row_(tile.row + group * 64 + FirstRow()),
        column_(tile.column + FirstColumn()),
        vectors_(vectors),
        row_scales_(row_scales) {}
  __device__ __forceinline__ const Parameters& parameters() const { return p_; }
  __device__ __forceinline__ int Row(int half) const { return row_ + 8 * half; }
  __device__ __forceinline__ float RowScale(int half) const { return row_scales_.At(0, half); }
  __device__ __forceinline__ int Column(int j) const { return column_ + 8 * j; }
  template <class Step>
  __device__ __forceinline__ ColumnPair<Step::kVectors> Vectors(int j) const {
    return VectorRegisters<Config>::template Read<Step>(vectors_, 8 * j + FirstColumn());
  }

 private:
  const Parameters& p_;
  int row_, column_;
  const float* vectors_;
  const RowScales<Config>& row_scales_;
};

template <class Config>
class SplitKConsumer {
  using Loop = Mainloop<Config>;

 public:
  using Producer = gemm_sm90::Producer<Config>;
  __device__ __forceinline__ explicit SplitKConsumer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline) {}

  __device__ __forceinline__ void InitBarriers() const {}

  // Warpgroup `group` takes 64 rows of the block's tile. `state`: as for the producer.
  __device__ __forceinline__ void Run(int group, typename Loop::State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    const Loop mainloop(pipeline_);
    const Tile tile = pipeline_.scheduler().TileAt(0);
    typename Loop::Accumulators accumulators;
    const VectorRegisters<Config> registers(p_, tile.column);
    float* const vectors = reinterpret_cast<float*>(pipeline_.behind_ring() + Config::kVectorOffset);
    RowScales<Config> row_scales;
    const bool starts = StartFromCompensation<Config>(accumulators, p_, tile.column, tile.split);
    row_scales.Load(p_, tile.row + group * 64 + FirstRow());
    const int last_stage =
        mainloop.Issue(accumulators, state, tile.stages(), group, starts, [&] { registers.Store(vectors, 1.0f); });
    mainloop.Finish(accumulators, last_stage);
    if constexpr (Config::Epilogue::Vectors::kCount > 0) SyncNamed<128 * Config::kWarpgroups>(kVectors);
    WaitForDependencies();
    WithFloats(accumulators[0], [&](auto& sums) {
      const SplitKRows<Config> rows(p_, tile, group, vectors, row_scales);
      Config::Epilogue::Apply(sums, rows);
      Store(sums, tile.split, rows);
    });
  }

 private:
  static constexpr int kVectors = 8;  // the named barrier behind which they are in shared memory

  __device__ __forceinline__ void Store(const float (&sums)[Config::kAccumulators], int split,
                                        const SplitKRows<Config>& rows) const {
    const int row = rows.Row(0);
    float* out = p_.float_partials + (static_cast<int64_t>(split) * p_.m + row) * p_.n;
#pragma unroll
    for (int j = 0; j < Config::kN / 8; ++j) {
      const int column = rows.Column(j);
      if (column >= p_.n) continue;
      if (row < p_.m) *reinterpret_cast<float2*>(out + column) = make_float2(sums[4 * j], sums[4 * j + 1]);
      if (row + 8 < p_.m) {
        *reinterpret_cast<float2*>(out + 8 * static_cast<int64_t>(p_.n) + column) =
            make_float2(sums[4 * j + 2], sums[4 * j + 3]);
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
