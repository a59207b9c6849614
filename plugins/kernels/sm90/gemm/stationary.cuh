// The weight-stationary kernel, for many rows and short k: y = Epilogue(x weight^T) of the same columns for all of a
// block's tiles. Their weight stays in shared memory, so that TMA writes nothing there but x, and wgmma has its
// bandwidth for itself. Three warpgroups take tiles of 64 rows in turn: two run their epilogues while one multiplies.
// It is compiled for results in 8 bits, whose epilogue takes twice as long as the products.
//
// What that took on an H200, 16384 x 3072 x 768 in fp8 with GELU: with a warp of producers as the other kernels have,
// 77.3 us. A tile's products took 4,070 cycles of the 2,304 that the tensor cores need: the scalar instructions of a
// stage's loop compete with two warps' epilogues on the same scheduler, and the tensor cores ran dry. Unrolled, two
// stages ahead of what is waited for, and each stage released by another warp, 69.6; with int8 77.7. The producer's
// polling slowed the consumers on its scheduler by a quarter: asleep between looks at a barrier, 69.2 and 72.0. With
// places of x that are a tile's, not a ring's, descriptors are constants: 35 instructions a stage, not 65.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_CUH_

#include "kernels/sm90/gemm/persistent.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// What both weight-stationary kernels have in common: each stage of k has a place for x, and behind these one for the
// weight.
template <class Elements, int kN, int kStages, bool kPacked, int kWarpgroups_>
struct StationaryTile : TileConfig<Elements, 64, kN, kStages, 1, kPacked> {
  using Base = TileConfig<Elements, 64, kN, kStages, 1, kPacked>;
  static_assert(kIsQuantized<Elements>);
  static constexpr int kTeam = 1, kWarpgroups = kWarpgroups_, kConsumersPerStage = 1, kRowBlocks = 1;
  static constexpr int kThreads = 128 * kWarpgroups + 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = kWarpgroups == 3 ? 160 : 112;
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <= (kWarpgroups + 1) * kLaunchRegisters);
  static constexpr bool kPersistent = true, kPermutesWeight = true, kSharesVectors = true;
  static constexpr int kEpilogueStages = 0;
  static constexpr int kAtOnce = Base::kAccumulators;  // 3% faster than 32 at once: there are registers for it
  static constexpr int kStageBytes = Base::kXBytes, kWeightStageBytes = kN * Base::kRowBytes;
  static constexpr size_t kWeightOffset = static_cast<size_t>(kStages) * kStageBytes;
  static constexpr size_t kWeightEnd = kWeightOffset + static_cast<size_t>(kStages) * kWeightStageBytes;
  static constexpr size_t kPipelineBarriers = 3 * kStages;  // the last ones: a stage of the weight is there
};

template <class Elements, int kN, int kStages, bool kPacked, class Epilogue_>
struct StationaryConfig : StationaryTile<Elements, kN, kStages, kPacked, 3> {
  using Epilogue = Epilogue_;
  using Base = StationaryTile<Elements, kN, kStages, kPacked, 3>;
  static_assert(Epilogue::kQuantizes);
  static constexpr bool kPrefetchesX = true;
  static constexpr size_t kVectorOffset = Base::kWeightEnd;
  static constexpr size_t kVectorFloats = static_cast<size_t>(Epilogue::Vectors::kCount) * kN;
  static constexpr size_t kBarrierOffset = kVectorOffset + Base::kWarpgroups * kVectorFloats * sizeof(float);
  static constexpr size_t kCountsOffset = kBarrierOffset + (Base::kPipelineBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kSharedBytes = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  static_assert(kSharedBytes <= 227 << 10);
  static size_t SharedBytes(int) { return kSharedBytes; }
};

// The weight of a block's columns in shared memory, by stages of k.
template <class Config>
class StationaryWeight {
 public:
  __device__ __forceinline__ explicit StationaryWeight(const Pipeline<Config>& pipeline) : pipeline_(pipeline) {}
  __device__ __forceinline__ char* Stage(int stage) const {
    return pipeline_.shared() + Config::kWeightOffset + stage * Config::kWeightStageBytes;
  }
  __device__ __forceinline__ uint64_t* Full(int stage) const { return pipeline_.Empty(Config::kStages) + stage; }

  // Called by one thread.
  __device__ __forceinline__ void Load(int column) const {
    const Parameters& p = pipeline_.parameters();
#pragma unroll 1
    for (int i = 0; i < p.k_stages; ++i) {
      ArriveExpectTx(Full(i), Config::kWeightStageBytes);
      TmaLoadPermutedRows(Stage(i), &p.weight_map, i * Config::kStageK, column / kPermutedRows, Full(i));
    }
  }

 private:
  const Pipeline<Config>& pipeline_;
};

// One thread that loads the weight once, and x.
template <class Config>
class StationaryProducer {
 public:
  __device__ __forceinline__ explicit StationaryProducer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline), weight_(pipeline) {}

  __device__ __forceinline__ void Run(typename Pipeline<Config>::State&) const {
    PrefetchTensorMap(&p_.x_map);
    PrefetchTensorMap(&p_.weight_map);
    if constexpr (Config::Epilogue::kQuantizes) PrefetchScale(p_.quantized);
    if (!p_.weights_are_constant) WaitForDependencies();
    Tile tile = pipeline_.scheduler().TileAt(0);
    weight_.Load(tile.column);
    WaitForDependencies();
    if (p_.dependents_begin_late) LaunchDependents();
    for (int number = 0;; ++number) {
      const bool has_next = pipeline_.scheduler().HasTile(number + 1);
      const Tile next = has_next ? pipeline_.scheduler().TileAt(number + 1) : tile;
      if (Config::kPrefetchesX && has_next) Prefetch(next);
#pragma unroll 1
      for (int i = 0; i < p_.k_stages; ++i) {
        WaitBarrierAsleep<kSleep>(pipeline_.Empty(i), (number & 1) ^ 1);
        ArriveExpectTx(pipeline_.Full(i), Config::kStageBytes);
        TmaLoad2d(pipeline_.Stage(i), &p_.x_map, i * Config::kStageK, tile.row, pipeline_.Full(i));
      }
      if (!has_next) return;
      tile = next;
    }
  }

 protected:
  const Parameters& p_;
  const Pipeline<Config>& pipeline_;

 private:
  static constexpr int kSleep = 20;  // ns; 200 and 600 are as fast

  // Into the L2 cache: of the blocks that have this row of tiles, each fetches every tiles_n-th stage.
  __device__ __forceinline__ void Prefetch(const Tile& tile) const {
    for (int i = tile.column / Config::kN; i < p_.k_stages; i += p_.tiles_n) {
      TmaPrefetch2d(&p_.x_map, i * Config::kStageK, tile.row);
    }
  }

  StationaryWeight<Config> weight_;
};

template <class Config>
class StationaryConsumer : PersistentConsumer<Config> {
  using Base = PersistentConsumer<Config>;
  using Loop = Mainloop<Config>;
  using Accumulators = typename Loop::Accumulators;
  using State = typename Loop::State;

 public:
  using Producer = StationaryProducer<Config>;
  __device__ __forceinline__ explicit StationaryConsumer(const Pipeline<Config>& pipeline)
      : Base(pipeline), weight_(pipeline) {}

  // Called by one thread.
  __device__ __forceinline__ void InitBarriers() const {
    for (int stage = 0; stage < Config::kStages; ++stage) InitBarrier(weight_.Full(stage), 1);
  }

  __device__ __forceinline__ void Run(int group, State&) const {
    if (!pipeline_.scheduler().HasTile(group)) return;
    if (!p_.weights_are_constant) WaitForDependencies();
    ResultScale<Config> result_scale;
    result_scale.Load(p_);
    VectorsOfTile<Config>(p_, pipeline_.scheduler().TileAt(0)).Store(Base::Vectors(group), result_scale.Factor());
    SyncNamed<128>(Base::kVectorBarrier + group);
    const auto store = [&](int, const Tile& tile, Accumulators& sums, const RowScales<Config>& row_scales) {
      Base::Store(sums, tile, Base::Vectors(group), row_scales, result_scale);
    };
    ForEachTile(group, store);
  }

 protected:
  using Base::p_, Base::pipeline_;

  // Multiplies warpgroup `group`'s tiles, and calls finish(number, tile, sums, row_scales).
  template <class Finish>
  __device__ __forceinline__ void ForEachTile(int group, Finish&& finish) const {
    const auto& scheduler = pipeline_.scheduler();
    const Loop mainloop(pipeline_);
#pragma unroll 1
    for (int number = group; scheduler.HasTile(number); number += Config::kWarpgroups) {
      const Tile tile = scheduler.TileAt(number);
      Accumulators accumulators;
      if constexpr (kStartsFromZero) {
#pragma unroll
        for (auto& sum : accumulators[0]) sum = 0;
      }
      RowScales<Config> row_scales;
      Loop::Fence(accumulators);
      // One warpgroup multiplies at a time, in the order of tiles: a barrier's parity only tells a tile from the one
      // before.
      if (number > 0) SyncNamed<256>(kOrderBarrier + group);
#pragma unroll
      for (int i = 0; i < Config::kStages; ++i) {
        if (i >= p_.k_stages) break;
        if (number < Config::kWarpgroups) WaitBarrier(weight_.Full(i), 0);
        WaitBarrier(pipeline_.Full(i), number & 1);
        mainloop.template MultiplyBy<1>(accumulators, pipeline_.Stage(i), weight_.Stage(i), kStartsFromZero || i > 0);
        if (i == 0) row_scales.Load(p_, tile.row + FirstRow());
        WaitWgmma<2>();
        if (i >= 2) Release(i - 2);
      }
      if (scheduler.HasTile(number + 1)) ArriveNamed<256>(kOrderBarrier + (group + 1) % Config::kWarpgroups);
      WaitWgmma<0>();
      Loop::Fence(accumulators);
      if (p_.k_stages > 1) Release(p_.k_stages - 2);
      Release(p_.k_stages - 1);
      if constexpr (std::is_same_v<typename Config::Accumulator, int32_t>) {
        if (p_.x_compensation != nullptr) Base::TakeOffCompensation(accumulators, tile);
      }
      finish(number, tile, accumulators, row_scales);
    }
  }

 private:
  // Else the first product does not read its accumulators (2% faster, for GELU); with fewer registers to spare ptxas
  // spills hundreds of bytes then.
  static constexpr bool kStartsFromZero = Config::kConsumerRegisters - Config::kAccumulators < 96;
  static constexpr int kOrderBarrier = 2 + Config::kWarpgroups;  // one for each warpgroup, which waits at its own

  // The warpgroup's warps take turns.
  __device__ __forceinline__ void Release(int stage) const {
    if (static_cast<int>(threadIdx.x % 128) == stage % 4 * 32) Arrive(pipeline_.Empty(stage));
  }

  StationaryWeight<Config> weight_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) StationaryKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, StationaryConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_CUH_
