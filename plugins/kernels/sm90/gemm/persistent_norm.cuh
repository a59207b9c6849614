// The persistent kernel whose rows end in LayerNorm, for any k: y = LayerNorm(x weight^T + bias + residual), and of
// 8-bit operands what the next product reads of it, rows in 8 bits with a scale for each. Two warpgroups share a tile
// of 128 rows, 64 each, and every stage of its weight; the blocks of a cluster have the tile's other columns. A tile's
// end is hidden by nothing but the next one's first stages on their way: with k = 3,072 it is a quarter of the time
// (counted), and no other launch reads what the product has written.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_PERSISTENT_NORM_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_PERSISTENT_NORM_CUH_

#include "kernels/sm90/gemm/cluster_norm.cuh"

namespace bertfuse::kernels::gemm_sm90 {

template <class Elements, int kN, int kStages, bool kPacked>
struct PersistentNormConfig : TileConfig<Elements, 128, kN, kStages, 1, kPacked> {
  using Base = TileConfig<Elements, 128, kN, kStages, 1, kPacked>;
  using Epilogue = gemm_sm90::Epilogue<>;
  static_assert(sizeof(typename Elements::Y) == 2);
  static constexpr int kTeam = 2, kWarpgroups = 2, kConsumersPerStage = 2, kRowBlocks = 1;
  static constexpr int kThreads = 128 * kWarpgroups + 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <= (kWarpgroups + 1) * kLaunchRegisters);
  static constexpr bool kPersistent = true, kPermutesWeight = true, kSharesVectors = true;
  static constexpr int kEpilogueStages = 0;
  static constexpr int kAtOnce = Base::kAccumulators;
  static constexpr int kMostBlocks = MostStationaryNorm(kN) / kN;
  using NormLayout = ClusterNormLayout<Elements, kN, 4 * kWarpgroups, kMostBlocks, Base::kVectorOffset>;
  static constexpr size_t kBarrierOffset = NormLayout::kEnd;
  static constexpr int kNormBarriers = 2 * kStages;
  static constexpr size_t kBarriers = kNormBarriers + NormLayout::kBarriers;
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kSharedBytes = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  static_assert(kSharedBytes <= 227 << 10);
  static size_t SharedBytes(int) { return kSharedBytes; }
};

template <class Config>
class PersistentNormConsumer : PersistentConsumer<Config> {
  using Base = PersistentConsumer<Config>;
  using Loop = Mainloop<Config>;
  using Accumulators = typename Loop::Accumulators;
  using State = typename Loop::State;
  using Base::p_, Base::pipeline_;

 public:
  using typename Base::Producer;
  __device__ __forceinline__ explicit PersistentNormConsumer(const Pipeline<Config>& pipeline)
      : Base(pipeline), norm_(pipeline) {}

  // Called by one thread.
  __device__ __forceinline__ void InitBarriers() const { norm_.InitBarriers(); }

  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    const auto& scheduler = pipeline_.scheduler();
    const Loop mainloop(pipeline_);
    if (group == 0) norm_.StoreColumns(scheduler.TileAt(0).column);
    SyncNamed<128 * Config::kWarpgroups>(kVectorBarrier);
#pragma unroll 1
    for (int number = 0; scheduler.HasTile(number); ++number) {
      Tile tile = scheduler.TileAt(number);
      tile.row += group * 64;
      const ResidualRows<Config> residual(p_, tile);
      Accumulators accumulators;
#pragma unroll
      for (auto& sum : accumulators[0]) sum = 0;
      RowScales<Config> row_scales;
      Loop::Fence(accumulators);
      const int last_stage = mainloop.Issue(accumulators, state, tile.stages(), group, true,
                                            [&] { row_scales.Load(p_, tile.row + FirstRow()); });
      mainloop.Finish(accumulators, last_stage);
      const auto in_registers = [&](int i, int half) { return residual.eight[half][i]; };
      norm_.Finish(accumulators[0], tile, row_scales, number, in_registers, [] {});
    }
  }

 private:
  static constexpr int kVectorBarrier = 1;

  ClusterNorm<Config> norm_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    PersistentNormKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, PersistentNormConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_PERSISTENT_NORM_CUH_
