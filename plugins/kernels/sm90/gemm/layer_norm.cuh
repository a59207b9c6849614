// A norm as the last step of an epilogue. The blocks of a cluster row together hold whole rows, a slice each, and
// exchange their slices' statistics through distributed shared memory (DSMEM).
#ifndef BERTFUSE_KERNELS_SM90_GEMM_LAYER_NORM_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_LAYER_NORM_CUH_

#include "kernels/norm.cuh"
#include "kernels/sm90/gemm/epilogue.cuh"
#include "kernels/sm90/gemm/pipeline.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Config, class Norm>
class LayerNormRows {
  using Accumulators = float[Config::kAccumulators];

 public:
  // `warpgroup_barrier` + group is a named barrier of that warpgroup.
  __device__ __forceinline__ LayerNormRows(const Pipeline<Config>& pipeline, int warpgroup_barrier)
      : p_(pipeline.parameters()), pipeline_(pipeline), warpgroup_barrier_(warpgroup_barrier) {}

  __device__ __forceinline__ void InitBarriers() const {
    for (int group = 0; group < Config::kWarpgroups; ++group) InitBarrier(StatisticsFull(group), 1);
  }

  // Finds the rows' statistics; what it returns normalises eight values at a time. `Step`: that of gamma and beta.
  template <class Step, class Tile>
  __device__ __forceinline__ auto Run(Accumulators& values, const Tile& tile) const {
    const int group = tile.group();
    // Mean and sum of squared deviations of this thread's two rows, in two passes over registers.
    float mean[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) mean[i / 2 % 2] += values[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) mean[i] = Norm::Center(QuadSum(mean[i]), Config::kN);
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) {
      const float centered = values[i] - mean[i / 2 % 2];
      squares[i / 2 % 2] = fmaf(centered, centered, squares[i / 2 % 2]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) squares[i] = QuadSum(squares[i]);
    if (p_.cluster_n > 1) {
      ExchangeStatistics(mean, squares, group);
#pragma unroll
      for (int i = 0; i < 2; ++i) MergeStatistics(Statistics(group, 0) + FirstRow() + 8 * i, &mean[i], &squares[i]);
    }
    const float count = static_cast<float>(p_.cluster_n) * Config::kN;
    Finish<Step, Tile> finish{{}, {}, tile};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      finish.scale[i] = Norm::Scale(squares[i], count, p_.epsilon);
      finish.shift[i] = -mean[i] * finish.scale[i];
    }
    return finish;
  }

 private:
  template <class Step, class Tile>
  struct Finish {
    float scale[2], shift[2];  // of two rows: (x - mean) / deviation is x * scale + shift
    Tile tile;
    __device__ __forceinline__ void operator()(int i, float* v) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = j % 2;
        const auto [gamma, beta] = tile.template Vectors<Step>(2 * i + j / 2).vector;
        v[2 * j] = Norm::Apply(fmaf(v[2 * j], scale[row], shift[row]), gamma.x, beta.x);
        v[2 * j + 1] = Norm::Apply(fmaf(v[2 * j + 1], scale[row], shift[row]), gamma.y, beta.y);
      }
    }
  };

  __device__ __forceinline__ uint64_t* StatisticsFull(int group) const {
    return reinterpret_cast<uint64_t*>(pipeline_.behind_ring() + Config::kBarrierOffset) + 2 * Config::kStages + group;
  }
  // Mean and sum of squared deviations of each row's slice: [warpgroup][source block][row].
  __device__ __forceinline__ float2* Statistics(int group, int source) const {
    return reinterpret_cast<float2*>(pipeline_.behind_ring() + Config::kStatisticsOffset) +
           (group * p_.cluster_n + source) * 64;
  }

  // Over the four threads of a row.
  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Sends the statistics of this block's slice to every block of the cluster row; returns when theirs have arrived.
  // Only for rows of several blocks (see CopyToDsmem).
  __device__ __forceinline__ void ExchangeStatistics(const float (&mean)[2], const float (&squares)[2],
                                                     int group) const {
    const int thread = threadIdx.x % 128;
    if (thread == 0) ArriveExpectTx(StatisticsFull(group), (p_.cluster_n - 1) * 64 * sizeof(float2));
    float2* slot = Statistics(group, pipeline_.block().rank_n);
    if (threadIdx.x % 4 == 0) {
      slot[FirstRow()] = make_float2(mean[0], squares[0]);
      slot[FirstRow() + 8] = make_float2(mean[1], squares[1]);
    }
    FenceAsyncProxy();
    SyncWarpgroup(warpgroup_barrier_ + group);
    if (thread < p_.cluster_n && thread != pipeline_.block().rank_n) {
      const uint32_t rank = pipeline_.block().rank_m * p_.cluster_n + thread;
      CopyToDsmem(DsmemAddress(slot, rank), slot, 64 * sizeof(float2), DsmemAddress(StatisticsFull(group), rank));
    }
    WaitBarrier(StatisticsFull(group), pipeline_.scheduler().round() & 1);
  }

  // Chan's parallel form of Welford's update, over the row's equally long slices.
  __device__ __forceinline__ void MergeStatistics(const float2* slices, float* mean, float* squares) const {
    *mean = *squares = 0.0f;
#pragma unroll 4
    for (int i = 0; i < p_.cluster_n; ++i) *mean += slices[i * 64].x;
    *mean /= static_cast<float>(p_.cluster_n);
#pragma unroll 4
    for (int i = 0; i < p_.cluster_n; ++i) {
      const float2 slice = slices[i * 64];
      *squares += slice.y + Config::kN * (slice.x - *mean) * (slice.x - *mean);
    }
  }

  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
  int warpgroup_barrier_;
};

template <class Norm>
struct Normalize : EpilogueStep<ColumnVector::kGamma, ColumnVector::kBeta> {
  static constexpr bool kNormalizes = true;
  template <class Config>
  __device__ __forceinline__ static void InitBarriers(const Pipeline<Config>& pipeline) {
    LayerNormRows<Config, Norm>(pipeline, 0).InitBarriers();
  }
  template <class Tile, int kCount>
  __device__ __forceinline__ static auto Apply(float (&v)[kCount], const Tile& tile) {
    using Rows = LayerNormRows<typename Tile::Config, Norm>;
    return Rows(tile.pipeline(), tile.first_barrier()).template Run<Normalize>(v, tile);
  }
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_LAYER_NORM_CUH_
