// The weight-stationary kernel, for many rows and short k: y = Epilogue(x weight^T) of the same columns for all of a
// block's tiles. Their weight stays in shared memory, so that TMA writes nothing there but x, and wgmma has its
// bandwidth for itself. Three warpgroups take tiles of 64 rows in turn: two run their epilogues while one multiplies.
// It is compiled for results in 8 bits, whose epilogue takes twice as long as the products.
//
// What that took on an H200, 16384 x 3072 x 768 in fp8 with GELU: with a warp of producers as the other kernels have,
// 77.3 us. A tile's products took 4,070 cycles of the 2,304 that the tensor cores need: the scalar instructions of a
// stage's loop compete with two warps' epilogues on the same scheduler, and the tensor cores ran dry. Unrolled, two
// stages ahead of what is waited for, and each stage released by another warp, 69.6; with int8 77.7. The producer's
// polling slowed the consumers on its scheduler by a quarter: asleep between looks at a barrier, 69.2 and 72.0.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_CUH_

#include "kernels/sm90/gemm/persistent.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// The stages of k, by bits, whose weight is streamed through one of the places, where there are more stages than
// places: evenly among them.
constexpr uint32_t StreamedStages(int stages, int places) {
  const int streamed = stages <= places ? 0 : stages - (places - 1);
  uint32_t found = 0;
  for (int i = 0; i < stages; ++i) {
    if (i * streamed % stages < streamed) found |= 1u << i;
  }
  return found;
}
// A consumer gives a stage's place back two stages later, once it has waited for that stage's own weight: were this one
// streamed, too, it would wait for itself.
constexpr bool CanStream(int most_stages, int places) {
  for (int stages = 1; stages <= most_stages; ++stages) {
    const uint32_t streamed = StreamedStages(stages, places);
    if ((streamed & (streamed >> 1 | streamed >> 2)) != 0) return false;
  }
  return true;
}

// What both weight-stationary kernels have in common. The ring has stages of x alone; the weight lies behind it, as
// many stages of k as there are places, of kMostStages.
template <class Elements, int kN, int kStages, int kWeightPlaces_, int kMostStages_, bool kPacked>
struct StationaryTile : TileConfig<Elements, 64, kN, kStages, 1, kPacked> {
  using Base = TileConfig<Elements, 64, kN, kStages, 1, kPacked>;
  static_assert(kIsQuantized<Elements>);
  static constexpr int kWeightPlaces = kWeightPlaces_, kMostStages = kMostStages_;
  static constexpr bool kStreams = kMostStages > kWeightPlaces;
  static_assert(CanStream(kMostStages, kWeightPlaces));
  static_assert(kStages >= 3, "two stages are multiplied while a third arrives");
  static constexpr int kTeam = 1, kWarpgroups = kN <= 192 ? 3 : 2, kConsumersPerStage = 1, kRowBlocks = 1;
  static constexpr int kThreads = 128 * kWarpgroups + 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = kWarpgroups == 3 ? 160 : 240;
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <= (kWarpgroups + 1) * kLaunchRegisters);
  static constexpr bool kPersistent = true, kPermutesWeight = true, kSharesVectors = true;
  static constexpr int kEpilogueStages = 0;
  static constexpr bool kPrefetchesX = false;  // the next tile's into L2: where the ring is much shorter than a tile
  static constexpr int kAtOnce = Base::kAccumulators;  // 3% faster than 32 at once: there are registers for it
  static constexpr int kStageBytes = Base::kXBytes, kWeightStageBytes = kN * Base::kRowBytes;
  static constexpr size_t kWeightOffset = static_cast<size_t>(kStages) * kStageBytes;
  static constexpr size_t kWeightEnd = kWeightOffset + static_cast<size_t>(kWeightPlaces) * kWeightStageBytes;
};

template <class Elements, int kN, int kStages, int kWeightPlaces_, int kMostStages_, bool kPacked, class Epilogue_>
struct StationaryConfig : StationaryTile<Elements, kN, kStages, kWeightPlaces_, kMostStages_, kPacked> {
  using Epilogue = Epilogue_;
  using Base = StationaryTile<Elements, kN, kStages, kWeightPlaces_, kMostStages_, kPacked>;
  static_assert(sizeof(typename Elements::Y) == 2);
  static constexpr bool kHasSecondProducer = Base::kStreams, kPrefetchesX = kStages < 6;
  static constexpr size_t kVectorOffset = Base::kWeightEnd;
  static constexpr size_t kVectorFloats = static_cast<size_t>(Epilogue::Vectors::kCount) * kN;
  static constexpr size_t kBarrierOffset = kVectorOffset + kVectorFloats * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + kWeightPlaces_ + 1;  // the last ones are the weight's
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kSharedBytes = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  static_assert(kSharedBytes <= 227 << 10);
  static size_t SharedBytes(int) { return kSharedBytes; }
};

// The weight of a block's columns in shared memory, by stages of k. Where these are more than places, the last place is
// streamed through: it takes each of Parameters::streamed_stages in turn, tile for tile, and the others stay.
template <class Config>
class StationaryWeight {
 public:
  static constexpr int kStreamed = Config::kWeightPlaces - 1;  // the place

  __device__ __forceinline__ explicit StationaryWeight(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline) {}
  __device__ __forceinline__ char* Place(int place) const {
    return pipeline_.shared() + Config::kWeightOffset + place * Config::kWeightStageBytes;
  }
  __device__ __forceinline__ uint64_t* Full(int place) const { return pipeline_.Empty(Config::kStages) + place; }
  // Of the place that is streamed through.
  __device__ __forceinline__ uint64_t* Empty() const { return Full(Config::kWeightPlaces); }
  __device__ __forceinline__ bool IsStreamed(int stage) const {
    return Config::kStreams && (p_.streamed_stages >> stage & 1) != 0;
  }

  // Called by one thread each.
  __device__ __forceinline__ void InitBarriers() const {
    for (int place = 0; place < Config::kWeightPlaces; ++place) InitBarrier(Full(place), 1);
    if (Config::kStreams) InitBarrier(Empty(), 1);
  }
  // What stays.
  __device__ __forceinline__ void Load(int column) const {
    int place = 0;
#pragma unroll 1
    for (int i = 0; i < p_.k_stages; ++i) {
      if (!IsStreamed(i)) LoadStage(i, column, place++);
    }
  }
  __device__ __forceinline__ void LoadStage(int stage, int column, int place) const {
    ArriveExpectTx(Full(place), Config::kWeightStageBytes);
    TmaLoadPermutedRows(Place(place), &p_.weight_map, stage * Config::kStageK, column / kPermutedRows, Full(place));
  }

 private:
  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
};

// One thread that loads the weight once, and x; and one for what is streamed.
template <class Config>
class StationaryProducer {
 public:
  __device__ __forceinline__ explicit StationaryProducer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline), weight_(pipeline) {}

  __device__ __forceinline__ void Run(typename Pipeline<Config>::State& state) const {
    PrefetchTensorMap(&p_.x_map);
    PrefetchTensorMap(&p_.weight_map);
    if constexpr (Config::Epilogue::kQuantizes) PrefetchScale(p_.quantized);
    if (!p_.weights_are_constant) WaitForDependencies();
    Tile tile = pipeline_.scheduler().TileAt(0);
    weight_.Load(tile.column);
    WaitForDependencies();
    if (p_.dependents_begin_late) LaunchDependents();
    for (int number = 1;; ++number) {
      const bool has_next = pipeline_.scheduler().HasTile(number);
      const Tile next = has_next ? pipeline_.scheduler().TileAt(number) : tile;
#pragma unroll 1
      for (int i = 0; i < p_.k_stages; ++i, state.Advance()) {
        WaitBarrierAsleep<kSleep>(pipeline_.Empty(state.stage), state.parity ^ 1);
        ArriveExpectTx(pipeline_.Full(state.stage), Config::kStageBytes);
        TmaLoad2d(pipeline_.Stage(state.stage), &p_.x_map, i * Config::kStageK, tile.row, pipeline_.Full(state.stage));
        if constexpr (Config::kPrefetchesX) {
          const bool prefetches = has_next && i % p_.cluster_n == pipeline_.block().rank_n;
          if (prefetches) TmaPrefetch2d(&p_.x_map, i * Config::kStageK, next.row);
        }
      }
      if (!has_next) return;
      tile = next;
    }
  }

  __device__ __forceinline__ void RunSecond() const {
    if (p_.streamed_stages == 0) return;
    if (!p_.weights_are_constant) WaitForDependencies();
    const int column = pipeline_.scheduler().TileAt(0).column;
    uint32_t parity = 1;
    for (int number = 0; pipeline_.scheduler().HasTile(number); ++number) {
#pragma unroll 1
      for (int i = 0; i < p_.k_stages; ++i) {
        if (!weight_.IsStreamed(i)) continue;
        WaitBarrierAsleep<kSleep>(weight_.Empty(), parity);
        weight_.LoadStage(i, column, weight_.kStreamed);
        parity ^= 1;
      }
    }
  }

 protected:
  const Parameters& p_;
  const Pipeline<Config>& pipeline_;

 private:
  static constexpr int kSleep = 20;  // ns; 200 and 600 are as fast

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
  __device__ __forceinline__ void InitBarriers() const { weight_.InitBarriers(); }

  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    ResultScale<Config> result_scale;
    result_scale.Load(p_);
    if (group == 0) {
      VectorsOfTile<Config>(p_, pipeline_.scheduler().TileAt(0)).Store(Base::Vectors(0), result_scale.Factor());
    }
    SyncNamed<128 * Config::kWarpgroups>(kVectorBarrier);
    const auto begin = [](const Tile&) { return 0; };
    ForEachTile(group, state, begin, [&](int, const Tile& tile, auto& sums, const auto& row_scales, int) {
      if constexpr (std::is_same_v<typename Config::Accumulator, int32_t>) {
        if (p_.x_compensation != nullptr) Base::TakeOffCompensation(sums, tile);
      }
      Base::Store(sums, tile, Base::Vectors(0), row_scales, result_scale);
    });
  }

 protected:
  using Base::p_, Base::pipeline_;
  static constexpr int kVectorBarrier = 8;  // behind those of the main loops' order

  // Multiplies warpgroup `group`'s tiles, and calls finish(number, tile, sums, row_scales, begun) with what begin(tile)
  // has returned before the products.
  template <class Begin, class Finish>
  __device__ __forceinline__ void ForEachTile(int group, State& state, Begin&& begin, Finish&& finish) const {
    const auto& scheduler = pipeline_.scheduler();
    const Loop mainloop(pipeline_);
    state.Advance(group * p_.k_stages);
#pragma unroll 1
    for (int number = group; scheduler.HasTile(number); number += Config::kWarpgroups) {
      const Tile tile = scheduler.TileAt(number);
      const auto begun = begin(tile);
      Accumulators accumulators;
#pragma unroll
      for (auto& sum : accumulators[0]) sum = 0;
      RowScales<Config> row_scales;
      Loop::Fence(accumulators);
      // One warpgroup multiplies at a time, in the order of tiles: the parity of a ring's barrier only tells a round
      // from the one before.
      if (number > 0) SyncNamed<256>(kOrderBarrier + group);
      int before = 0, previous = 0;                                                      // stages
      [[maybe_unused]] int staying = 0, streamed = number * __popc(p_.streamed_stages);  // places, so far
#pragma unroll
      for (int i = 0; i < Config::kMostStages; ++i) {
        if (i >= p_.k_stages) break;
        int place = i;
        if constexpr (Config::kStreams) {
          const bool is_streamed = weight_.IsStreamed(i);
          place = is_streamed ? weight_.kStreamed : staying;
          WaitBarrier(weight_.Full(place), is_streamed ? streamed & 1 : 0);  // what stays has been there for long
          staying += is_streamed ? 0 : 1, streamed += is_streamed ? 1 : 0;
        } else if (number < Config::kWarpgroups) {
          WaitBarrier(weight_.Full(place), 0);
        }
        WaitBarrier(pipeline_.Full(state.stage), state.parity);
        mainloop.template MultiplyBy<1>(accumulators, pipeline_.Stage(state.stage), weight_.Place(place), true);
        if (i == 0) row_scales.Load(p_, tile.row + FirstRow());
        WaitWgmma<2>();
        if (i >= 2) Release(before, i - 2);
        before = previous, previous = state.stage;
        state.Advance();
      }
      if (scheduler.HasTile(number + 1)) ArriveNamed<256>(kOrderBarrier + (group + 1) % Config::kWarpgroups);
      WaitWgmma<0>();
      Loop::Fence(accumulators);
      if (p_.k_stages > 1) Release(before, p_.k_stages - 2);
      Release(previous, p_.k_stages - 1);
      finish(number, tile, accumulators, row_scales, begun);
      state.Advance((Config::kWarpgroups - 1) * p_.k_stages);  // those of the other warpgroups' tiles
    }
  }

 private:
  static constexpr int kOrderBarrier = 2 + Config::kWarpgroups;  // one for each warpgroup, which waits at its own

  // A stage of the ring, and the place of that stage of k. The warpgroup's warps take turns.
  __device__ __forceinline__ void Release(int stage, int of_k) const {
    if (static_cast<int>(threadIdx.x % 128) != stage % 4 * 32) return;
    Arrive(pipeline_.Empty(stage));
    if (weight_.IsStreamed(of_k)) Arrive(weight_.Empty());
  }

  StationaryWeight<Config> weight_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) StationaryKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, StationaryConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_CUH_
