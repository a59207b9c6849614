// Compile-time configurations of the Hopper matrix products, and the layout of their shared memory: the
// pipeline's stages, float32 vectors of the block's columns, mbarriers, counts of tiles, row statistics.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_CONFIG_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_CONFIG_CUH_

#include <cstddef>
#include <type_traits>

#include "kernels/sm90/gemm.h"
#include "kernels/sm90/ptx/wgmma.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// A block's output tile and the pipeline that feeds it. A stage holds 128 bytes of k of each row of x and weight: the
// width that TMA swizzles over. kPacked: the number of rows is read on the device. Of an epilogue that multiplies
// factors the product's kN columns are kOutN of each factor, one factor after the other. kPromotes:
// GemmBlock::promotes.
template <class Elements, int kM_, int kN_, int kStages_, int kBlocks_, bool kPacked_, int kFactors_ = 1,
          bool kPromotes_ = false>
struct TileConfig : Elements {
  using typename Elements::Accumulator;
  using typename Elements::Weight;
  using typename Elements::X;
  using typename Elements::Y;
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kFactors = kFactors_;
  static constexpr int kOutN = kN / kFactors;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;  // resident on a multiprocessor
  static constexpr bool kPacked = kPacked_;
  static constexpr bool kPromotes = kPromotes_;
  static constexpr size_t kCountsBytes = kPacked ? 32 : 0;  // TileCounts
  static constexpr int kRowBytes = kStageRowBytes;
  static constexpr int kStageK = kernels::kStageK<X>;
  static_assert(std::is_same_v<X, Weight>, "WgmmaOp has instructions for operands of one type");
  static constexpr int kXBytes = kM * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kN * kRowBytes;
  static constexpr int kAccumulators = kN / 2;        // of a thread, for 64 rows
  static constexpr int kOutAccumulators = kOutN / 2;  // that the epilogue leaves to be stored, the first ones
  static constexpr size_t kVectorOffset = static_cast<size_t>(kStages) * kStageBytes;
  static constexpr bool kHasResidualWarp = false;  // a second warp of producers, for the residual alone
  // Whether the launch may leave out stages at the ring's end (TrimRing()): the ring then has Parameters::ring_stages,
  // and what lies behind it moves forward.
  static constexpr bool kTrimsRing = false;
};

// Persistent, ping-pong: blocks stay on their multiprocessor, and two teams of consumers, of one warpgroup or two, take
// tiles alternately. While one runs its epilogue the other multiplies. Two warpgroups share the rows of their tile:
// half the accumulators of each thread, and twice as many warps in an epilogue that takes longer than the main loop.
template <class Elements, int kM, int kN, int kStages, bool kPacked, class Epilogue_, int kTeam_ = 1>
struct PersistentConfig : TileConfig<Elements, kM, kN, kStages, 1, kPacked, Epilogue_::kFactors> {
  using Epilogue = Epilogue_;
  static_assert(sizeof(typename Elements::Y) == 2, "results are stored as pairs of 2-byte elements");
  static_assert(!Epilogue::kAddsResidual && !Epilogue::kNormalizes, "there is no room to stage rows");
  static constexpr int kTeam = kTeam_;
  static constexpr int kWarpgroups = 2 * kTeam;       // consumers
  static constexpr int kConsumersPerStage = kTeam;    // warpgroups that read a stage
  static constexpr int kRowBlocks = kM / 64 / kTeam;  // blocks of 64 rows in a warpgroup's part of a tile
  static constexpr int kThreads = 128 * kWarpgroups + 128;
  // The registers that the producer gives up go to the consumers. More than the launch has, and setmaxnreg waits for
  // ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = kTeam == 1 ? 240 : 112;
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <= (kWarpgroups + 1) * kLaunchRegisters);
  static constexpr bool kPersistent = true, kPermutesWeight = true;
  static constexpr int kEpilogueStages = 0;
  // An epilogue of 16-bit operands reads at most a bias, and accumulators begin with that. One of 8-bit operands reads
  // scales, bias and factors of each tile's columns: each warpgroup lays them ready in shared memory beforehand.
  static constexpr bool kSharesVectors = kIsQuantized<Elements>;
  // Accumulators that the epilogue takes at once. All of them, and the compiler would load all vectors from shared
  // memory into registers, and spill.
  static constexpr int kAtOnce = kSharesVectors ? 32 : PersistentConfig::kAccumulators;
  static constexpr size_t kVectorFloats = kSharesVectors ? static_cast<size_t>(Epilogue::Vectors::kCount) * kN : 0;
  static constexpr size_t kBarrierOffset =
      PersistentConfig::kVectorOffset + kWarpgroups * kVectorFloats * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages;
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static size_t SharedBytes(int) { return (kCountsOffset + PersistentConfig::kCountsBytes + 127) / 128 * 128; }
};

// Split-K: a block for each tile and split, whose consumers take 64 rows each and store float32 partial sums, of 8-bit
// operands times their scales.
template <class Elements, int kM, int kN, int kStages, int kBlocks, bool kPacked, class Epilogue_>
struct SplitKConfig : TileConfig<Elements, kM, kN, kStages, kBlocks, kPacked> {
  using Epilogue = Epilogue_;
  static constexpr int kWarpgroups = kM / 64;
  static constexpr int kConsumersPerStage = kWarpgroups;
  static constexpr int kRowBlocks = 1;
  static constexpr int kThreads = 128 * kWarpgroups + 32;
  static constexpr bool kPersistent = false, kPermutesWeight = false, kTrimsRing = true;
  static constexpr int kEpilogueStages = 0;
  static constexpr size_t kBarrierOffset =
      SplitKConfig::kVectorOffset + static_cast<size_t>(Epilogue::Vectors::kCount) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages;
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static size_t SharedBytes(int) { return (kCountsOffset + SplitKConfig::kCountsBytes + 127) / 128 * 128; }
};

// One tile per block (with packed rows sometimes several, one after the other); each consumer warpgroup computes 64 of
// its rows. Where two blocks share a multiprocessor, one runs its epilogue while the other multiplies. TMA stores the
// tile, and loads the residual, through stages of the pipeline; 8-bit results are stored from registers.
template <class Elements, int kM, int kN, int kStages, int kBlocks, bool kPacked, class Epilogue_,
          bool kPromotes = false>
struct OneTileConfig : TileConfig<Elements, kM, kN, kStages, kBlocks, kPacked, Epilogue_::kFactors, kPromotes> {
  using Base = TileConfig<Elements, kM, kN, kStages, kBlocks, kPacked, Epilogue_::kFactors, kPromotes>;
  using Epilogue = Epilogue_;
  static constexpr int kWarpgroups = kM / 64;
  static constexpr int kConsumersPerStage = kWarpgroups;
  static constexpr int kRowBlocks = 1;
  static constexpr int kThreads = 128 * kWarpgroups + 32;
  static constexpr bool kPersistent = false, kPermutesWeight = false, kTrimsRing = true;

  // A warpgroup's rows are staged in boxes as wide as TMA's swizzle allows.
  static constexpr int kBoxColumns = Base::kOutN % 64 == 0 ? 64 : Base::kOutN % 32 == 0 ? 32 : 16;
  static constexpr int kBoxBytes = 64 * kBoxColumns * static_cast<int>(sizeof(typename Base::Y));
  static constexpr int kBoxes = Base::kOutN / kBoxColumns;
  static constexpr int kStagingBytes = kBoxes * kBoxBytes;
  static constexpr int kWarpgroupsPerStage = kWarpgroups > 1 && 2 * kStagingBytes <= Base::kStageBytes ? 2 : 1;
  static constexpr int kEpilogueStages = Epilogue::kQuantizes ? 0 : (kWarpgroups - 1) / kWarpgroupsPerStage + 1;
  static_assert(kStagingBytes <= Base::kStageBytes && kEpilogueStages < kStages);

  static constexpr size_t kBarrierOffset =
      Base::kVectorOffset + static_cast<size_t>(Epilogue::Vectors::kCount) * kN * sizeof(float);
  static constexpr size_t kBarriers = 2 * kStages + (Epilogue::kNormalizes ? kWarpgroups : 0);
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kStatisticsOffset = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  // With room for the row statistics of each block of the cluster row.
  static size_t SharedBytes(int cluster_n) {
    return kStatisticsOffset + (Epilogue::kNormalizes ? static_cast<size_t>(cluster_n) * kM * sizeof(float2) : 0);
  }
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_CONFIG_CUH_
