// The weight-stationary kernel whose rows end in LayerNorm and in 8 bits with a scale for each row, too: for hidden
// sizes of which a cluster's blocks hold the weight. y = LayerNorm(x weight^T + bias + residual), and what the next
// product reads of it. Three warpgroups take tiles of 64 rows in turn, so that two exchange rows' statistics and
// magnitudes with the cluster's other blocks, normalise and store while one multiplies. It moves three fifths of the
// bytes that product and norm move: 16384 x 768 x 768 in fp8 take an H200 33.3 us in place of 41.6.
//
// A tile takes about 5,000 cycles, its products 2,900. Shared memory is busy in two thirds of them: wgmma reads 1,540
// cycles' worth, the epilogue's vectors and residual are 1,080 (by ncu), and what TMA writes is 580.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_

#include "kernels/sm90/gemm/cluster_norm.cuh"
#include "kernels/sm90/gemm/stationary.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// kResidualInRegisters: with two warpgroups for a multiprocessor's registers a thread has 64 for what it will add,
// loaded before its products; with three the residual is loaded by TMA to shared memory.
template <class Elements, int kN, int kStages, int kWeightPlaces_, int kMostStages_, bool kPacked>
struct StationaryNormConfig : StationaryTile<Elements, kN, kStages, kWeightPlaces_, kMostStages_, kPacked> {
  using Epilogue = gemm_sm90::Epilogue<>;
  using Base = StationaryTile<Elements, kN, kStages, kWeightPlaces_, kMostStages_, kPacked>;
  static constexpr bool kResidualInRegisters = Base::kWarpgroups == 2, kPrefetchesX = kResidualInRegisters;
  static constexpr bool kHasSecondProducer = !kResidualInRegisters || Base::kStreams;
  static_assert(kResidualInRegisters || !Base::kStreams);

  // The residual's rows in boxes of 32 columns, swizzled over their 64 bytes.
  static constexpr int kBoxColumns = 32, kBoxes = kN / kBoxColumns, kBoxBytes = 64 * kBoxColumns * 2;
  static constexpr size_t kResidualOffset = Base::kWeightEnd;
  static constexpr size_t kResidualBytes = kResidualInRegisters ? 0 : static_cast<size_t>(kBoxes) * kBoxBytes;
  static constexpr int kMostBlocks = MostStationaryNorm(kN) / kN;
  using NormLayout =
      ClusterNormLayout<Elements, kN, 4 * Base::kWarpgroups, kMostBlocks, kResidualOffset + kResidualBytes>;
  static constexpr size_t kBarrierOffset = NormLayout::kEnd;
  // Behind the ring's and the weight's: that the residual's place is free, and that each warpgroup's is there.
  static constexpr int kResidualBarriers = 2 * kStages + kWeightPlaces_ + 1;
  static constexpr int kNormBarriers = kResidualBarriers + 1 + Base::kWarpgroups;
  static constexpr size_t kBarriers = kNormBarriers + NormLayout::kBarriers;
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kSharedBytes = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  static_assert(kSharedBytes <= 227 << 10);
  static size_t SharedBytes(int) { return kSharedBytes; }
};

// Of the residual in shared memory.
template <class Config>
class ResidualBarriers {
 public:
  __device__ __forceinline__ explicit ResidualBarriers(const Pipeline<Config>& pipeline) : pipeline_(pipeline) {}
  __device__ __forceinline__ uint64_t* Empty() const { return pipeline_.Full(Config::kResidualBarriers); }
  // For each warpgroup one, though there is one place: a parity tells a tile from the one before, and a warpgroup may
  // come to wait two tiles early.
  __device__ __forceinline__ uint64_t* Full(int group) const { return Empty() + 1 + group; }
  // Called by one thread.
  __device__ __forceinline__ void Init() const {
    InitBarrier(Empty(), 4);  // a warpgroup's warps
    for (int group = 0; group < Config::kWarpgroups; ++group) InitBarrier(Full(group), 1);
  }

 private:
  const Pipeline<Config>& pipeline_;
};

// Beside the thread that loads the weight and x, one that loads each tile's residual, or what is streamed of the
// weight.
template <class Config>
class StationaryNormProducer : public StationaryProducer<Config> {
  using Base = StationaryProducer<Config>;
  using Base::p_, Base::pipeline_;

 public:
  __device__ __forceinline__ explicit StationaryNormProducer(const Pipeline<Config>& pipeline)
      : Base(pipeline), barriers_(pipeline) {}

  __device__ __forceinline__ void RunSecond() const {
    if constexpr (Config::kResidualInRegisters) {
      Base::RunSecond();
    } else if (p_.has_residual) {
      LoadResiduals();
    }
  }

 private:
  static constexpr int kResidualSleep = 100;  // ns

  __device__ __forceinline__ void LoadResiduals() const {
    PrefetchTensorMap(&p_.residual_map);
    WaitForDependencies();
    if (pipeline_.scheduler().HasTile(1)) Prefetch(pipeline_.scheduler().TileAt(1));
    for (int number = 0; pipeline_.scheduler().HasTile(number); ++number) {
      LoadResidual(pipeline_.scheduler().TileAt(number), number);
      if (pipeline_.scheduler().HasTile(number + 2)) Prefetch(pipeline_.scheduler().TileAt(number + 2));
    }
  }

  // Into L2: there is but one place for residuals, and x's ring is shorter than a tile.
  __device__ __forceinline__ void Prefetch(const Tile& tile) const {
#pragma unroll 1
    for (int box = 0; box < Config::kBoxes; ++box) {
      TmaPrefetch2d(&p_.residual_map, tile.column + box * Config::kBoxColumns, tile.row);
    }
#pragma unroll 1
    for (int i = pipeline_.block().rank_n; i < p_.k_stages; i += p_.cluster_n) {
      TmaPrefetch2d(&p_.x_map, i * Config::kStageK, tile.row);
    }
  }

  __device__ __forceinline__ void LoadResidual(const Tile& tile, int number) const {
    WaitBarrierAsleep<kResidualSleep>(barriers_.Empty(), (number & 1) ^ 1);
    uint64_t* const full = barriers_.Full(number % Config::kWarpgroups);
    ArriveExpectTx(full, Config::kBoxes * Config::kBoxBytes);
#pragma unroll 1
    for (int box = 0; box < Config::kBoxes; ++box) {
      TmaLoad2d(pipeline_.shared() + Config::kResidualOffset + box * Config::kBoxBytes, &p_.residual_map,
                tile.column + box * Config::kBoxColumns, tile.row, full);
    }
  }

  ResidualBarriers<Config> barriers_;
};

// The residual of a thread's rows is in shared memory.
struct NoRows {
  __device__ __forceinline__ NoRows(const Parameters&, const Tile&) {}
};

template <class Config>
class StationaryNormConsumer : StationaryConsumer<Config> {
  using Base = StationaryConsumer<Config>;
  using T = typename Config::Y;
  using State = typename Mainloop<Config>::State;
  using Residual = std::conditional_t<Config::kResidualInRegisters, ResidualRows<Config>, NoRows>;
  using Base::p_, Base::pipeline_;

 public:
  using Producer = StationaryNormProducer<Config>;
  __device__ __forceinline__ explicit StationaryNormConsumer(const Pipeline<Config>& pipeline)
      : Base(pipeline), norm_(pipeline), barriers_(pipeline) {}

  // Called by one thread.
  __device__ __forceinline__ void InitBarriers() const {
    Base::InitBarriers();
    norm_.InitBarriers();
    barriers_.Init();
  }

  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    if (group == 0) norm_.StoreColumns(pipeline_.scheduler().TileAt(0).column);
    SyncNamed<128 * Config::kWarpgroups>(Base::kVectorBarrier);
    Base::ForEachTile(
        group, state, [&](const Tile& tile) { return Residual(p_, tile); },
        [&](int number, const Tile& tile, auto& sums, const RowScales<Config>& row_scales, const Residual& residual) {
          Finish(sums[0], group, number, tile, row_scales, residual);
        });
  }

 private:
  template <class Products>
  __device__ __forceinline__ void Finish(const Products& products, int group, int number, const Tile& tile,
                                         const RowScales<Config>& row_scales, const Residual& residual) const {
    const int turn = number / Config::kWarpgroups;
    if constexpr (Config::kResidualInRegisters) {
      const auto in_registers = [&](int i, int half) { return residual.eight[half][i]; };
      norm_.Finish(products, tile, row_scales, turn, in_registers, [] {});
    } else {
      if (p_.has_residual) WaitBarrier(barriers_.Full(group), turn & 1);
      const auto in_shared_memory = [&](int i, int half) { return p_.has_residual ? Load(i, half) : uint4{}; };
      norm_.Finish(products, tile, row_scales, turn, in_shared_memory, [&] {
        __syncwarp();
        if (p_.has_residual && threadIdx.x % 32 == 0) Arrive(barriers_.Empty());
      });
    }
  }

  __device__ __forceinline__ uint4 Load(int i, int half) const {
    const uint32_t at = SharedAddress(pipeline_.shared() + Config::kResidualOffset) +
                        Swizzled<Config::kBoxColumns * sizeof(T)>(FirstRow(), threadIdx.x % 4 * 16);
    uint32_t pairs[4];
    LoadShared(pairs, at + i * Config::kBoxBytes + half * 8 * Config::kBoxColumns * sizeof(T));  // swizzled alike
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }

  ClusterNorm<Config> norm_;
  ResidualBarriers<Config> barriers_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    StationaryNormKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, StationaryNormConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_
