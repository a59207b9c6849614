// How products are computed on devices without wgmma: arithmetic alone, no GPU is needed.
#include <gtest/gtest.h>

#include <string>

#include "kernels/mma/gemm.h"
#include "ops/gemm_candidates.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

struct Gpu {
  const char* name;
  kernels::Device device;
};
// NVIDIA's data sheets: multiprocessors, shared memory, L2 cache, boost clock, memory.
const Gpu kGpus[] = {{"A100", {-1, 80, 108, 163 << 10, 164 << 10, 40 << 20, 1410, 2039}},
                     {"A10", {-1, 86, 72, 99 << 10, 100 << 10, 6 << 20, 1695, 600}},
                     {"L4", {-1, 89, 58, 99 << 10, 100 << 10, 48 << 20, 2040, 300}},
                     {"B200", {-1, 100, 148, 227 << 10, 228 << 10, 126 << 20, 1965, 8000}},
                     {"RTX 5090", {-1, 120, 170, 99 << 10, 100 << 10, 96 << 20, 2407, 1792}}};

GemmProblem On(const Gpu& gpu, GemmProblem problem) {
  problem.backends = Portable(true);
  problem.device = &gpu.device;
  return problem;
}

// Of tiles whose groups of warps share k.
int SlicesOf(const GemmProblem& problem, const kernels::GemmBlock& block) {
  const bool is_sliced = block.long_stages && block.m * block.n <= 64 * 96 && !(block.m == 64 && block.n == 64);
  const bool is_exact = problem.x_bytes == 4 && !problem.allow_tf32;
  return !is_sliced ? 1 : is_exact && block.n == 48 ? 2 : 4;
}

template <class Visit>
void ForRandomProblemsOnGpus(Visit&& visit) {
  std::mt19937 random(2);
  ForRandomProblems([&](GemmProblem problem) {
    const int type = static_cast<int>(random() % 5);
    const bool is_float = type == 1 || type == 2 || type == 4;
    if (is_float) problem.x_bytes = problem.y_bytes = 4, problem.layer_norm_vector = 4;
    if (type > 2) problem.x_bytes = 1;  // of quantised operands
    problem.allow_tf32 = type == 1;
    visit(On(kGpus[random() % std::size(kGpus)], problem));
  });
}

TEST(GemmMmaTactic, BlocksFitTheMultiprocessor) {
  ForRandomProblemsOnGpus([](const GemmProblem& problem) {
    std::vector<GemmTactic> tactics;
    kMmaCandidates.list(problem, &tactics);
    ASSERT_FALSE(tactics.empty());
    for (const GemmTactic& tactic : tactics) {
      const kernels::GemmBlock& block = tactic.tile.block;
      const int vectors = problem.x_bytes == 1 ? 2 : 1;  // bias, scales
      const int row_bytes = block.long_stages ? 128 : 64, slices = SlicesOf(problem, block);
      const int rings = slices * block.stages * (block.m + block.n) * row_bytes;
      const int bytes = std::max(rings, slices == 1 ? 0 : slices * block.m * block.n * 4) + vectors * block.n * 4;
      EXPECT_LE(bytes, problem.device->shared_bytes) << Describe(tactic);
      EXPECT_LE(block.per_multiprocessor * (bytes + 1024), problem.device->shared_bytes + 1024) << Describe(tactic);
      EXPECT_GE(block.stages, slices == 1 ? 3 : 2) << Describe(tactic);
      const int64_t stages = kernels::CeilDiv(problem.k * problem.x_bytes, row_bytes);
      EXPECT_LT((tactic.tile.splits - 1) * kernels::CeilDiv(stages, tactic.tile.splits), stages) << Describe(tactic);
      EXPECT_EQ(kMmaCandidates.facts(problem, tactic).shared_bytes, bytes);
    }
  });
}

// As shared memory allows; none without cp.async.
TEST(GemmMmaTactic, LongStages) {
  // Tile, stages, blocks of a multiprocessor.
  const std::vector<std::string> of_164_kb = {
      "mma 256x128 long stages: 3, 1",        "mma 128x128 stages 4 long stages: 4, 1",
      "mma 128x64 long stages: 3, 2",         "mma 64x64 long stages: 3, 3",
      "mma 64x32 stages 3 long stages: 3, 1", "mma 64x48 stages 2 long stages: 2, 1",
      "mma 64x96 stages 2 long stages: 2, 1", "mma 32x32 long stages: 2, 2"};
  const std::vector<std::string> of_99_kb = {
      "mma 128x128 stages 3 long stages: 3, 1", "mma 128x64 stages 4 long stages: 4, 1", "mma 64x64 long stages: 3, 2",
      "mma 64x32 stages 2 long stages: 2, 1", "mma 32x32 stages 3 long stages: 3, 1"};
  const std::vector<std::string> of_227_kb = {
      "mma 256x128 long stages: 4, 1",        "mma 128x128 long stages: 3, 2", "mma 128x64 long stages: 3, 3",
      "mma 64x64 long stages: 3, 4",          "mma 64x32 long stages: 2, 2",   "mma 64x48 stages 4 long stages: 4, 1",
      "mma 64x96 stages 2 long stages: 2, 1", "mma 32x32 long stages: 3, 2"};
  for (const Gpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    std::vector<std::string> found;
    const GemmProblem problem = On(gpu, Bert(4096, 2304, 768, false));
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      const kernels::GemmBlock& block = tactic.tile.block;
      if (!block.long_stages) continue;
      EXPECT_TRUE(FindGemmTactic(problem, Describe(tactic)).has_value()) << Describe(tactic);
      found.push_back(Describe(tactic) + ": " + std::to_string(block.stages) + ", " +
                      std::to_string(block.per_multiprocessor));
    }
    const int kb = gpu.device.shared_bytes >> 10;
    if (gpu.device.compute_capability < 80) {
      EXPECT_TRUE(found.empty());
    } else {
      EXPECT_EQ(found, kb == 163 ? of_164_kb : kb == 227 ? of_227_kb : of_99_kb);
    }
  }
}

TEST(GemmMmaTactic, TheChosenOneIsListedAndFits) {
  ForRandomProblemsOnGpus([](GemmProblem problem) {
    for (const bool deterministic : {false, true}) {
      problem.deterministic_rows = deterministic;
      std::vector<std::string> names;
      for (const GemmTactic& tactic : GemmTactics(problem)) names.push_back(Describe(tactic));
      const GemmTactic usual = ChooseGemmTactic(problem).tactic;
      EXPECT_EQ(std::count(names.begin(), names.end(), Describe(usual)), 1) << Describe(usual);
      EXPECT_TRUE(IsDeterministicByRow(problem, usual)) << Describe(usual);
      // What a layer of an engine that was built without a GPU gets.
      problem.workspace = static_cast<size_t>(problem.m) * problem.n * sizeof(float);
      const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
      EXPECT_LE(GemmWorkspaceSize(problem, chosen), problem.workspace) << Describe(chosen);
      problem.workspace = SIZE_MAX;
    }
  });
}

// Tiles whose groups of warps share k are among the tactics, but add up a row in another order than the others.
TEST(GemmMmaTactic, NoSlicesWhereRowsAreDeterministic) {
  int chosen = 0;
  ForRandomProblemsOnGpus([&](GemmProblem problem) {
    const auto is_sliced = [&problem](const GemmTactic& tactic) {
      return tactic.backend == Backend::kMma && SlicesOf(problem, tactic.tile.block) > 1;
    };
    chosen += is_sliced(ChooseGemmTactic(problem).tactic);
    problem.deterministic_rows = true;
    EXPECT_FALSE(is_sliced(ChooseGemmTactic(problem).tactic));
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      EXPECT_FALSE(is_sliced(tactic) && IsDeterministicByRow(problem, tactic)) << Describe(tactic);
    }
  });
  EXPECT_GT(chosen, 0);
}

// A row's bits must not depend on how many others there are.
TEST(GemmMmaTactic, DeterministicRowsAreNeverSplit) {
  ForRandomProblemsOnGpus([](GemmProblem problem) {
    problem.deterministic_rows = true;
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_EQ(chosen.tile.splits, 1);
    problem.m = problem.m % 97 + 1;
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.form, chosen.form);
  });
}

std::string Chosen(const Gpu& gpu, int64_t m, int64_t n, int64_t k, bool layer_norm) {
  return ProductName(ChooseGemmTactic(On(gpu, Bert(m, n, k, layer_norm))).tactic);
}

// Not measured: what the count of instructions and bytes comes to, so that a change to it shows.
TEST(GemmMmaTactic, LargeTilesForManyRowsAndSplitsForFew) {
  for (const Gpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    const std::string few = Chosen(gpu, 32, 768, 3072, true), many = Chosen(gpu, 16384, 3072, 768, false);
    const bool waits_for_memory = gpu.device.memory_gb_s < 500;  // for the weight, split or not
    EXPECT_TRUE(waits_for_memory || few.find("split-K") != std::string::npos) << few;
    const std::string tile = many.substr(0, many.find(" long"));
    EXPECT_TRUE(tile == "mma 256x128" || tile == "mma 128x256" || tile == "mma 128x128") << many;
    std::printf("%s:", gpu.name);
    for (int64_t m : {32, 128, 512, 2048, 8192}) {
      std::printf(" %d rows: %s, %s, %s;", static_cast<int>(m), Chosen(gpu, m, 2304, 768, false).c_str(),
                  Chosen(gpu, m, 768, 768, true).c_str(), Chosen(gpu, m, 768, 3072, true).c_str());
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace bertfuse::cuda
