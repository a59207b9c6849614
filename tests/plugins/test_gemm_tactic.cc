// How a matrix product is computed, for random problems: arithmetic alone, no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/gemm_tactic.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

TEST(GemmTactic, TheChosenOneIsListed) {
  ForRandomProblems([](const GemmProblem& problem) {
    std::set<std::string> names;
    const std::vector<GemmTactic> tactics = GemmTactics(problem);
    for (const GemmTactic& tactic : tactics) names.insert(Describe(tactic));
    EXPECT_EQ(names.size(), tactics.size());
    EXPECT_EQ(names.count(Describe(ChooseGemmTactic(problem))), 1u) << Describe(ChooseGemmTactic(problem));
  });
}

TEST(GemmTactic, PartsAreOfRowsAtTheEnd) {
  ForRandomProblems([](const GemmProblem& problem) {
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      const bool in_parts = tactic.path == GemmPath::kSm90ThenLayerNorm && tactic.tile.splits > 1;
      const int64_t whole = UnsplitRows(problem, tactic);
      if (!in_parts) {
        EXPECT_EQ(whole, problem.m);
        continue;
      }
      ASSERT_LT(whole, problem.m) << Describe(tactic);
      EXPECT_EQ(whole % (tactic.tile.cluster_m * tactic.tile.block.m), 0) << Describe(tactic);
      EXPECT_EQ(GemmWorkspaceSize(problem, tactic),
                2u * static_cast<size_t>((problem.m - whole) * problem.n * (tactic.tile.splits - 1)));
    }
  });
}

// The host may expect any number of packed rows, and there may be any other.
TEST(GemmTactic, PackedRowsHaveACapacityWhateverTheirNumber) {
  std::mt19937 random(5);
  ForRandomProblems([&](GemmProblem problem) {
    problem.capacity = problem.m;
    const std::vector<GemmTactic> of_capacity = GemmTactics(problem);
    problem.m = random() % problem.capacity + 1;
    const std::vector<GemmTactic> tactics = GemmTactics(problem);
    ASSERT_EQ(tactics.size(), of_capacity.size());
    std::set<std::string> names;
    for (size_t i = 0; i < tactics.size(); ++i) {
      names.insert(Describe(tactics[i]));
      EXPECT_EQ(Describe(tactics[i]), Describe(of_capacity[i]));
      GemmProblem padded = problem;
      padded.capacity = 0, padded.m = random() % problem.capacity + 1;
      EXPECT_GE(GemmWorkspaceSize(problem, tactics[i]), GemmWorkspaceSize(padded, tactics[i]))
          << Describe(tactics[i]) << ", " << padded.m << " of " << problem.capacity;
    }
    const GemmTactic chosen = ChooseGemmTactic(problem);
    EXPECT_EQ(names.count(Describe(chosen)), 1u) << Describe(chosen);
    if (chosen.path != GemmPath::kSimt && chosen.path != GemmPath::kMma) {
      EXPECT_LE(GemmWorkspaceSize(problem, chosen), 64u << 20) << Describe(chosen);
    }
  });
}

// By how many rows are expected, with workspace for all of them.
TEST(GemmTactic, PackedRowsAreChosenForAsTheyAreExpected) {
  GemmProblem problem = Bert(128, 768, 3072, true);
  problem.capacity = 512;
  EXPECT_EQ(Describe(ChooseGemmTactic(problem)), Describe(ChooseGemmTactic(Bert(128, 768, 3072, true))));
  problem.capacity = 16384;  // float32 partial sums would take 201 MB
  EXPECT_EQ(Describe(ChooseGemmTactic(problem)).find("split-K 4"), std::string::npos);
}

TEST(GemmTactic, EveryPartHasSomething) {
  ForRandomProblems([](const GemmProblem& problem) {
    const int64_t stages = kernels::CeilDiv(problem.k * problem.x_bytes, kernels::kStageRowBytes);
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      if (tactic.path == GemmPath::kSimt || tactic.path == GemmPath::kMma) continue;
      const int splits = tactic.tile.splits;
      EXPECT_LT((splits - 1) * kernels::CeilDiv(stages, splits), stages) << Describe(tactic);
      EXPECT_LE(tactic.tile.cluster_m * tactic.tile.cluster_n, kernels::kMaxCluster) << Describe(tactic);
    }
  });
}

// Waves of all clusters, each as long as its longest piece.
double WavesTaken(const GemmProblem& problem, const GemmTactic& tactic) {
  const kernels::GemmSm90Tile& tile = tactic.tile;
  const int64_t clusters = std::max(problem.multiprocessors / tile.cluster_m, 1);
  const auto tiles = [&](int64_t rows) {
    return kernels::CeilDiv(rows, tile.cluster_m * tile.block.m) * kernels::CeilDiv(problem.n, tile.block.n);
  };
  const int64_t whole = UnsplitRows(problem, tactic);
  const double parts = kernels::CeilDiv(tiles(problem.m - whole) * tile.splits, clusters);
  return kernels::CeilDiv(tiles(whole), clusters) + parts / tile.splits;
}

TEST(GemmTactic, PartsAreChosenWhereTheyTakeLess) {
  int in_parts = 0;
  ForRandomProblems([&](const GemmProblem& problem) {
    GemmTactic chosen = ChooseGemmTactic(problem);
    if (chosen.path != GemmPath::kSm90ThenLayerNorm || chosen.tile.splits == 1) return;
    const double taken = WavesTaken(problem, chosen);
    chosen.tile.splits = 1;
    EXPECT_LT(taken, WavesTaken(problem, chosen)) << Describe(chosen);
    ++in_parts;
  });
  EXPECT_GT(in_parts, 10);
}

// As in an engine that was built elsewhere: whatever there is, the choice fits, and is the usual one where that does.
TEST(GemmTactic, AShortWorkspaceIsEnoughForTheHopperTactics) {
  int changed = 0;
  ForRandomProblems([&](GemmProblem problem) {
    const GemmTactic usual = ChooseGemmTactic(problem);
    const size_t wanted = GemmWorkspaceSize(problem, usual);
    for (size_t given : {size_t{0}, wanted / 2, wanted == 0 ? 0 : wanted - 1, wanted}) {
      problem.workspace = given;
      const GemmTactic chosen = ChooseGemmTactic(problem);
      EXPECT_LE(GemmWorkspaceSize(problem, chosen), given) << Describe(chosen);
      if (given == wanted) {
        EXPECT_EQ(Describe(chosen), Describe(usual));
      }
      changed += Describe(chosen) != Describe(usual);
    }
  });
  EXPECT_GT(changed, 50);
}

TEST(GemmTactic, AShortWorkspaceTakesAsManyPartsAsFit) {
  GemmProblem problem = Bert(128, 768, 3072, true);  // four splits of k in float32, if they fit
  const auto chosen = [&](size_t parts) {
    problem.workspace = parts * 128 * 768 * sizeof(float);
    return ProductName(ChooseGemmTactic(problem));
  };
  EXPECT_EQ(chosen(4), "sm90 64x96 cluster 1x1 split-K 4");
  EXPECT_EQ(chosen(3), "sm90 64x96 cluster 1x1 split-K 3");
  EXPECT_EQ(chosen(0).find("split-K"), std::string::npos) << chosen(0);
}

// Whatever the number of rows: no split of k, one place where the bias is added, rounding or none before LayerNorm.
TEST(GemmTactic, DeterministicRowsAreComputedAlike) {
  int persistent = 0, one_tile = 0;
  ForRandomProblems([&](GemmProblem problem) {
    problem.deterministic_rows = true;
    for (bool biased : {false, true}) {
      problem.biased = biased;
      const std::vector<GemmTactic> tactics = GemmTactics(problem);
      std::set<std::string> names;
      for (const GemmTactic& tactic : tactics) {
        if (IsDeterministicByRow(problem, tactic)) names.insert(Describe(tactic));
      }
      for (int64_t m : {int64_t{1}, int64_t{130}, int64_t{2500}, problem.m}) {
        for (int64_t capacity : {int64_t{0}, int64_t{70000}}) {
          GemmProblem other = problem;
          other.m = m, other.capacity = capacity, other.workspace = 0;
          const GemmTactic chosen = ChooseGemmTactic(other);
          EXPECT_EQ(names.count(Describe(chosen)), 1u) << Describe(chosen);
          EXPECT_EQ(chosen.path, problem.layer_norm ? GemmPath::kSm90ThenLayerNorm : GemmPath::kSm90);
          const bool wide = kernels::gemm_sm90::IsPersistent(chosen.tile.block);
          EXPECT_FALSE(wide && biased);
          EXPECT_EQ(chosen.tile.splits, 1);
          persistent += wide, one_tile += !wide;
        }
      }
    }
  });
  EXPECT_GT(persistent, 500);
  EXPECT_GT(one_tile, 500);
}

TEST(GemmTactic, NoHopperTacticWithoutHopper) {
  for (bool tensor_cores : {false, true}) {
    GemmProblem problem = Bert(4096, 768, 3072, true);
    problem.sm90 = false, problem.tensor_cores = tensor_cores;
    const std::vector<GemmTactic> tactics = GemmTactics(problem);
    EXPECT_EQ(tactics.size(), tensor_cores ? 4u : 2u);
    EXPECT_EQ(Describe(ChooseGemmTactic(problem)),
              tensor_cores ? "mma then LayerNorm, warp per row" : "simt then LayerNorm, warp per row");
  }
}

// Tuning files may have them: each is the name of one tactic, and every product has one.
TEST(GemmTactic, FormerNamesAreOfOneTactic) {
  ForRandomProblems([](GemmProblem problem) {
    problem.gelu = problem.k % 3 == 0;
    std::set<std::string> names, products;
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      EXPECT_TRUE(names.insert(Describe(tactic)).second) << Describe(tactic);
      if (!tactic.layer_norm) continue;
      products.insert(ProductName(tactic));
      for (const std::string& former : FormerNames(problem, tactic)) EXPECT_TRUE(names.insert(former).second) << former;
    }
    for (const std::string& product : products) EXPECT_EQ(names.count(product), 1u) << product;
  });
}

TEST(GemmTactic, FormerNames) {
  using Names = std::vector<std::string>;
  const kernels::GemmSm90Block small = {64, 96, 10, 1}, wide = {128, 192, 5, 1};
  const GemmProblem few = Bert(512, 768, 3072, true), many = Bert(8192, 768, 3072, true);
  const auto block = kernels::LayerNormKernel::kBlockPerRow, warps = kernels::LayerNormKernel::kPersistentWarps;
  EXPECT_EQ(FormerNames(few, {GemmPath::kSm90SplitK, {small, 1, 1, 4}, block}),
            Names({"sm90 64x96 cluster 1x1 split-K 4", "sm90 64x96 cluster 1x1 splits 4"}));
  EXPECT_EQ(FormerNames(few, {GemmPath::kSm90ThenLayerNorm, {small, 1, 1, 1}, warps}),
            Names({"sm90 64x96 cluster 1x1 then LayerNorm", "sm90 64x96 cluster 1x1 rounded"}));
  EXPECT_EQ(FormerNames(many, {GemmPath::kSm90ThenLayerNorm, {wide, 2, 1, 2}, warps}),
            Names({"sm90 128x192 cluster 2x1 last wave split-K 2 then LayerNorm",
                   "sm90 128x192 cluster 2x1 rounded splits 2"}));
  EXPECT_EQ(FormerNames(few, {GemmPath::kMma, {}, block}), Names({"mma"}));
  // The kernel that was not chosen for so many rows had no name.
  EXPECT_EQ(FormerNames(few, {GemmPath::kSm90ThenLayerNorm, {small, 1, 1, 1}, block}), Names());
  EXPECT_EQ(FormerNames(many, {GemmPath::kMma, {}, block}), Names());
  // One name stood for two tactics, and the number of blocks chose.
  const GemmTactic alone = {GemmPath::kSm90ThenLayerNorm, {{128, 128, 7, 1}, 1, 1, 1}, warps};
  const GemmTactic shared = {GemmPath::kSm90ThenLayerNorm, {{128, 128, 3, 2}, 1, 1, 1}, warps};
  EXPECT_EQ(Describe(alone), "sm90 128x128 stages 7 cluster 1x1 then LayerNorm, persistent warps");
  EXPECT_EQ(FormerNames(few, alone),
            Names({"sm90 128x128 stages 7 cluster 1x1 then LayerNorm", "sm90 128x128 cluster 1x1 rounded"}));
  EXPECT_EQ(FormerNames(many, shared).back(), "sm90 128x128 cluster 1x1 rounded");
  EXPECT_EQ(FormerNames(few, shared), Names({"sm90 128x128 stages 3 cluster 1x1 then LayerNorm"}));
}

// What was measured to be the faster one in bert-base on an H200, beside the table of test_gemm_time.cc.
TEST(GemmTactic, FewRows) {
  const auto chosen = [](int64_t rows, int64_t n, int64_t k, bool layer_norm) {
    return ProductName(ChooseGemmTactic(Bert(rows, n, k, layer_norm)));
  };
  EXPECT_EQ(chosen(128, 768, 768, true), "sm90 64x64 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(256, 768, 768, true), "sm90 64x96 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(384, 768, 768, true), "sm90 64x96 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(512, 768, 768, true), "sm90 64x64 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(512, 768, 3072, true), "sm90 64x96 cluster 1x1 split-K 2");
  EXPECT_EQ(chosen(800, 768, 768, true), "sm90 64x96 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(2048, 768, 768, true), "sm90 64x128 cluster 1x6");
  EXPECT_EQ(chosen(4534, 384, 384, true), "sm90 64x128 cluster 1x3");
  EXPECT_EQ(chosen(128, 768, 3072, true), "sm90 64x96 cluster 1x1 split-K 4");
  EXPECT_EQ(chosen(128, 2304, 768, false), "sm90 64x64 cluster 1x1");
  EXPECT_EQ(chosen(256, 2304, 768, false), "sm90 64x96 cluster 2x1");
  EXPECT_EQ(chosen(1536, 2304, 768, false), "sm90 128x128 stages 3 cluster 1x1");  // 96 tiles of 192 x 192
  EXPECT_EQ(chosen(2048, 2304, 768, false), "sm90 192x192 cluster 1x2");           // 132
  EXPECT_EQ(chosen(2304, 2304, 768, false), "sm90 128x192 cluster 2x1");           // 144
}

// 33 panels of 128 rows are whole waves of 132 multiprocessors, 17 of 256 are not.
TEST(GemmTactic, NoWaveIsTakenForPairs) {
  const auto chosen = [](int64_t rows, int64_t n, int64_t k, bool layer_norm) {
    GemmProblem problem = Bert(rows, n, k, layer_norm);
    const std::string padded = ProductName(ChooseGemmTactic(problem));
    problem.capacity = 16384;
    EXPECT_EQ(ProductName(ChooseGemmTactic(problem)), padded);
    return padded;
  };
  EXPECT_EQ(chosen(4131, 2304, 768, false), "sm90 128x192 cluster 1x1");
  EXPECT_EQ(chosen(4131, 768, 768, true), "sm90 128x192 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(4131, 768, 3072, true), "sm90 128x192 cluster 1x1 then LayerNorm");
  EXPECT_EQ(chosen(4096, 3072, 768, false), "sm90 128x192 cluster 2x1");
  // Two waves of wide tiles take less time than one and a bit of 128 x 128, two to a multiprocessor.
  EXPECT_EQ(chosen(1683, 3072, 768, false), "sm90 128x192 cluster 2x1");
  EXPECT_EQ(chosen(1683, 2304, 768, false), "sm90 128x128 stages 3 cluster 1x1");
}

// Tiles left for the last wave on an H200's 132 multiprocessors (66 pairs).
TEST(GemmTactic, TheLastWaveIsSplitWhereItIsShort) {
  const auto chosen = [](int64_t rows, int64_t k) { return ProductName(ChooseGemmTactic(Bert(rows, 768, k, true))); };
  EXPECT_EQ(chosen(4096, 3072), "sm90 128x192 cluster 2x1 then LayerNorm");                      // 64 pairs' tiles
  EXPECT_EQ(chosen(6144, 3072), "sm90 128x192 cluster 1x1 last wave split-K 2 then LayerNorm");  // 192 of one block
  EXPECT_EQ(chosen(6144, 768), "sm90 128x192 cluster 2x1 then LayerNorm");                      // too few steps along k
  EXPECT_EQ(chosen(8500, 768), "sm90 128x192 cluster 1x1 last wave split-K 2 then LayerNorm");  // for 4 of 268 tiles
  EXPECT_EQ(chosen(8500, 3072), "sm90 128x192 cluster 1x1 last wave split-K 6 then LayerNorm");
  EXPECT_EQ(chosen(1024, 3072), "sm90 128x192 cluster 1x1 last wave split-K 4 then LayerNorm");
  const GemmProblem problem = Bert(6144, 768, 3072, true);
  EXPECT_EQ(UnsplitRows(problem, ChooseGemmTactic(problem)), 4224);  // 33 of 48 panels with 4 tiles each
}

}  // namespace
}  // namespace bertfuse::cuda
