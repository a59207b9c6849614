// The cost model on GPUs that nothing was measured on, with made-up tiles: arithmetic alone, no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ops/gemm_cost.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

struct Gpu {
  const char* name;
  kernels::Device device;
};

// From NVIDIA's data sheets and the table of compute capabilities: shared memory of a block and of a multiprocessor,
// L2 cache, boost clock, memory.
const Gpu kGpus[] = {
    {"T4", {-1, 75, 40, 64 << 10, 64 << 10, 4 << 20, 1590, 320}},
    {"A100", {-1, 80, 108, 163 << 10, 164 << 10, 40 << 20, 1410, 2039}},
    {"L4", {-1, 89, 58, 99 << 10, 100 << 10, 48 << 20, 2040, 300}},
    {"RTX 4090", {-1, 89, 128, 99 << 10, 100 << 10, 72 << 20, 2520, 1008}},
    {"H100 PCIe", {-1, 90, 114, 227 << 10, 228 << 10, 50 << 20, 1755, 2039}},
    {"B200", {-1, 100, 148, 227 << 10, 228 << 10, 126 << 20, 1965, 8180}},
};

constexpr int kStageRowBytes = 64;

GemmKernelFacts FactsOf(const kernels::Device& device, const kernels::GemmBlock& block) {
  return {{block},
          kStageRowBytes,
          block.stages * (block.m + block.n) * kStageRowBytes,
          TensorFlopsPerCycle(device.compute_capability),
          64,
          false};
}

// The tiles that a library for many GPUs has.
std::vector<kernels::GemmBlock> Blocks() {
  std::vector<kernels::GemmBlock> blocks;
  for (const auto& [m, n] :
       {std::pair(256, 128), {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {32, 64}, {16, 64}}) {
    for (int stages : {2, 3, 4, 6, 8}) blocks.push_back({m, n, stages, 4});
  }
  return blocks;
}

GemmProblem Product(const Gpu& gpu, int64_t m, int64_t n, int64_t k) {
  return {m, n, k, false, {Backend::kMma}, &gpu.device};
}

double Microseconds(const GemmProblem& problem, const kernels::GemmBlock& block) {
  const GemmTactic tactic = {Backend::kMma, GemmForm::kComplete, {block}};
  return ExpectedMicroseconds(problem, tactic, FactsOf(*problem.device, block));
}

kernels::GemmBlock Cheapest(const GemmProblem& problem) {
  kernels::GemmBlock best = {};
  double least = INFINITY;
  for (const kernels::GemmBlock& block : Blocks()) {
    if (FactsOf(*problem.device, block).shared_bytes > problem.device->shared_bytes) continue;
    const double cost = Microseconds(problem, block);
    if (cost < least) best = block, least = cost;
  }
  return best;
}

TEST(GemmCost, FewRowsTakeSmallTilesAndManyRowsLargeOnes) {
  for (const Gpu& gpu : kGpus) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>(768, 768), {1152, 384}, {3072, 768}, {1024, 4096}}) {
      SCOPED_TRACE(std::string(gpu.name) + ", " + std::to_string(n) + "x" + std::to_string(k));
      const kernels::GemmBlock few = Cheapest(Product(gpu, 16, n, k)), many = Cheapest(Product(gpu, 16384, n, k));
      EXPECT_LE(few.m, 64) << few.m << "x" << few.n;
      EXPECT_LE(few.n, 128) << few.m << "x" << few.n;
      EXPECT_GE(many.m * many.n, 128 * 64) << many.m << "x" << many.n;
      EXPECT_GT(many.m * many.n, few.m * few.n);
      // As many multiprocessors as there can be have a tile.
      const int64_t tiles = kernels::CeilDiv(n, few.n), most = kernels::CeilDiv(n, 64);
      EXPECT_GE(2 * tiles, std::min<int64_t>(most, gpu.device.multiprocessors)) << few.m << "x" << few.n;
    }
  }
}

TEST(GemmCost, NoMoreThanTheDeviceDoes) {
  std::mt19937 random(std::random_device{}());
  const uint32_t seed = random();
  random.seed(seed);
  for (int i = 0; i < 2000; ++i) {
    const Gpu& gpu = kGpus[random() % std::size(kGpus)];
    const GemmProblem problem = Product(gpu, random() % 20000 + 1, 8 * (random() % 512 + 1), 8 * (random() % 512 + 1));
    const double flops = 2.0 * problem.m * problem.n * problem.k;
    const double rate =
        TensorFlopsPerCycle(gpu.device.compute_capability) * gpu.device.multiprocessors * gpu.device.clock_mhz;
    for (const kernels::GemmBlock& block : Blocks()) {
      const double cost = Microseconds(problem, block);
      ASSERT_TRUE(std::isfinite(cost));
      ASSERT_GE(cost, flops / rate) << gpu.name << ", seed " << seed;
      ASSERT_GE(cost, 2.0 * problem.n * problem.k / (gpu.device.memory_gb_s * 1e3)) << gpu.name << ", seed " << seed;
    }
  }
}

// Twice the rows, or twice the k, never take less time with the same tile.
TEST(GemmCost, MoreWorkTakesNoLessTime) {
  std::mt19937 random(std::random_device{}());
  const uint32_t seed = random();
  random.seed(seed);
  for (int i = 0; i < 2000; ++i) {
    const Gpu& gpu = kGpus[random() % std::size(kGpus)];
    const GemmProblem problem = Product(gpu, random() % 8000 + 1, 64 * (random() % 64 + 1), 64 * (random() % 64 + 1));
    GemmProblem longer = problem, taller = problem;
    longer.k *= 2, taller.m *= 2;
    for (const kernels::GemmBlock& block : Blocks()) {
      EXPECT_GE(Microseconds(longer, block), Microseconds(problem, block)) << gpu.name << ", seed " << seed;
      EXPECT_GE(Microseconds(taller, block), Microseconds(problem, block)) << gpu.name << ", seed " << seed;
    }
  }
}

// Whatever the backends list, a device with less shared memory is never given what it has no room for.
TEST(GemmCost, WhatIsChosenFitsSharedMemory) {
  int chosen_ones = 0;
  for (const Gpu& gpu : kGpus) {
    ForRandomProblems([&](GemmProblem problem) {
      problem.device = &gpu.device;
      std::vector<GemmTactic> tactics = GemmTactics(problem);
      tactics.push_back(ChooseGemmTactic(problem).tactic);
      for (const GemmTactic& tactic : tactics) {
        const GemmKernelFacts facts = CandidatesOf(tactic.backend).facts(problem, tactic);
        ASSERT_LE(facts.shared_bytes, gpu.device.shared_bytes) << gpu.name << ", " << Describe(tactic);
      }
      ++chosen_ones;
    });
  }
  EXPECT_GT(chosen_ones, 5000);
}

}  // namespace
}  // namespace bertfuse::cuda
