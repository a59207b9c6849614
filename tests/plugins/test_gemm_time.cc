// Which tactic a product takes unless it is tuned, beside what was measured in whole models. No GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "ops/gemm_tactic.h"
#include "ops/gemm_time.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

enum Epilogue { kBare, kGelu, kNorm };

// The fastest tactics of a product in a whole model, the fastest one first: those within 2.5% of a layer's time, no
// more than seven. H200s, 2026-11-22, two runs' means: the model in a CUDA graph with each tactic of one product in
// turn, the others as they were chosen then. bert-base at 1x131, 1x256, 1x512, 2x300, 4x200, 8x128, 5x300, 3x512,
// 7x300, 24x96 and 20x128, and with 131 packed rows; bert-large's sizes at 1x128, 4x128, 8x128 and 3x512. (Above these
// the GPU is at its power limit, and one tactic's two measurements differ by as much as tactics do.) Where persistent
// blocks of 128 x 128, or blocks of 192 rows, are named first, later runs, some of them of the whole model with all
// that is chosen.
struct Measured {
  int64_t m, n, k;
  Epilogue epilogue;
  int64_t capacity;  // of packed rows
  const char* fastest;
};

// clang-format off
const Measured kMeasured[] = {
    {2100, 2304, 768, kBare, 0,
     "192x192 cluster 1x2; 192x192 cluster 1x1"},
    {2100, 768, 768, kNorm, 0,
     "64x128 cluster 1x6; 128x128 stages 7 cluster 1x1 then LayerNorm"},
    {2100, 3072, 768, kGelu, 0,
     "192x128 cluster 1x1; 192x128 cluster 1x2"},
    {2100, 768, 3072, kNorm, 0,
     "128x128 stages 7 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 3 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 5 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 6 then LayerNorm; 64x128 cluster 1x6"},
    {2304, 2304, 768, kBare, 0,
     "128x192 cluster 2x1; 128x192 cluster 1x1; 128x192 cluster 1x2"},
    {2304, 768, 768, kNorm, 0,
     "128x192 cluster 1x1 then LayerNorm; 128x192 cluster 2x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 2 then LayerNorm; "
     "128x128 stages 7 cluster 1x1 then LayerNorm; 128x96 stages 4 cluster 2x1 then LayerNorm; "
     "128x96 stages 4 cluster 1x1 then LayerNorm"},
    {2304, 3072, 768, kGelu, 0,
     "128x128 stages 3 cluster 1x1; 128x128 stages 3 cluster 2x1"},
    {2304, 768, 3072, kNorm, 0,
     "128x192 cluster 1x1 last wave split-K 3 then LayerNorm; "
     "128x128 stages 7 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 5 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 6 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 6 then LayerNorm"},
    {1536, 2304, 768, kBare, 0,
     "128x128 stages 3 cluster 2x1; 128x128 stages 3 cluster 1x1"},
    {1536, 768, 768, kNorm, 0,
     "128x96 stages 8 cluster 2x1 then LayerNorm; 128x192 cluster 1x1 last wave split-K 2 then LayerNorm; "
     "128x128 stages 7 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 4 then LayerNorm; 64x96 cluster 1x8; 64x128 cluster 1x6"},
    {1536, 3072, 768, kGelu, 0,
     "192x192 cluster 2x1; 192x192 cluster 1x1; 192x192 cluster 1x2"},
    {1536, 768, 3072, kNorm, 0,
     "128x192 cluster 1x1 last wave split-K 5 then LayerNorm; 128x96 stages 8 cluster 2x1 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 4 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 2 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 2 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 4 then LayerNorm"},
    {800, 2304, 768, kBare, 0,
     "128x128 stages 6 cluster 1x1; 128x128 stages 7 cluster 1x1; 128x192 cluster 2x1; 128x192 cluster 1x2; 128x192 cluster 1x1; "
     "128x96 stages 4 cluster 1x1"},
    {800, 768, 768, kNorm, 0,
     "64x96 cluster 2x1 then LayerNorm; 64x96 cluster 1x1 then LayerNorm"},
    {800, 3072, 768, kGelu, 0,
     "128x96 stages 4 cluster 1x1; 128x96 stages 4 cluster 2x1; 128x128 stages 3 cluster 2x1"},
    {800, 768, 3072, kNorm, 0,
     "128x128 stages 6 cluster 1x1 last wave split-K 3 then LayerNorm; 128x192 cluster 1x1 last wave split-K 4 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 4 then LayerNorm; 64x96 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 6 then LayerNorm"},
    {512, 2304, 768, kBare, 0,
     "128x96 stages 8 cluster 2x1; 128x96 stages 8 cluster 1x1; 128x128 stages 7 cluster 2x1; "
     "128x128 stages 7 cluster 1x1"},
    {512, 768, 768, kNorm, 0,
     "64x64 cluster 1x1 then LayerNorm; 64x64 cluster 2x1 then LayerNorm; "
     "128x96 stages 8 cluster 1x1 then LayerNorm"},
    {512, 3072, 768, kGelu, 0,
     "128x96 stages 8 cluster 2x1; 128x96 stages 8 cluster 1x1; 128x128 stages 7 cluster 2x1"},
    {512, 768, 3072, kNorm, 0,
     "64x96 cluster 2x1 split-K 2; 64x96 cluster 1x1 split-K 2; "
     "128x192 cluster 2x1 last wave split-K 6 then LayerNorm"},
    {600, 2304, 768, kBare, 0,
     "128x96 stages 8 cluster 1x1; 128x128 stages 7 cluster 2x1; 128x128 stages 7 cluster 1x1"},
    {600, 768, 768, kNorm, 0,
     "64x96 cluster 1x1 then LayerNorm; 64x96 cluster 2x1 then LayerNorm; "
     "64x64 cluster 2x1 then LayerNorm; 64x64 cluster 1x1 then LayerNorm"},
    {600, 3072, 768, kGelu, 0,
     "128x128 stages 7 cluster 1x1; 128x96 stages 4 cluster 1x1"},
    {600, 768, 3072, kNorm, 0,
     "128x128 stages 6 cluster 1x1 last wave split-K 4 then LayerNorm; 128x192 cluster 1x1 last wave split-K 6 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 5 then LayerNorm; 64x64 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 4 then LayerNorm; 64x64 cluster 2x1 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 4 then LayerNorm"},
    {131, 2304, 768, kBare, 0,
     "64x96 cluster 2x1; 64x64 cluster 1x1"},
    {131, 768, 768, kNorm, 0,
     "64x96 cluster 3x1 then LayerNorm; 64x96 cluster 2x1 then LayerNorm; "
     "64x96 cluster 1x1 then LayerNorm; 64x64 cluster 1x1 then LayerNorm"},
    {131, 3072, 768, kGelu, 0,
     "64x96 cluster 3x1; 64x96 cluster 1x1; 64x96 cluster 2x1"},
    {131, 768, 3072, kNorm, 0,
     "64x96 cluster 3x1 split-K 4; 64x96 cluster 3x1 split-K 3; 64x96 cluster 1x1 split-K 4"},
    {1024, 2304, 768, kBare, 0,
     "128x192 cluster 2x1; 128x96 stages 4 cluster 1x1; 128x96 stages 4 cluster 2x1; 128x192 cluster 1x1; "
     "128x192 cluster 1x2"},
    {1024, 3072, 768, kGelu, 0,
     "128x96 stages 4 cluster 1x1; 128x96 stages 4 cluster 2x1; 128x128 stages 3 cluster 2x1"},
    {1024, 768, 3072, kNorm, 0,
     "128x192 cluster 2x1 last wave split-K 4 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 4 then LayerNorm"},
    {1500, 2304, 768, kBare, 0,
     "128x128 stages 3 cluster 2x1; 128x128 stages 3 cluster 1x1"},
    {1500, 768, 768, kNorm, 0,
     "128x96 stages 8 cluster 2x1 then LayerNorm; 128x192 cluster 1x1 last wave split-K 2 then LayerNorm; "
     "128x128 stages 7 cluster 1x1 then LayerNorm; 64x96 cluster 1x8; 64x128 cluster 1x6; "
     "128x192 cluster 2x1 then LayerNorm"},
    {1500, 3072, 768, kGelu, 0,
     "192x192 cluster 2x1; 128x192 cluster 2x1; 128x192 cluster 1x2; 128x192 cluster 1x1; 128x96 stages 4 cluster 2x1"},
    {1500, 768, 3072, kNorm, 0,
     "128x192 cluster 1x1 last wave split-K 5 then LayerNorm; 128x96 stages 8 cluster 2x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 4 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 2 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 4 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 2 then LayerNorm"},
    {256, 2304, 768, kBare, 0,
     "64x96 cluster 2x1; 64x96 cluster 1x1"},
    {256, 768, 768, kNorm, 0,
     "64x96 cluster 3x1 then LayerNorm; 64x96 cluster 2x1 then LayerNorm; "
     "64x96 cluster 1x1 then LayerNorm"},
    {256, 3072, 768, kGelu, 0,
     "64x96 cluster 2x1; 64x96 cluster 1x1"},
    {256, 768, 3072, kNorm, 0,
     "64x96 cluster 1x1 split-K 4; 64x96 cluster 2x1 split-K 2; 64x96 cluster 1x1 split-K 3; "
     "64x96 cluster 1x1 split-K 2"},
    {1024, 3072, 1024, kBare, 0,
     "128x96 stages 4 cluster 1x1; 128x96 stages 4 cluster 2x1; 128x192 cluster 2x1; 128x192 cluster 1x2; "
     "128x192 cluster 1x1; 128x96 stages 8 cluster 2x1"},
    {1024, 1024, 1024, kNorm, 0,
     "128x96 stages 8 cluster 2x1 then LayerNorm; 128x96 stages 8 cluster 1x1 then LayerNorm; "
     "64x128 cluster 1x8; 128x128 stages 7 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 2 then LayerNorm; "
     "128x128 stages 7 cluster 2x1 then LayerNorm"},
    {1024, 4096, 1024, kGelu, 0,
     "128x128 stages 6 cluster 1x1; 128x128 stages 3 cluster 2x1; 128x128 stages 3 cluster 1x1"},
    {1024, 1024, 4096, kNorm, 0,
     "128x128 stages 6 cluster 1x1 last wave split-K 2 then LayerNorm; 128x96 stages 8 cluster 2x1 then LayerNorm; 128x96 stages 8 cluster 1x1 then LayerNorm"},
    {512, 3072, 1024, kBare, 0,
     "128x96 stages 8 cluster 2x1; 128x96 stages 8 cluster 1x1; 128x128 stages 7 cluster 2x1"},
    {512, 1024, 1024, kNorm, 0,
     "64x96 cluster 2x1 then LayerNorm; 64x96 cluster 1x1 then LayerNorm; "
     "128x96 stages 8 cluster 2x1 then LayerNorm; 128x96 stages 8 cluster 1x1 then LayerNorm; "
     "64x64 cluster 1x1 then LayerNorm; 64x64 cluster 2x1 then LayerNorm"},
    {512, 4096, 1024, kGelu, 0,
     "128x128 stages 7 cluster 2x1; 128x96 stages 4 cluster 2x1; 128x128 stages 7 cluster 1x1"},
    {512, 1024, 4096, kNorm, 0,
     "128x128 stages 6 cluster 1x1 last wave split-K 4 then LayerNorm; 128x192 cluster 1x1 last wave split-K 5 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 4 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 6 then LayerNorm; 64x64 cluster 2x1 then LayerNorm; "
     "64x64 cluster 1x1 then LayerNorm"},
    {128, 3072, 1024, kBare, 0,
     "64x64 cluster 2x1; 64x64 cluster 1x1"},
    {128, 1024, 1024, kNorm, 0,
     "64x64 cluster 1x1 then LayerNorm; 64x64 cluster 2x1 then LayerNorm"},
    {128, 4096, 1024, kGelu, 0,
     "64x64 cluster 2x1; 64x64 cluster 1x1"},
    {128, 1024, 4096, kNorm, 0,
     "64x96 cluster 1x1 split-K 4; 64x96 cluster 1x1 split-K 3"},
    {1536, 3072, 1024, kBare, 0,
     "192x192 cluster 2x1; 128x192 cluster 2x1; 128x192 cluster 1x1; 128x192 cluster 1x2; 128x96 stages 4 cluster 2x1; "
     "128x96 stages 4 cluster 1x1; 128x128 stages 3 cluster 1x1"},
    {1536, 1024, 1024, kNorm, 0,
     "128x96 stages 8 cluster 2x1 then LayerNorm; 128x128 stages 7 cluster 1x1 then LayerNorm; "
     "64x128 cluster 1x8"},
    {1536, 4096, 1024, kGelu, 0,
     "128x96 stages 4 cluster 2x1; 128x96 stages 4 cluster 1x1; 128x192 cluster 2x1"},
    {1536, 1024, 4096, kNorm, 0,
     "192x128 cluster 1x1 last wave split-K 2 then LayerNorm; 128x96 stages 8 cluster 2x1 then LayerNorm; 128x128 stages 7 cluster 1x1 then LayerNorm"},
    {131, 2304, 768, kBare, 308,
     "64x96 cluster 2x1; 64x96 cluster 3x1"},
    {131, 768, 768, kNorm, 308,
     "64x96 cluster 3x1 then LayerNorm; 64x96 cluster 2x1 then LayerNorm; "
     "64x64 cluster 1x1 then LayerNorm; 64x96 cluster 1x1 then LayerNorm; "
     "64x64 cluster 2x1 then LayerNorm"},
    {131, 3072, 768, kGelu, 308,
     "64x96 cluster 3x1; 64x96 cluster 2x1; 64x96 cluster 1x1"},
    {131, 768, 3072, kNorm, 308,
     "64x96 cluster 3x1 split-K 4; 64x96 cluster 1x1 split-K 3; 64x96 cluster 1x1 split-K 4; "
     "64x96 cluster 3x1 split-K 3"},
    {2560, 2304, 768, kBare, 0,
     "128x192 cluster 2x1; 128x192 cluster 1x1; 128x192 cluster 1x2; 128x96 stages 4 cluster 2x1"},
    {2560, 768, 768, kNorm, 0,
     "128x192 cluster 2x1 then LayerNorm; 128x192 cluster 1x1 then LayerNorm; "
     "128x128 stages 7 cluster 1x1 then LayerNorm; 128x96 stages 4 cluster 1x1 then LayerNorm; "
     "128x96 stages 4 cluster 2x1 then LayerNorm"},
    {2560, 3072, 768, kGelu, 0,
     "128x128 stages 3 cluster 1x1; 128x128 stages 3 cluster 2x1; 128x192 cluster 1x1; "
     "128x192 cluster 2x1"},
    {2560, 768, 3072, kNorm, 0,
     "128x128 stages 7 cluster 1x1 then LayerNorm; "
     "128x192 cluster 1x1 last wave split-K 3 then LayerNorm; "
     "128x192 cluster 2x1 last wave split-K 6 then LayerNorm"},
};
// clang-format on

TEST(GemmTime, WhatIsChosenIsAmongTheFastestInModels) {
  for (const Measured& one : kMeasured) {
    GemmProblem problem = Bert(one.m, one.n, one.k, one.epilogue == kNorm);
    problem.capacity = one.capacity, problem.gelu = one.epilogue == kGelu;
    const std::string chosen = ProductName(ChooseGemmTactic(problem));
    std::set<std::string> fastest;
    std::istringstream names(one.fastest);
    for (std::string name; std::getline(names >> std::ws, name, ';');) fastest.insert("sm90 " + name);
    EXPECT_EQ(fastest.count(chosen), 1u) << Name(problem) << ": " << chosen;
    std::set<std::string> listed;
    for (const GemmTactic& tactic : GemmTactics(problem)) listed.insert(ProductName(tactic));
    for (const std::string& name : fastest) EXPECT_EQ(listed.count(name), 1u) << name;
  }
}

// Few rows have rules of their own.
bool HasFewRows(const GemmProblem& problem) {
  const int64_t tiles = kernels::CeilDiv(problem.m, 64) * kernels::CeilDiv(problem.n, 96);
  return tiles <= problem.multiprocessors && !HasLongK(problem);
}

TEST(GemmTime, TheChosenOneIsExpectedToTakeTheLeastTime) {
  std::mt19937 random(6);
  std::set<std::string> chosen_ones;
  ForRandomProblems([&](GemmProblem problem) {
    problem.gelu = random() % 2 == 0;
    if (random() % 3 == 0) problem.capacity = problem.m + static_cast<int64_t>(random() % 5000);
    if (random() % 3 == 0) problem.workspace = size_t{1} << random() % 26;
    const size_t most = problem.capacity > 0 ? std::min<size_t>(problem.workspace, 64 << 20) : problem.workspace;
    const GemmTactic chosen = ChooseGemmTactic(problem);
    EXPECT_LE(GemmWorkspaceSize(problem, chosen), most) << Describe(chosen);
    EXPECT_EQ(Describe(ChooseGemmTactic(problem)), Describe(chosen));  // once more, as it is remembered
    chosen_ones.insert(Describe(chosen));
    if (HasFewRows(problem)) return;
    const double expected = ExpectedTime(problem, chosen);
    ASSERT_TRUE(std::isfinite(expected)) << Describe(chosen);
    EXPECT_GT(expected, 0.0) << Describe(chosen);
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      if (GemmWorkspaceSize(problem, tactic) > most) continue;
      EXPECT_LE(expected, ExpectedTime(problem, tactic)) << Describe(chosen) << " or " << Describe(tactic);
    }
  });
  EXPECT_GT(chosen_ones.size(), 25u);
}

// A choice that depends on what it is remembered for: each of a problem's fields tells two problems apart.
TEST(GemmTime, RememberedChoicesAreOfTheSameProblem) {
  const GemmProblem first = Bert(4225, 768, 3072, true);
  GemmProblem packed = first, deterministic = first, short_of_workspace = first;
  packed.capacity = 5000, deterministic.deterministic_rows = true, short_of_workspace.workspace = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(ChooseGemmTactic(first).tile.splits, 1);
    EXPECT_GT(ChooseGemmTactic(packed).tile.splits, 1);
    EXPECT_EQ(ChooseGemmTactic(deterministic).tile.splits, 1);
    EXPECT_EQ(ChooseGemmTactic(short_of_workspace).tile.splits, 1);
  }
}

}  // namespace
}  // namespace bertfuse::cuda
