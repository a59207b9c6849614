// How a matrix product is computed, for random problems: arithmetic alone, no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/gemm_tactic.h"
#include "ops/measured_gemms.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

TEST(GemmTactic, TheChosenOneIsListed) {
  ForRandomProblems([](const GemmProblem& problem) {
    std::set<std::string> names;
    const std::vector<GemmTactic> tactics = GemmTactics(problem);
    for (const GemmTactic& tactic : tactics) names.insert(Describe(tactic));
    EXPECT_EQ(names.size(), tactics.size());
    EXPECT_EQ(names.count(Describe(ChooseGemmTactic(problem).tactic)), 1u)
        << Describe(ChooseGemmTactic(problem).tactic);
  });
}

// A gate is in the epilogue of Hopper's kernels alone; elsewhere the product waits in the workspace for a launch of it.
TEST(GemmTactic, GatesAreInAnEpilogueOrALaunchOfTheirOwn) {
  ForRandomProblems([](GemmProblem problem) {
    problem.layer_norm = false, problem.gates = true, problem.biased = problem.m % 2 == 0;
    problem.deterministic_rows = problem.m % 3 == 0;
    std::set<std::string> names;
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      EXPECT_TRUE(names.insert(Describe(tactic)).second) << Describe(tactic);
      EXPECT_EQ(tactic.gate, tactic.form == GemmForm::kRounded);
      EXPECT_TRUE(tactic.gate || (tactic.backend == Backend::kSm90 && problem.n % 16 == 0)) << Describe(tactic);
      const auto bytes = static_cast<size_t>(problem.m * problem.n * problem.y_bytes);
      EXPECT_EQ(GemmWorkspaceSize(problem, tactic), tactic.gate ? bytes : 0);
    }
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_EQ(names.count(Describe(chosen)), 1u) << Describe(chosen);
    EXPECT_TRUE(Runs(problem, chosen)) << Describe(chosen);
  });
}

// A sum that is an output, too, is in no epilogue: its norm has a launch.
TEST(GemmTactic, NormsOfKeptSumsAreLaunches) {
  ForRandomProblems([](GemmProblem problem) {
    problem.layer_norm = problem.keeps_total = true;
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      EXPECT_NE(tactic.form, GemmForm::kComplete);
      EXPECT_TRUE(tactic.layer_norm.has_value());
    }
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_TRUE(chosen.layer_norm.has_value() && Runs(problem, chosen)) << Describe(chosen);
  });
}

// A rotation is in an epilogue of Hopper's blocks of whole heads; elsewhere a launch follows, which other tactics have.
TEST(GemmTactic, RotationsAreInAnEpilogueWhereOneHasThem) {
  int chosen_on_hopper = 0, in_epilogue = 0;
  ForRandomProblems([&](GemmProblem problem) {
    problem.layer_norm = false, problem.n = (problem.n + 191) / 192 * 192;
    problem.deterministic_rows = problem.m % 3 == 0, problem.biased = problem.m % 2 == 0;
    GemmProblem plain = problem;
    problem.rotates = true;
    const auto names = [](const GemmProblem& of) {
      std::vector<std::string> found;
      for (const GemmTactic& tactic : GemmTactics(of)) found.push_back(Describe(tactic));
      return found;
    };
    EXPECT_EQ(names(problem), names(plain));
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      EXPECT_FALSE(RotatesInEpilogue(plain, tactic));
      if (!RotatesInEpilogue(problem, tactic)) continue;
      EXPECT_TRUE(tactic.backend == Backend::kSm90 && tactic.tile.block.n % 64 == 0 && tactic.tile.splits == 1)
          << Describe(tactic);
    }
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_TRUE(Runs(problem, chosen)) << Describe(chosen);
    EXPECT_TRUE(!problem.deterministic_rows || RotatesInEpilogue(problem, chosen)) << Describe(chosen);
    ++chosen_on_hopper, in_epilogue += RotatesInEpilogue(problem, chosen);
  });
  EXPECT_GT(in_epilogue, chosen_on_hopper * 95 / 100);
  // Q, K and V of encoders, whatever was measured without rotations.
  const MeasuredGemms measured(kMeasuredTables[0], Hopper(), "NVIDIA H200, 9.0, 132 multiprocessors", nullptr);
  for (int64_t hidden : {256, 384, 512, 768, 1024}) {
    for (int64_t m = 1; m < 70000; m += m / 4 + 1) {
      GemmProblem problem = Bert(m, 3 * hidden, hidden, false);
      problem.rotates = true, problem.biased = false;
      problem.measured = &measured;
      const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
      EXPECT_TRUE(RotatesInEpilogue(problem, chosen)) << Name(problem) << ": " << Describe(chosen);
    }
  }
}

// Before LayerNorm a long k of few rows is split, on Hopper four ways at most.
TEST(GemmTactic, HoppersPartialSumsAreFourAtMost) {
  int split = 0;
  ForRandomProblems([&](GemmProblem problem) {
    problem.m = problem.m % 64 + 1, problem.k *= 4, problem.layer_norm = true;
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    if (chosen.backend != Backend::kSm90 || chosen.form != GemmForm::kPartialSums) return;
    EXPECT_LE(chosen.tile.splits, 4) << Name(problem) << ": " << Describe(chosen);
    split += chosen.tile.splits > 1;
  });
  EXPECT_GT(split, 0);
  for (const int x_bytes : {1, 2}) {
    GemmProblem problem = Bert(16, 768, 3072, true);
    problem.x_bytes = x_bytes;
    EXPECT_EQ(Describe(ChooseGemmTactic(problem).tactic).rfind("sm90 64x96 cluster 1x1 split-K 4", 0), 0u);
  }
}

// Sums of 8-bit floats over more than kLongestUnpromotedK of k are promoted; those of its splits are shorter.
TEST(GemmTactic, LongSumsOf8BitFloatsArePromotedOrSplit) {
  std::set<bool> promoted;
  for (int64_t k = 3968; k < 33000; k += 4096 + 128) {
    for (int64_t m = 1; m < 20000; m += m + 7) {
      GemmProblem problem = Bert(m, 1280, k, true);
      problem.x_bytes = 1, problem.fp8 = true;
      const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
      const int64_t splits = chosen.form == GemmForm::kPartialSums ? chosen.tile.splits : 1;
      const int64_t summed = (k / 128 + splits - 1) / splits * 128;
      EXPECT_EQ(chosen.tile.block.promotes, summed > kernels::kLongestUnpromotedK)
          << Name(problem) << ": " << Describe(chosen);
      promoted.insert(chosen.tile.block.promotes);
    }
  }
  EXPECT_EQ(promoted.size(), 2u);
  GemmProblem problem = Bert(16, 1280, 5120, true);
  problem.x_bytes = 1, problem.fp8 = true;
  EXPECT_EQ(ChooseGemmTactic(problem).tactic.form, GemmForm::kPartialSums);
}

// Few rows of 8-bit operands take the narrowest tiles as long as two of them to a multiprocessor are all.
TEST(GemmTactic, FewRowsOf8BitOperandsTakeNarrowTiles) {
  const MeasuredGemms measured(kMeasuredTables[0], Hopper(), "NVIDIA H200, 9.0, 132 multiprocessors", nullptr);
  const auto is_narrow = [](const GemmProblem& problem) {
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_TRUE(Runs(problem, chosen)) << Name(problem) << ": " << Describe(chosen);
    return Describe(chosen) == "sm90 64x32 cluster 1x1";
  };
  for (const bool fp8 : {false, true}) {
    for (const bool gelu : {false, true}) {
      for (const auto& [hidden, most] : {std::pair<int64_t, int64_t>(384, gelu ? 320 : 448), {768, gelu ? 128 : 192}}) {
        GemmProblem problem = Bert(1, (gelu ? 4 : 3) * hidden, hidden, false);
        problem.x_bytes = 1, problem.fp8 = fp8, problem.gelu = problem.biased = problem.quantizes = gelu;
        problem.measured = &measured;
        for (const int64_t m : {int64_t{1}, int64_t{17}, int64_t{64}, most}) {
          problem.m = m;
          EXPECT_TRUE(is_narrow(problem)) << Name(problem) << ", fp8 " << fp8;
        }
        problem.m = 2 * most;
        EXPECT_FALSE(is_narrow(problem)) << Name(problem) << ", fp8 " << fp8;
        problem.m = 1, problem.x_bytes = 2, problem.fp8 = problem.quantizes = false;
        EXPECT_FALSE(is_narrow(problem)) << Name(problem);
      }
    }
    GemmProblem promoting = Bert(1, 768, 4112, false);
    promoting.x_bytes = 1, promoting.fp8 = fp8, promoting.biased = false;
    EXPECT_EQ(is_narrow(promoting), !fp8);
  }
}

// Of 8-bit operands, too, some tactic gives the same bits whatever the number of rows is: where no epilogue multiplies
// gates, rotates heads or promotes sums as the problem wants it, one whose launches behind it do.
TEST(GemmTactic, EightBitsAreDeterministicByRowWithAnyEpilogue) {
  enum Form { kGelu, kGate, kRotation };
  ForRandomProblems([&](GemmProblem problem) {
    problem.layer_norm = false, problem.deterministic_rows = true, problem.x_bytes = 1;
    problem.k = (problem.k + 15) / 16 * 16, problem.n = (problem.n + 15) / 16 * 16;
    for (const Form form : {kGelu, kGate, kRotation}) {
      for (const bool fp8 : {false, true}) {
        for (const bool quantizes : {false, true}) {
          GemmProblem drawn = problem;
          drawn.fp8 = fp8, drawn.quantizes = quantizes && form != kRotation;
          drawn.gelu = drawn.biased = form == kGelu, drawn.gates = form == kGate, drawn.rotates = form == kRotation;
          const GemmTactic chosen = ChooseGemmTactic(drawn).tactic;
          EXPECT_TRUE(Runs(drawn, chosen) && IsDeterministicByRow(drawn, chosen))
              << Name(drawn) << ", form " << form << ", fp8 " << fp8 << ", 8 bits " << quantizes << ": "
              << Describe(chosen);
        }
      }
    }
  });
}

// A gate's launch writes 8 bits itself: with few rows it is chosen for them as it is for 16.
TEST(GemmTactic, GatesOfFewRowsAreTheSameIn8Bits) {
  for (const bool fp8 : {false, true}) {
    for (int64_t m = 1; m <= 64; ++m) {
      GemmProblem problem = Bert(m, 2304, 768, false);
      problem.x_bytes = 1, problem.fp8 = fp8, problem.gates = true, problem.biased = false;
      const std::string in_16_bits = Describe(ChooseGemmTactic(problem).tactic);
      problem.quantizes = true;
      EXPECT_EQ(Describe(ChooseGemmTactic(problem).tactic), in_16_bits) << Name(problem);
    }
  }
}

// GELU's results of 8-bit operands, whatever was measured where they left in 16 bits.
TEST(GemmTactic, ResultsLeaveIn8BitsWhereTheyAreWantedSo) {
  const MeasuredGemms measured(kMeasuredTables[0], Hopper(), "NVIDIA H200, 9.0, 132 multiprocessors", nullptr);
  for (const bool fp8 : {false, true}) {
    for (int64_t hidden : {256, 384, 512, 768, 1024}) {
      for (int64_t m = 1; m < 70000; m += m / 4 + 1) {
        GemmProblem problem = Bert(m, 4 * hidden, hidden, false);
        problem.x_bytes = 1, problem.fp8 = fp8, problem.gelu = problem.biased = true;
        problem.measured = &measured;
        for (const GemmTactic& tactic : GemmTactics(problem)) EXPECT_FALSE(WritesQuantized(problem, tactic));
        const GemmTactic in_16_bits = ChooseGemmTactic(problem).tactic;
        EXPECT_TRUE(Runs(problem, in_16_bits)) << Name(problem) << ": " << Describe(in_16_bits);
        problem.quantizes = true;
        const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
        EXPECT_TRUE(WritesQuantized(problem, chosen) && Runs(problem, chosen))
            << Name(problem) << ": " << Describe(chosen);
      }
    }
  }
  GemmProblem problem = Bert(1024, 3072, 768, false);
  problem.x_bytes = 1, problem.gelu = problem.biased = problem.quantizes = true, problem.measured = &measured;
  EXPECT_EQ(Describe(ChooseGemmTactic(problem).tactic), "sm90 128x96 stages 3 cluster 2x1");
  // What one warpgroup computes took up to 1.6 times as long.
  for (const auto& [m, hidden] : {std::pair(8192, 768), {3072, 384}, {4096, 384}, {8192, 384}, {16384, 384}}) {
    problem.m = m, problem.n = 4 * hidden, problem.k = hidden;
    for (const bool fp8 : {false, true}) {
      problem.fp8 = fp8;
      const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
      EXPECT_EQ(Describe(chosen).find("128x192"), std::string::npos) << Name(problem) << ": " << Describe(chosen);
    }
  }
}

// Whatever was measured without them.
TEST(GemmTactic, WeightsStayInSharedMemoryForManyRows) {
  const MeasuredGemms measured(kMeasuredTables[0], Hopper(), "NVIDIA H200, 9.0, 132 multiprocessors", nullptr);
  const auto chosen = [&](GemmProblem problem) { return Describe(ChooseGemmTactic(problem).tactic); };
  const auto is_stationary = [](const std::string& name) {
    return name.find("sm90 64x192") == 0 || name.find("sm90 64x128") == 0;
  };
  for (const bool fp8 : {false, true}) {
    GemmProblem gelu = Bert(16384, 3072, 768, false);
    const kernels::Device* const device = gelu.device;
    gelu.x_bytes = 1, gelu.fp8 = fp8, gelu.gelu = gelu.biased = gelu.quantizes = true, gelu.measured = &measured;
    EXPECT_EQ(chosen(gelu), "sm90 64x192 cluster 1x1");
    gelu.deterministic_rows = true;  // the same bits as any other that writes 8 bits
    EXPECT_EQ(chosen(gelu), "sm90 64x192 cluster 1x1");
    // Integers that another launch rounds may be others; floats are not, and of long k their sums are promoted.
    for (const GemmTactic& tactic : GemmTactics(gelu)) {
      EXPECT_TRUE(fp8 || WritesQuantized(gelu, tactic) || !IsDeterministicByRow(gelu, tactic)) << Describe(tactic);
    }
    gelu.k = 5120;
    EXPECT_TRUE(IsDeterministicByRow(gelu, ChooseGemmTactic(gelu).tactic));
    gelu.k = 768;
    gelu.deterministic_rows = false;
    for (const auto& [m, n, pays] :
         {std::tuple(2047, 3072, false), {2048, 3072, true}, {3071, 1536, false}, {3072, 1536, true}}) {
      gelu.m = m, gelu.n = n;
      EXPECT_EQ(is_stationary(chosen(gelu)), pays) << Name(gelu);
    }
    gelu.m = 4096, gelu.n = 4096, gelu.k = 1024;  // of which 128 columns have room
    EXPECT_EQ(chosen(gelu), "sm90 64x128 cluster 1x1");
    kernels::Device fewer = *gelu.device;
    fewer.multiprocessors = 114;  // 32 columns of tiles would leave 18 of them idle
    gelu.device = &fewer;
    EXPECT_FALSE(is_stationary(chosen(gelu)));
    gelu.device = device;
    gelu.n = 256, gelu.k = 768;  // a tile for a block
    EXPECT_FALSE(is_stationary(chosen(gelu)));
    gelu.n = 4096, gelu.k = 1040;
    EXPECT_FALSE(is_stationary(chosen(gelu)));
    gelu.k = 768, gelu.quantizes = false;
    EXPECT_FALSE(is_stationary(chosen(gelu)));

    GemmProblem norm = Bert(16384, 768, 768, true);
    norm.x_bytes = 1, norm.fp8 = fp8, norm.biased = true, norm.measured = &measured;
    norm.keeps_total = norm.quantizes_rows = true;  // keeps_total: y is not all that is wanted
    EXPECT_EQ(chosen(norm), "sm90 64x192 cluster 1x4");
    norm.capacity = 20000;  // packed
    EXPECT_EQ(chosen(norm), "sm90 64x192 cluster 1x4");
    norm.capacity = 0;
    for (const auto& [m, n, k] : {std::tuple(2559, 768, 768),
                                  {16384, 768, 1040},
                                  {16384, 960, 768},
                                  {5119, 512, 512},
                                  {16384, 1152, 768},
                                  {5119, 768, 1024},
                                  {1023, 384, 384},
                                  {fp8 ? 2559 : 5119, 1024, 1024}}) {
      norm.m = m, norm.n = n, norm.k = k;
      EXPECT_FALSE(is_stationary(chosen(norm))) << Name(norm);
    }
    norm.m = 2560, norm.n = norm.k = 768;
    EXPECT_EQ(chosen(norm), "sm90 64x192 cluster 1x4");
    norm.m = 5120, norm.k = 1024;  // of whose weight 128 columns have room
    EXPECT_EQ(chosen(norm), "sm90 64x128 cluster 1x6");
    norm.m = fp8 ? 2560 : 5120, norm.n = 1024;
    EXPECT_EQ(chosen(norm), "sm90 64x128 cluster 1x8");
    norm.m = 1024, norm.n = norm.k = 384;
    EXPECT_EQ(chosen(norm), "sm90 64x192 cluster 1x2");
    norm.deterministic_rows = true;  // it adds up a row otherwise than LayerNorm's kernels
    EXPECT_FALSE(is_stationary(chosen(norm)));
    norm.deterministic_rows = norm.quantizes_rows = false;
    EXPECT_FALSE(is_stationary(chosen(norm)));
  }
}

TEST(GemmTactic, PartsAreOfRowsAtTheEnd) {
  ForRandomProblems([](const GemmProblem& problem) {
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      const bool in_parts = tactic.form == GemmForm::kRounded && tactic.tile.splits > 1;
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
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_EQ(names.count(Describe(chosen)), 1u) << Describe(chosen);
    if (chosen.backend == Backend::kSm90) {
      EXPECT_LE(GemmWorkspaceSize(problem, chosen), 64u << 20) << Describe(chosen);
    }
  });
}

// By how many rows are expected, with workspace for all of them.
TEST(GemmTactic, PackedRowsAreChosenForAsTheyAreExpected) {
  GemmProblem problem = Bert(128, 768, 3072, true);
  problem.capacity = 512;
  EXPECT_EQ(Describe(ChooseGemmTactic(problem).tactic), Describe(ChooseGemmTactic(Bert(128, 768, 3072, true)).tactic));
  problem.capacity = 16384;  // float32 partial sums would take 201 MB
  EXPECT_EQ(Describe(ChooseGemmTactic(problem).tactic).find("split-K 4"), std::string::npos);
}

TEST(GemmTactic, EveryPartHasSomething) {
  ForRandomProblems([](const GemmProblem& problem) {
    const int64_t stages = kernels::CeilDiv(problem.k * problem.x_bytes, kernels::kStageRowBytes);
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      if (tactic.backend != Backend::kSm90) continue;
      const int splits = tactic.tile.splits;
      EXPECT_LT((splits - 1) * kernels::CeilDiv(stages, splits), stages) << Describe(tactic);
      EXPECT_LE(tactic.tile.cluster_m * tactic.tile.cluster_n, kernels::kMaxCluster) << Describe(tactic);
    }
  });
}

// As in an engine that was built elsewhere: whatever there is, the choice fits, and is the usual one where that does.
TEST(GemmTactic, AShortWorkspaceIsEnoughForTheHopperTactics) {
  int changed = 0;
  ForRandomProblems([&](GemmProblem problem) {
    const GemmTactic usual = ChooseGemmTactic(problem).tactic;
    const size_t wanted = GemmWorkspaceSize(problem, usual);
    for (size_t given : {size_t{0}, wanted / 2, wanted == 0 ? 0 : wanted - 1, wanted}) {
      problem.workspace = given;
      const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
      EXPECT_LE(GemmWorkspaceSize(problem, chosen), given) << Describe(chosen);
      if (given == wanted) {
        EXPECT_EQ(Describe(chosen), Describe(usual));
      }
      changed += Describe(chosen) != Describe(usual);
    }
  });
  EXPECT_GT(changed, 50);
}

TEST(GemmTactic, AShortWorkspaceTakesFewerSplits) {
  GemmProblem problem = Bert(128, 768, 3072, true);
  int last = ChooseGemmTactic(problem).tactic.tile.splits;
  EXPECT_GT(last, 1);
  for (size_t splits = last; splits > 0; --splits) {
    problem.workspace = (splits - 1) * 128 * 768 * sizeof(float);
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_LE(chosen.tile.splits, last);
    last = chosen.tile.splits;
  }
  EXPECT_EQ(last, 1);
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
          const GemmTactic chosen = ChooseGemmTactic(other).tactic;
          EXPECT_EQ(names.count(Describe(chosen)), 1u) << Describe(chosen);
          EXPECT_EQ(chosen.backend, Backend::kSm90);
          EXPECT_EQ(chosen.form, problem.layer_norm ? GemmForm::kRounded : GemmForm::kComplete);
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
    problem.backends = Portable(tensor_cores);
    for (const GemmTactic& tactic : GemmTactics(problem)) EXPECT_NE(tactic.backend, Backend::kSm90);
    const GemmTactic chosen = ChooseGemmTactic(problem).tactic;
    EXPECT_EQ(chosen.backend, tensor_cores ? Backend::kMma : Backend::kSimt) << Describe(chosen);
  }
}

}  // namespace
}  // namespace bertfuse::cuda
