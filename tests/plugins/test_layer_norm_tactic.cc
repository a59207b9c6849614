// Which kernel does LayerNorm after a product, in a launch of its own. No GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/layer_norm_tactic.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

using kernels::LayerNormKernel;

// Of every kind: with GELU, packed, float32, vectors on 8 and 2 bytes, other GPUs than Hopper.
template <class Visit>
void ForRandomLayerNorms(Visit&& visit) {
  std::mt19937 random(7);
  ForRandomProblems([&](GemmProblem problem) {
    if (!problem.layer_norm) return;
    if (random() % 2 == 0) problem.n = 8 * static_cast<int64_t>(random() % 128 + 1);  // most are too wide for a warp
    problem.gelu = random() % 2 == 0;
    if (random() % 3 == 0) problem.capacity = problem.m + static_cast<int64_t>(random() % 5000);
    problem.layer_norm_vector = random() % 3 == 0 ? 4 : 8;
    if (random() % 3 == 0) {
      problem.backends = Portable(random() % 2 == 0);
      if (random() % 2 == 0) problem.x_bytes = problem.y_bytes = 4;
      const int vectors[] = {1, 4, problem.y_bytes == 2 ? 8 : 4};
      problem.layer_norm_vector = vectors[random() % 3];
    }
    visit(problem);
  });
}

TEST(LayerNormTactic, WhatIsListedRuns) {
  int alone = 0, with_other = 0;
  ForRandomLayerNorms([&](const GemmProblem& problem) {
    std::set<std::string> names;
    const std::vector<GemmTactic> tactics = GemmTactics(problem);
    for (const GemmTactic& tactic : tactics) {
      names.insert(Describe(tactic));
      ASSERT_EQ(tactic.layer_norm.has_value(), LayerNormIsALaunch(problem, tactic)) << Describe(tactic);
      if (!tactic.layer_norm) continue;
      const kernels::LayerNormProblem norm = LayerNormAfter(problem, tactic);
      const bool too_wide = problem.n > kernels::MaxRowColumns(problem.layer_norm_vector == 1 ? 1 : 4);
      EXPECT_NE(LayerNormSupports(*tactic.layer_norm, norm), too_wide) << Describe(tactic);
      const std::vector<LayerNormKernel> listed = LayerNormKernels(problem, tactic);
      EXPECT_EQ(std::count(listed.begin(), listed.end(), ChooseLayerNormKernel(problem, tactic)), 1);
      const bool persistent = LayerNormSupports(LayerNormKernel::kPersistentWarps, norm);
      const bool few = LayerNormSupports(LayerNormKernel::kPersistentWarpsFewPartials, norm);
      const bool warps = persistent || LayerNormSupports(LayerNormKernel::kWarpPerRow, norm);
      EXPECT_EQ(few, persistent && norm.more_partials > 1) << Describe(tactic);
      EXPECT_EQ(listed.size(), 1u + warps + few) << Describe(tactic);
      alone += !warps, with_other += warps;
    }
    EXPECT_EQ(names.size(), tactics.size());
    EXPECT_EQ(names.count(Describe(ChooseGemmTactic(problem).tactic)), 1u);
  });
  EXPECT_GT(alone, 1000);
  EXPECT_GT(with_other, 1000);
}

// Rows that must have the same bits in every batch get their bias from the norm: products begin or end with one. So do
// those whose product is split along k, or cuBLASLt's.
TEST(LayerNormTactic, WhoAddsTheBias) {
  int by_product = 0, by_norm = 0;
  std::mt19937 random(9);
  ForRandomLayerNorms([&](GemmProblem problem) {
    problem.deterministic_rows = random() % 2 == 0;
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      const bool whole = tactic.form == GemmForm::kRounded && tactic.tile.splits == 1;
      const bool product =
          whole && tactic.backend != Backend::kCublasLt && !(problem.deterministic_rows && !problem.gelu);
      EXPECT_EQ(ActivatesProduct(problem, tactic), product) << Describe(tactic);
      EXPECT_EQ(LayerNormAfter(problem, tactic).has_activation, problem.gelu && !product) << Describe(tactic);
      by_product += product, by_norm += whole && !product;
    }
  });
  EXPECT_GT(by_product, 1000);
  EXPECT_GT(by_norm, 1000);
}

// The limits: two rows for each multiprocessor for persistent warps, half a row behind mma.sync without code for 9.0,
// four with several partial sums, 16 for the other warps. Where most rows have no partial sums, more persistent warps
// run at a time.
TEST(LayerNormTactic, TheNumberOfRowsChooses) {
  std::mt19937 random(8);
  std::set<LayerNormKernel> chosen;
  ForRandomLayerNorms([&](GemmProblem problem) {
    const int64_t each = problem.device->multiprocessors, limits[] = {2 * each, 4 * each, 16 * each};
    if (random() % 2 == 0) problem.m = limits[random() % 3] - static_cast<int64_t>(random() % 2);
    problem.capacity = problem.capacity == 0 ? 0 : problem.m + static_cast<int64_t>(random() % 5000);
    problem.deterministic_rows = random() % 4 == 0;
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      if (!tactic.layer_norm) continue;
      const bool rounded = tactic.form == GemmForm::kRounded;
      const bool partials = rounded && tactic.tile.splits > 1;
      const bool persistent =
          rounded && problem.layer_norm_vector == 8 && problem.n <= 1024 && !(problem.gelu && partials);
      const bool warp = problem.layer_norm_vector >= 4 && problem.n <= 1024 && !partials;
      const auto at_least = [&](double rows) {
        return problem.deterministic_rows || static_cast<double>(problem.m) >= rows * problem.device->multiprocessors;
      };
      const double few_rows = tactic.backend == Backend::kMma && !problem.backends.Has(Backend::kSm90) ? 0.5 : 2;
      const bool several = rounded && tactic.tile.splits > 2;
      const bool few = several && 2 * UnsplitRows(problem, tactic) > problem.m;
      const LayerNormKernel wanted =
          persistent && at_least(several ? 4 : few_rows)
              ? few ? LayerNormKernel::kPersistentWarpsFewPartials : LayerNormKernel::kPersistentWarps
          : warp && at_least(16) ? LayerNormKernel::kWarpPerRow
                                 : LayerNormKernel::kBlockPerRow;
      EXPECT_EQ(Describe(ChooseLayerNormKernel(problem, tactic)), Describe(wanted)) << Describe(tactic);
      chosen.insert(wanted);
    }
    const GemmTactic usual = ChooseGemmTactic(problem).tactic;
    if (usual.layer_norm) {
      EXPECT_EQ(*usual.layer_norm, ChooseLayerNormKernel(problem, usual)) << Describe(usual);
    }
  });
  EXPECT_EQ(chosen.size(), 4u);
}

// Packed rows: by how many are expected, not by how many there may be.
TEST(LayerNormTactic, ExpectedRowsCount) {
  GemmProblem problem = Bert(128, 768, 768, true);
  problem.capacity = 16384;
  EXPECT_EQ(ChooseGemmTactic(problem).tactic.layer_norm, LayerNormKernel::kBlockPerRow);
  problem.m = 600;
  EXPECT_EQ(ChooseGemmTactic(problem).tactic.layer_norm, LayerNormKernel::kPersistentWarps);
}

// One kernel for any number of rows, whatever a tuning file names.
TEST(LayerNormTactic, DeterministicRowsHaveOneKernel) {
  std::mt19937 random(9);
  ForRandomLayerNorms([&](GemmProblem problem) {
    problem.deterministic_rows = true;
    const LayerNormKernel kernel = *ChooseGemmTactic(problem).tactic.layer_norm;
    for (GemmTactic tactic : GemmTactics(problem)) {
      if (!IsDeterministicByRow(problem, tactic)) continue;
      EXPECT_EQ(Describe(*tactic.layer_norm), Describe(kernel)) << Describe(tactic);
      tactic.layer_norm = LayerNormKernel::kBlockPerRow;
      EXPECT_EQ(WithLayerNormKernel(problem, tactic).layer_norm, kernel);
      EXPECT_EQ(IsDeterministicByRow(problem, tactic), kernel == LayerNormKernel::kBlockPerRow);
    }
    problem.m = static_cast<int64_t>(random() % 5000) + 1;
    EXPECT_EQ(*ChooseGemmTactic(problem).tactic.layer_norm, kernel);
  });
}

// A tuned tactic on vectors of another alignment keeps its product.
TEST(LayerNormTactic, AKernelThatDoesNotRunIsReplaced) {
  GemmProblem problem = Bert(1024, 768, 768, true);
  const kernels::GemmBlock small = {64, 96, 10, 1};
  const GemmTactic tuned = {Backend::kSm90, GemmForm::kRounded, {small, 2, 1, 1}, LayerNormKernel::kPersistentWarps};
  EXPECT_EQ(Describe(WithLayerNormKernel(problem, tuned)), Describe(tuned));
  problem.layer_norm_vector = 4;
  const GemmTactic replaced = WithLayerNormKernel(problem, tuned);
  EXPECT_EQ(replaced.layer_norm, LayerNormKernel::kBlockPerRow);
  EXPECT_EQ(ProductName(replaced), ProductName(tuned));
  const GemmTactic in_one_launch = {Backend::kSm90, GemmForm::kComplete, {{64, 128, 4, 2}, 1, 6, 1}, {}};
  EXPECT_FALSE(WithLayerNormKernel(problem, in_one_launch).layer_norm.has_value());
}

TEST(LayerNormTactic, RowsThatNoKernelTakes) {
  kernels::LayerNormProblem norm = {8192, 2, 1, false, 0, false};
  EXPECT_TRUE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
  norm.columns = 8193;
  EXPECT_FALSE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
  norm = {32768, 2, 8, true, 0, false};
  EXPECT_TRUE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
  EXPECT_FALSE(LayerNormSupports(LayerNormKernel::kWarpPerRow, norm));
  norm.columns = 32776;
  EXPECT_FALSE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
  norm = {4096, 2, 8, true, kernels::kMaxMorePartials, false};
  EXPECT_TRUE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
  norm.columns = 4104;
  EXPECT_FALSE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
  norm = {768, 2, 8, true, kernels::kMaxMorePartials + 1, false};
  EXPECT_FALSE(LayerNormSupports(LayerNormKernel::kPersistentWarps, norm));
  norm = {768, 4, 4, true, 0, false};  // float32 is never rounded
  EXPECT_FALSE(LayerNormSupports(LayerNormKernel::kBlockPerRow, norm));
}

// Stands for a type of two bytes: addresses are compared, nothing is read.
TEST(LayerNormTactic, ElementsAreReadAtATimeWhereAllPointersAllowIt) {
  const auto vector = [](int64_t columns, uintptr_t bias, uintptr_t y, uintptr_t partials) {
    kernels::LayerNormArguments<int16_t> a = {};
    a.columns = columns;
    a.bias = reinterpret_cast<const int16_t*>(bias), a.y = reinterpret_cast<int16_t*>(y);
    a.float_partials = reinterpret_cast<const float*>(partials);
    return kernels::LayerNormVector(a);
  };
  EXPECT_EQ(vector(768, 0, 256, 512), 8);
  EXPECT_EQ(vector(772, 0, 256, 512), 4);
  EXPECT_EQ(vector(770, 0, 256, 512), 1);
  EXPECT_EQ(vector(768, 8, 256, 512), 4);
  EXPECT_EQ(vector(768, 0, 260, 512), 1);
  EXPECT_EQ(vector(768, 0, 256, 520), 1);
  kernels::LayerNormArguments<float> a = {};
  a.columns = 768;
  EXPECT_EQ(kernels::LayerNormVector(a), 4);
  a.gamma = reinterpret_cast<const float*>(uintptr_t{8});
  EXPECT_EQ(kernels::LayerNormVector(a), 1);
}

}  // namespace
}  // namespace bertfuse::cuda
