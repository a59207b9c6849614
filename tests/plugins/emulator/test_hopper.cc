// What the emulator is for, of Hopper's instructions: each fault that is planted here must be found, and the kernel
// without it must pass.
#include <gtest/gtest.h>

#include <numeric>

#include "emulator/late_array.h"
#include "emulator/product.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/launch.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/pipeline_state.cuh"
#include "kernels/sm90/ptx/barrier.cuh"
#include "kernels/sm90/ptx/cluster.cuh"
#include "kernels/sm90/ptx/tma.cuh"
#include "kernels/sm90/ptx/wgmma.cuh"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::LateArray;

enum class Plant {
  kNothing,
  // Producer and pipeline.
  kTooFewBytes,
  kTooManyBytes,
  kNoWaitForEmpty,
  kWrongParity,
  kNoWaitForFull,
  kUninitialisedBarrier,
  kSecondArrival,
  kOverwrittenBarrier,
  kNoWaitForDependencies,
  kMisalignedTile,
  kNotMulticastToAll,
  // Consumers.
  kReleasedEarly,
  kReleasedBeforeLastWait,
  kNoWgmmaFence,
  kNoWgmmaWait,
  kReadBeforeWait,
  kWrittenBeforeWait,
  kDifferentDescriptors,
  // Epilogue.
  kNoAsyncFence,
  kNoNamedBarrier,
  kFewerAtNamedBarrier,
  kNoStoreWait,
  kStagingReused,
  kNoCommit,
  kNoSyncWarp,
  kNoLastClusterBarrier,
  kNoFirstClusterBarrier,
};

constexpr int kTile = 64, kStages = 3, kTileBytes = kTile * 128, kWarpgroups = 2, kRows = kWarpgroups * kTile;
constexpr int kStageBytes = (kWarpgroups + 1) * kTileBytes, kThreads = 128 * kWarpgroups + 32;
constexpr int kBarrierOffset = kStages * kStageBytes, kSharedBytes = kBarrierOffset + 1024, kCluster = 2;

struct Parameters {
  CUtensorMap x_map, weight_map, y_map;
  int k_stages, rounds;
  Plant plant;
};

// y = x weight^T for 128 x 64 tiles of y, the tiles of a cluster one below the other: both blocks load half of weight
// for both. As the kernels of sm90/gemm are, but for `rounds`: the tile is computed that many times, and multiplied by
// 1, 2, 3.
__global__ void ProductKernel(const __grid_constant__ Parameters p) {
  const Plant plant = p.plant;
  char* const shared = DynamicShared();
  auto* const full = reinterpret_cast<uint64_t*>(shared + kBarrierOffset);
  uint64_t* const empty = full + kStages;
  int* const words = reinterpret_cast<int*>(empty + kStages);  // of each warp
  const int warp = static_cast<int>(threadIdx.x) / 32, group = warp / 4, rank = static_cast<int>(ClusterRank());
  const int row = static_cast<int>(blockIdx.x) * kRows;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      if (plant != Plant::kUninitialisedBarrier || i < kStages - 1) InitBarrier(full + i, 1);
      InitBarrier(empty + i, kCluster * kWarpgroups);
    }
  }
  if (plant != Plant::kNoFirstClusterBarrier) SyncCluster();
  __syncthreads();
  PipelineState<kStages> state;
  if (warp == 4 * kWarpgroups) {
    if (threadIdx.x % 32 == 0) {
      if (plant != Plant::kNoWaitForDependencies) WaitForDependencies();
      for (int i = 0; i < p.k_stages * p.rounds; ++i, state.Advance()) {
        const uint32_t parity = state.parity ^ (plant == Plant::kWrongParity && i == kStages ? 0 : 1);
        if (plant != Plant::kNoWaitForEmpty) WaitBarrier(empty + state.stage, parity);
        uint64_t* const barrier = full + state.stage;
        uint32_t bytes = kStageBytes;
        if (plant == Plant::kTooFewBytes && i == 1) bytes -= kTileBytes;
        if (plant == Plant::kTooManyBytes && i == 1) bytes += 16;
        ArriveExpectTx(barrier, bytes);
        if (plant == Plant::kSecondArrival && i == 1) Arrive(barrier);
        char* const to = shared + state.stage * kStageBytes;
        const int k = i % p.k_stages * 64, half = rank * kTileBytes / 2;
        for (int g = 0; g < kWarpgroups; ++g) TmaLoad2d(to + g * kTileBytes, &p.x_map, k, row + g * kTile, barrier);
        const int off = plant == Plant::kMisalignedTile ? 64 : 0;
        const uint16_t blocks = plant == Plant::kNotMulticastToAll && i == 2 && rank == 1 ? 2 : 3;
        TmaLoad2dMulticast(to + kWarpgroups * kTileBytes + half + off, &p.weight_map, k, rank * kTile / 2, barrier,
                           blocks);
      }
    }
    __syncwarp();
  } else {
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    const uint32_t remote = thread < kCluster ? DsmemAddress(empty, thread) : 0;
    const auto release = [&](int stage) {
      if (remote != 0) ArriveRemote(remote + stage * sizeof(uint64_t));
    };
    for (int round = 0; round < p.rounds; ++round) {
      float sums[kTile / 2];
      int previous = -1;
      for (int i = 0; i < p.k_stages; ++i, state.Advance()) {
        if (plant != Plant::kNoWaitForFull) WaitBarrier(full + state.stage, state.parity);
        if (plant == Plant::kReleasedEarly) release(state.stage);
        const char* const stage = shared + state.stage * kStageBytes;
        uint64_t x = TileDescriptor(stage + group * kTileBytes);
        uint64_t weight = TileDescriptor(stage + kWarpgroups * kTileBytes);
        if (plant == Plant::kDifferentDescriptors && thread == 77) x += 2;
        if (plant != Plant::kNoWgmmaFence) BeginWgmma();
        for (int step = 0; step < 4; ++step)
          WgmmaSs<__half, kTile>(sums, x + 2 * step, weight + 2 * step, i + step > 0);
        CommitWgmma();
        if (plant == Plant::kWrittenBeforeWait && i == 1) sums[3] = 1;
        WaitWgmma<1>();
        if (plant != Plant::kReleasedEarly && previous >= 0) release(previous);
        previous = state.stage;
      }
      if (plant == Plant::kReleasedBeforeLastWait) release(previous);
      if (plant != Plant::kNoWgmmaWait && plant != Plant::kReadBeforeWait) WaitWgmma<0>();
      if (plant != Plant::kReleasedBeforeLastWait && plant != Plant::kReleasedEarly) release(previous);

      // Out through the place of a stage of its own, behind the barriers.
      char* const staging = shared + kSharedBytes + group * kTileBytes;
      if (thread == 0 && round > 0 && plant != Plant::kStagingReused) TmaWaitStoresRead<0>();
      SyncWarpgroup(1 + group);
      for (int i = 0; i < kTile / 16; ++i) {
        uint32_t pairs[4];
        for (int e = 0; e < 4; ++e)
          pairs[e] = PackPair<__half>(sums[8 * i + 2 * e] * (round + 1), sums[8 * i + 2 * e + 1] * (round + 1));
        StoreMatrices(SharedAddress(staging) + Swizzled<128>(thread / 32 * 16 + lane % 16, (2 * i + lane / 16) * 16),
                      pairs);
      }
      if (plant != Plant::kNoAsyncFence) FenceAsyncProxy();
      if (plant == Plant::kFewerAtNamedBarrier && thread / 32 == 3 && round == p.rounds - 1) return;
      if (plant != Plant::kNoNamedBarrier) SyncWarpgroup(1 + group);
      if (thread == 0) {
        TmaStore2d(&p.y_map, staging, round * kTile, row + group * kTile);
        if (plant != Plant::kNoCommit) TmaCommitStores();
      }
      if (plant == Plant::kReadBeforeWait) WaitWgmma<0>();
    }
    // The lanes' sum, by way of shared memory.
    if (lane == 0) words[warp] = 0;
    __syncwarp();
    if (lane == 9) words[warp] = 9;
    if (plant != Plant::kNoSyncWarp) __syncwarp();
    if (lane == 20 && words[warp] != 9) InitBarrier(empty, 1);  // a second time
    if (thread == 0 && plant != Plant::kNoStoreWait) TmaWaitStoresRead<0>();
    if (plant == Plant::kOverwrittenBarrier && threadIdx.x == 3) empty[0] = 0, Arrive(empty);
  }
  if (plant != Plant::kNoLastClusterBarrier) SyncCluster();
}

Device Hopper() {
  emulator::Settings& settings = emulator::TheSettings();
  settings.compute_capability = 90, settings.shared_bytes = 227 << 10;
  return {1, 90, 2, settings.shared_bytes};
}

std::string FaultOf(Plant plant, uint64_t seed) {
  constexpr int kStagesOfK = 5, kRounds = 3, kK = 64 * kStagesOfK - 24, kN = kTile * kRounds - 8;
  constexpr int kM = 2 * kRows - 3;
  emulator::Random random(seed);
  LateArray<__half> x(kM * kK);
  DeviceArray<__half> weight(kTile * kK), y(kM * kN);
  x.Fill(&random, 1), random.Fill(weight, 0.1);
  Parameters p = {};
  p.k_stages = kStagesOfK, p.rounds = kRounds, p.plant = plant;
  constexpr auto kType = kTensorMapType<__half>;
  EXPECT_EQ(MakeTensorMap({x.array.data(), kM, kK, kK, kTile, 64}, kType, &p.x_map), cudaSuccess);
  EXPECT_EQ(MakeTensorMap({weight.data(), kTile, kK, kK, kTile / 2, 64}, kType, &p.weight_map), cudaSuccess);
  EXPECT_EQ(MakeTensorMap({y.data(), kM, kN, kN, kTile, 64}, kType, &p.y_map), cudaSuccess);
  const Device device = Hopper();
  LaunchConfig config;
  config.grid = dim3(kCluster), config.block = dim3(kThreads), config.device = &device, config.cluster = kCluster;
  config.shared_bytes = kSharedBytes + kWarpgroups * kTileBytes;
  emulator::TheSettings().seed = seed;
  emulator::TheSettings().dependencies_end = [&] { x.Appear(); };
  const cudaError_t error = Launch(config, ProductKernel, p);
  emulator::TheSettings().dependencies_end = nullptr;
  const std::string fault = emulator::TakeFault();
  EXPECT_EQ(error == cudaSuccess, fault.empty()) << fault;
  if (!fault.empty()) return fault;
  std::vector<double> x64(kM * kK), weight64(kTile * kK), product(kM * kTile);
  for (size_t i = 0; i < x64.size(); ++i) x64[i] = x[i];
  for (size_t i = 0; i < weight64.size(); ++i) weight64[i] = __half2float(weight[i]);
  emulator::MultiplyReference(x64.data(), weight64.data(), kM, kTile, kK, product.data());
  for (int i = 0; i < kM * kN; ++i) {
    const double expected = product[i / kN * kTile + i % kN % kTile] * (i % kN / kTile + 1);
    if (!(std::abs(__half2float(y[i]) - expected) < 0.02)) return "a wrong result";
  }
  return "";
}

TEST(EmulatedHopper, RunsWhatIsRight) {
  uint64_t seed = emulator::Seed();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(FaultOf(Plant::kNothing, seed++), "");
}

struct Planted {
  Plant plant;
  const char* name;
  std::vector<const char*> found;  // any of them
};

void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

class HopperFaults : public testing::TestWithParam<Planted> {};

// Some faults show in every order, some in few: there are that many until one is found three times.
TEST_P(HopperFaults, AreFound) {
  uint64_t seed = emulator::Seed();
  int found = 0, orders = 0;
  constexpr int kEnough = 3, kMostOrders = 200;
  std::string first;
  for (; found < kEnough && orders < kMostOrders; ++orders) {
    const std::string fault = FaultOf(GetParam().plant, seed++);
    if (fault.empty()) continue;
    bool expected = false;
    for (const char* text : GetParam().found) expected |= fault.find(text) != std::string::npos;
    ASSERT_TRUE(expected) << fault;
    if (first.empty()) first = fault;
    ++found;
  }
  std::printf("found in %d of %d orders: %s\n", found, orders, first.c_str());
  EXPECT_EQ(found, kEnough);
}

constexpr const char* kWrong = "a wrong result";
constexpr const char* kDeadlock = "threads wait at";
#define BERTFUSE_PLANTED(PLANT, ...)      \
  Planted {                               \
    Plant::PLANT, #PLANT, { __VA_ARGS__ } \
  }
INSTANTIATE_TEST_SUITE_P(
    , HopperFaults,
    testing::Values(
        BERTFUSE_PLANTED(kTooFewBytes, "bytes more than were", "lacked -", "more than 1 arrivals", "has ended", kWrong),
        BERTFUSE_PLANTED(kTooManyBytes, kDeadlock), BERTFUSE_PLANTED(kNoWaitForEmpty, "more than", kWrong),
        BERTFUSE_PLANTED(kWrongParity, kDeadlock, "more than", kWrong),
        BERTFUSE_PLANTED(kNoWaitForFull, kWrong, "more than", "has ended", kDeadlock),
        BERTFUSE_PLANTED(kUninitialisedBarrier, "no mbarrier is initialised there"),
        BERTFUSE_PLANTED(kSecondArrival, "more than 1 arrivals", "bytes more", kDeadlock, kWrong),
        BERTFUSE_PLANTED(kOverwrittenBarrier, "overwritten"), BERTFUSE_PLANTED(kNoWaitForDependencies, kWrong),
        BERTFUSE_PLANTED(kMisalignedTile, "is misaligned"),
        BERTFUSE_PLANTED(kNotMulticastToAll, kDeadlock, "bytes more", kWrong),
        BERTFUSE_PLANTED(kReleasedEarly, kWrong, kDeadlock),
        BERTFUSE_PLANTED(kReleasedBeforeLastWait, kWrong, kDeadlock),
        BERTFUSE_PLANTED(kNoWgmmaFence, "wgmma without wgmma.fence"),
        BERTFUSE_PLANTED(kNoWgmmaWait, "without waiting for its products", kWrong, kDeadlock),
        BERTFUSE_PLANTED(kReadBeforeWait, kWrong, kDeadlock),
        BERTFUSE_PLANTED(kWrittenBeforeWait, "accumulators were written"),
        BERTFUSE_PLANTED(kDifferentDescriptors, "wgmma differs"),
        BERTFUSE_PLANTED(kNoAsyncFence, "without fence.proxy.async"),
        BERTFUSE_PLANTED(kNoNamedBarrier, kWrong, "without fence.proxy.async"),
        BERTFUSE_PLANTED(kFewerAtNamedBarrier, kDeadlock), BERTFUSE_PLANTED(kNoStoreWait, "bulk stores have read"),
        BERTFUSE_PLANTED(kStagingReused, kWrong), BERTFUSE_PLANTED(kNoCommit, "without committing"),
        BERTFUSE_PLANTED(kNoSyncWarp, "a second mbarrier.init"),
        BERTFUSE_PLANTED(kNoLastClusterBarrier, "has ended", "outlived"),
        BERTFUSE_PLANTED(kNoFirstClusterBarrier, "no mbarrier is initialised there")),
    [](const testing::TestParamInfo<Planted>& one) { return std::string(one.param.name); });

// One product of k = 128 bytes, x from shared memory or from registers, against exact sums: which thread holds what.
template <class T>
__global__ void WgmmaKernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                            const T* x, bool from_registers, float* y) {
  constexpr int kN = 96, kRowElements = 128 / sizeof(T), kStep = 32 / sizeof(T), kPair = 4 / sizeof(T);
  char* const shared = DynamicShared();
  auto* const full = reinterpret_cast<uint64_t*>(shared + (64 + kN) * 128);
  if (threadIdx.x == 0) {
    InitBarrier(full, 1);
    ArriveExpectTx(full, (64 + kN) * 128);
    TmaLoad2d(shared, &x_map, 0, 0, full);
    TmaLoad2d(shared + 64 * 128, &weight_map, 0, 0, full);
  }
  __syncthreads();
  WaitBarrier(full, 0);
  float d[kN / 2];
  uint32_t a[4][4];
  BeginWgmma();
  for (int step = 0; step < 4; ++step) {
    const uint64_t weight = TileDescriptor(shared + 64 * 128) + 2 * step;
    for (int e = 0; e < 4; ++e) {
      const int k = step * kStep + e / 2 * kStep / 2 + static_cast<int>(threadIdx.x) % 4 * kPair;
      std::memcpy(&a[step][e], x + (FirstRow() + e % 2 * 8) * kRowElements + k, 4);
    }
    if (from_registers) {
      WgmmaRs<typename WgmmaOp<T, float, kN>::RS>(d, a[step], weight, step > 0);
    } else {
      WgmmaSs<T, kN>(d, TileDescriptor(shared) + 2 * step, weight, step > 0);
    }
  }
  CommitWgmma();
  WaitWgmma<0>();
  for (int i = 0; i < kN / 2; ++i) y[(FirstRow() + i / 2 % 2 * 8) * kN + FirstColumn() + i / 4 * 8 + i % 2] = d[i];
}

template <class T>
void TestWgmma(CUtensorMapDataType type) {
  constexpr int kN = 96, kK = 128 / sizeof(T);
  emulator::Random random(emulator::Seed());
  for (const bool from_registers : {false, true}) {
    DeviceArray<T> x(64 * kK), weight(kN * kK);
    DeviceArray<float> y(64 * kN);
    for (T& value : x) value = static_cast<T>(static_cast<float>(random.Between(-8, 8)));
    for (T& value : weight) value = static_cast<T>(static_cast<float>(random.Between(-8, 8)));
    const Device device = Hopper();
    CUtensorMap x_map, weight_map;
    ASSERT_EQ(MakeTensorMap({x.data(), 64, kK, kK, 64, kK}, {type, sizeof(T)}, &x_map), cudaSuccess);
    ASSERT_EQ(MakeTensorMap({weight.data(), kN, kK, kK, kN, kK}, {type, sizeof(T)}, &weight_map), cudaSuccess);
    LaunchConfig config;
    config.grid = dim3(1), config.block = dim3(128), config.device = &device;
    config.shared_bytes = (64 + kN) * 128 + 8;
    emulator::TheSettings().seed = random.Seed();
    ASSERT_EQ(Launch(config, WgmmaKernel<T>, x_map, weight_map, x.data(), from_registers, y.data()), cudaSuccess)
        << emulator::TakeFault();
    for (int i = 0; i < 64 * kN; ++i) {
      float sum = 0;
      for (int k = 0; k < kK; ++k) {
        sum += static_cast<float>(x[i / kN * kK + k]) * static_cast<float>(weight[i % kN * kK + k]);
      }
      ASSERT_EQ(y[i], sum) << i << (from_registers ? " from registers" : "");
    }
  }
}

TEST(EmulatedHopper, MultipliesHalf) { TestWgmma<__half>(CU_TENSOR_MAP_DATA_TYPE_FLOAT16); }
TEST(EmulatedHopper, MultipliesBfloat16) { TestWgmma<__nv_bfloat16>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16); }
TEST(EmulatedHopper, MultipliesE4m3) { TestWgmma<__nv_fp8_e4m3>(CU_TENSOR_MAP_DATA_TYPE_UINT8); }

// A box of 16 rows, half of it outside of the tensor on any side, and back.
template <int kPitch>
__global__ void BoxKernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap y_map, int x,
                          int y, float* seen) {
  char* const shared = DynamicShared();
  auto* const full = reinterpret_cast<uint64_t*>(shared + 16 * kPitch);
  if (threadIdx.x == 0) {
    InitBarrier(full, 1);
    ArriveExpectTx(full, 16 * kPitch);
    TmaLoad2d(shared, &map, x, y, full);
    WaitBarrier(full, 0);
    for (int i = 0; i < 16 * kPitch / 4; ++i) {
      seen[i] = *reinterpret_cast<const float*>(shared + Swizzled<kPitch>(i / (kPitch / 4), i % (kPitch / 4) * 4));
    }
    TmaStore2d(&y_map, shared, x, y);
    TmaCommitStores();
    TmaWaitStoresRead<0>();
  }
}

template <int kPitch>
void TestBox() {
  constexpr int kColumns = kPitch / 4, kRows = 20, kWidth = 40;
  emulator::Random random(emulator::Seed());
  for (int i = 0; i < 20; ++i) {
    DeviceArray<float> from(kRows * kWidth), to(kRows * kWidth), seen(16 * kColumns);
    random.Fill(from, 1), random.Fill(to, 1);
    const std::vector<float> before(to.begin(), to.end());
    const int x = static_cast<int>(random.Between(-kColumns - 2, kWidth + 2));
    const int y = static_cast<int>(random.Between(-18, kRows + 2));
    CUtensorMap map, y_map;
    ASSERT_EQ(MakeTensorMap({from.data(), kRows, kWidth, kWidth, 16, kColumns}, kTensorMapType<float>, &map),
              cudaSuccess);
    ASSERT_EQ(MakeTensorMap({to.data(), kRows, kWidth, kWidth, 16, kColumns}, kTensorMapType<float>, &y_map),
              cudaSuccess);
    const Device device = Hopper();
    LaunchConfig config;
    config.grid = dim3(1), config.block = dim3(32), config.device = &device, config.shared_bytes = 16 * kPitch + 8;
    emulator::TheSettings().seed = random.Seed();
    ASSERT_EQ(Launch(config, BoxKernel<kPitch>, map, y_map, x, y, seen.data()), cudaSuccess) << emulator::TakeFault();
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        const int at_row = y + row, at_column = x + column;
        const bool inside = at_row >= 0 && at_row < kRows && at_column >= 0 && at_column < kWidth;
        EXPECT_EQ(seen[row * kColumns + column], inside ? from[at_row * kWidth + at_column] : 0.0f);
      }
    }
    for (int at = 0; at < kRows * kWidth; ++at) {
      const int row = at / kWidth - y, column = at % kWidth - x;
      const bool stored = row >= 0 && row < 16 && column >= 0 && column < kColumns;
      EXPECT_EQ(to[at], stored ? from[at] : before[at]);
    }
  }
}

TEST(EmulatedHopper, CopiesBoxesOf128Bytes) { TestBox<128>(); }
TEST(EmulatedHopper, CopiesBoxesOf64Bytes) { TestBox<64>(); }
TEST(EmulatedHopper, CopiesBoxesOf32Bytes) { TestBox<32>(); }

}  // namespace
}  // namespace bertfuse::kernels
