// What the emulator is for: each fault that is planted here must be found, and the kernel without it must pass.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "emulator/random_data.h"
#include "kernels/launch.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/shared.cuh"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;

enum class Plant {
  kNothing,
  kNoBarrierAfterWait,
  kNoBarrierBeforeReuse,
  kLaxWait,
  kNoWait,
  kWrongMatrixRow,
  kMisalignedMatrix,
  kOutsideMatrix,
  kMisalignedCopy,
  kCopyBehindArray,
  kCopyBehindTile,
  kUnreachedBarrier,
  kDivergentWarp,
  kShuffleOutOfMask,
  kReadBehindArray,
  kMisalignedPack,
  kWriteBehindShared,
};

constexpr int kThreads = 128, kStages = 3, kChunk = 8;
constexpr int kTileElements = kThreads * kChunk;  // a chunk of 16 bytes for each thread
constexpr int kRingBytes = kStages * kTileElements * sizeof(__half);

// y = x, tile by tile of 128 x 8, through a ring of stages: each thread copies its neighbour warp's chunk, and each
// warp reads its 32 rows by ldmatrix.
__global__ void CopyKernel(Plant plant, const __half* x, __half* y, int tiles) {
  auto* const ring = reinterpret_cast<__half(*)[kTileElements]>(DynamicShared());
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, other = (t + 32) % kThreads;
  const auto load = [&](int tile) {
    if (tile < tiles) {
      __half* to = &ring[tile % kStages][other * kChunk];
      const __half* from = x + tile * kTileElements + other * kChunk;
      if (plant == Plant::kMisalignedCopy && tile == 1) from += 4;
      if (plant == Plant::kCopyBehindArray && tile == tiles - 1) from += kTileElements;
      if (plant == Plant::kCopyBehindTile && tile % kStages == kStages - 1) to += kTileElements;
      CopyAsync<16>(to, from, true);
    }
    CommitCopies();
  };
  load(0);
  load(1);
  if (plant == Plant::kNoBarrierBeforeReuse) load(2);
  for (int tile = 0; tile < tiles; ++tile) {
    const bool waits_for_fewer = plant == Plant::kLaxWait || plant == Plant::kNoBarrierBeforeReuse;
    if (waits_for_fewer) WaitCopies<2>();
    if (!waits_for_fewer && plant != Plant::kNoWait) WaitCopies<1>();
    if (plant == Plant::kUnreachedBarrier && t == 77 && tile == 1) break;
    if (plant != Plant::kNoBarrierAfterWait) __syncthreads();
    if (plant != Plant::kNoBarrierBeforeReuse) load(tile + 2);
    const __half* row = &ring[tile % kStages][t * kChunk];
    if (plant == Plant::kWrongMatrixRow) row = &ring[tile % kStages][(t ^ 1) * kChunk];
    uint32_t address = SharedAddress(row);
    if (plant == Plant::kMisalignedMatrix && t == 5) address += 8;
    if (plant == Plant::kOutsideMatrix && t == 5) address += kRingBytes;
    if (plant == Plant::kDivergentWarp && t == 40) __syncwarp();
    uint32_t matrices[4];
    LoadMatrices(matrices, address);
    if (plant == Plant::kNoBarrierBeforeReuse) load(tile + 3);  // others may still read this stage
    if (plant == Plant::kShuffleOutOfMask && lane < 16) __shfl_sync(0x0000ffffu, lane, 20);
    const int row_of_matrix = lane / 4, column = lane % 4 * 2;
    for (int matrix = 0; matrix < 4; ++matrix) {
      __half* to = y + tile * kTileElements + (t / 32 * 32 + matrix * 8 + row_of_matrix) * kChunk + column;
      *reinterpret_cast<uint32_t*>(to) = matrices[matrix];
    }
  }
  if (plant == Plant::kReadBehindArray && t == 3) y[0] = x[tiles * kTileElements];
  if (plant == Plant::kMisalignedPack && t == 3) {
    struct alignas(16) Pack {
      __half value[8];
    };
    *reinterpret_cast<Pack*>(y) = *reinterpret_cast<const Pack*>(x + 4);
  }
  if (plant == Plant::kWriteBehindShared && t == 3) ring[kStages][lane] = x[0];
  if (plant != Plant::kNoWait) WaitCopies<0>();
}

std::string FaultOf(Plant plant, uint64_t seed, bool finds_races = false) {
  constexpr int kTiles = 7;
  emulator::TheSettings().finds_races = finds_races;
  emulator::TheSettings().seed = seed;
  DeviceArray<__half> x(kTiles * kTileElements), y(kTiles * kTileElements);
  for (size_t i = 0; i < x.size(); ++i) x[i] = __float2half_rn(static_cast<float>(i % 1999));
  const Device device = {0, 80, 8, 163 << 10};
  LaunchConfig config;
  config.grid = dim3(2), config.block = dim3(kThreads), config.device = &device, config.shared_bytes = kRingBytes;
  const cudaError_t error = Launch(config, CopyKernel, plant, x.data(), y.data(), kTiles);
  emulator::TheSettings().finds_races = false;
  const std::string fault = emulator::TakeFault();
  EXPECT_EQ(error == cudaSuccess, fault.empty()) << fault;
  if (!fault.empty()) return fault;
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(__half)) == 0 ? "" : "a wrong result";
}

TEST(Emulator, RunsWhatIsRight) {
  uint64_t seed = emulator::Seed();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(FaultOf(Plant::kNothing, seed++, i % 2 == 0), "");
}

// In every order of the threads, since these are races in each.
TEST(Emulator, FindsRaces) {
  uint64_t seed = emulator::Seed();
  for (int i = 0; i < 20; ++i) {
    for (const Plant plant : {Plant::kNoBarrierAfterWait, Plant::kNoBarrierBeforeReuse}) {
      const std::string fault = FaultOf(plant, seed++, true);
      EXPECT_NE(fault.find("no barrier orders its"), std::string::npos) << static_cast<int>(plant) << fault;
    }
  }
}

// Two groups of warps that have a half of a ring each, and as many stages as `left` and `right`: each waits for itself
// alone, but at the end, when all read what others wrote.
__global__ void GroupsKernel(int left, int right, bool forgets, uint32_t* out) {
  const int group = static_cast<int>(threadIdx.x) / 64, t = static_cast<int>(threadIdx.x) % 64, other = t ^ 32;
  const auto at = [&](int of_group, int thread) {
    return SharedAddress(DynamicShared()) + (of_group * 64 + thread) * 16;
  };
  uint32_t words[4] = {threadIdx.x};
  for (int stage = 0; stage < (group == 0 ? left : right); ++stage) {
    StoreShared(at(group, t), words);
    SyncNamed<64>(1 + group);
    LoadShared(words, at(group, other));
    if (!forgets || stage > 0) SyncNamed<64>(1 + group);
  }
  __syncthreads();
  StoreShared(at(group, t), words);
  __syncthreads();
  LoadShared(words, at(1 - group, t));
  out[threadIdx.x] = words[0];
}

TEST(Emulator, FollowsNamedBarriers) {
  const Device device = {0, 80, 8, 163 << 10};
  LaunchConfig config;
  config.grid = dim3(1), config.block = dim3(128), config.device = &device, config.shared_bytes = 128 * 16;
  DeviceArray<uint32_t> out(128);
  uint64_t seed = emulator::Seed();
  for (int i = 0; i < 40; ++i) {
    const bool forgets = i % 2 == 1;
    emulator::TheSettings().seed = seed++, emulator::TheSettings().finds_races = true;
    const cudaError_t error = Launch(config, GroupsKernel, 3, 2 + i % 3, forgets, out.data());
    emulator::TheSettings().finds_races = false;
    const std::string fault = emulator::TakeFault();
    EXPECT_EQ(error == cudaSuccess, !forgets) << fault;
    EXPECT_EQ(fault.find("no barrier orders its") != std::string::npos, forgets) << fault;
  }
}

struct Planted {
  Plant plant;
  const char* found;
};

class EmulatorFinds : public testing::TestWithParam<Planted> {};

// In each of several orders of the threads; one that depends on the order, in at least half of them.
TEST_P(EmulatorFinds, Planted) {
  uint64_t seed = emulator::Seed();
  int found = 0;
  constexpr int kOrders = 20;
  for (int i = 0; i < kOrders; ++i) {
    const std::string fault = FaultOf(GetParam().plant, seed++);
    if (fault.empty()) continue;
    ASSERT_NE(fault.find(GetParam().found), std::string::npos) << fault;
    ++found;
  }
  std::printf("found in %d of %d orders\n", found, kOrders);
  EXPECT_GE(found, kOrders / 2);
}

INSTANTIATE_TEST_SUITE_P(
    , EmulatorFinds,
    testing::Values(Planted{Plant::kNoBarrierAfterWait, "a wrong result"},
                    Planted{Plant::kNoBarrierBeforeReuse, "a wrong result"}, Planted{Plant::kLaxWait, "a wrong result"},
                    Planted{Plant::kNoWait, "without waiting for its asynchronous copies"},
                    Planted{Plant::kWrongMatrixRow, "a wrong result"},
                    Planted{Plant::kMisalignedMatrix, "ldmatrix: shared address"},
                    Planted{Plant::kOutsideMatrix, "is outside"}, Planted{Plant::kMisalignedCopy, "misaligned global"},
                    Planted{Plant::kCopyBehindArray, "outside of an array"}, Planted{Plant::kCopyBehindTile, "shared "},
                    Planted{Plant::kUnreachedBarrier, "threads wait at __syncthreads"},
                    Planted{Plant::kDivergentWarp, "by another"},
                    Planted{Plant::kShuffleOutOfMask, "not in the mask"}));

// These end the process.
TEST(EmulatorDeathTest, FindsPlainAccesses) {
  EXPECT_DEATH(FaultOf(Plant::kReadBehindArray, 1), "heap-buffer-overflow");
  EXPECT_DEATH(FaultOf(Plant::kWriteBehindShared, 1), "heap-buffer-overflow");
  EXPECT_DEATH(FaultOf(Plant::kMisalignedPack, 1), "misaligned address");
}

__global__ void ConflictKernel(int row_bytes, bool swizzled) {
  char* tile = DynamicShared();
  for (int i = static_cast<int>(threadIdx.x); i < 32 * 8; i += 32) {
    reinterpret_cast<float4*>(tile)[i] = make_float4(0, 0, 0, 0);
  }
  __syncwarp();
  const int row = static_cast<int>(threadIdx.x), chunk = swizzled ? row % 8 : 0;
  uint32_t matrices[4];
  LoadMatrices(matrices, SharedAddress(tile + row * row_bytes + 16 * chunk));
}

int64_t Conflicts(int row_bytes, bool swizzled) {
  const Device device = {0, 80, 8, 163 << 10};
  LaunchConfig config;
  config.grid = dim3(1), config.block = dim3(32), config.device = &device, config.shared_bytes = 32 * 128;
  emulator::TakeSharedAccesses();
  EXPECT_EQ(Launch(config, ConflictKernel, row_bytes, swizzled), cudaSuccess) << emulator::TakeFault();
  const emulator::SharedAccesses found = emulator::TakeSharedAccesses();
  EXPECT_EQ(found.accesses, 4);
  return found.conflicts;
}

TEST(Emulator, CountsBankConflicts) {
  EXPECT_EQ(Conflicts(128, true), 0);
  EXPECT_EQ(Conflicts(128, false), 4 * 7);
  EXPECT_EQ(Conflicts(64, false), 4 * 3);
  EXPECT_EQ(Conflicts(16, false), 0);
}

// One tile against sums in double: which lane holds what.
template <class T>
__global__ void MmaKernel(const float* x, const float* w, float* y) {
  constexpr int kPer = 4 / sizeof(T), kK = 8 * kPer;
  const int i = static_cast<int>(threadIdx.x) / 4, j = static_cast<int>(threadIdx.x) % 4;
  const auto pack = [](const float* values) {
    if constexpr (sizeof(T) == 4) {
      return __float_as_uint(values[0]);
    } else {
      return PackPair<T>(values[0], values[1]);
    }
  };
  uint32_t a[4], b[2];
  for (int r = 0; r < 4; ++r) a[r] = pack(x + (i + r % 2 * 8) * kK + j * kPer + r / 2 * kK / 2);
  for (int r = 0; r < 2; ++r) b[r] = pack(w + i * kK + j * kPer + r * kK / 2);
  float d[4] = {};
  Mma<T>(d, a, b[0], b[1]);
  for (int e = 0; e < 4; ++e) y[(i + e / 2 * 8) * 8 + j * 2 + e % 2] = d[e];
}

template <class T>
void TestMma() {
  constexpr int kK = 32 / sizeof(T);
  std::mt19937_64 random(emulator::Seed());
  std::uniform_int_distribution<int> small(-64, 64);  // every sum is exact
  DeviceArray<float> x(16 * kK), w(8 * kK), y(16 * 8);
  for (float& value : x) value = static_cast<float>(small(random));
  for (float& value : w) value = static_cast<float>(small(random));
  const Device device = {0, 80, 8, 163 << 10};
  LaunchConfig config;
  config.grid = dim3(1), config.block = dim3(32), config.device = &device;
  ASSERT_EQ(Launch(config, MmaKernel<T>, x.data(), w.data(), y.data()), cudaSuccess) << emulator::TakeFault();
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const float expected = std::inner_product(&x[row * kK], &x[row * kK] + kK, &w[column * kK], 0.0f);
      EXPECT_EQ(y[row * 8 + column], expected) << row << " " << column;
    }
  }
}

TEST(Emulator, MultipliesHalf) { TestMma<__half>(); }
TEST(Emulator, MultipliesBfloat16) { TestMma<__nv_bfloat16>(); }
TEST(Emulator, MultipliesTf32) { TestMma<float>(); }

}  // namespace
}  // namespace bertfuse::kernels
