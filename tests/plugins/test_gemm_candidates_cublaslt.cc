// Products in cuBLASLt among the tactics, and when they are chosen.
#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <random>

#include "ops/gemm_candidates_cublaslt.h"
#include "ops/layer_norm_tactic.h"
#include "random_gemms.h"

namespace bertfuse::cuda {
namespace {

constexpr size_t kMegabyte = 1 << 20;

// Of 16 bits unless `bytes` says otherwise, on a device without wgmma.
GemmProblem OnOthers(int64_t m, int64_t n, int64_t k, bool layer_norm, int bytes = 2) {
  GemmProblem problem = Bert(m, n, k, layer_norm);
  problem.backends = {Backend::kCublasLt, Backend::kMma, Backend::kSimt};
  problem.x_bytes = problem.y_bytes = bytes;
  problem.layer_norm_vector = bytes == 2 ? 8 : 4;
  problem.cublaslt = {3, {kMegabyte, 0, 4096}};
  return problem;
}

std::vector<std::string> Names(const GemmProblem& problem) {
  std::vector<std::string> names;
  for (const GemmTactic& tactic : GemmTactics(problem)) names.push_back(Describe(tactic));
  return names;
}

TEST(CublasLt, EachAlgorithmIsATactic) {
  std::vector<std::string> names = Names(OnOthers(100, 96, 64, false));
  EXPECT_EQ(names.back(), "simt");
  ASSERT_GT(names.size(), 3u);
  EXPECT_EQ(names[3].rfind("mma ", 0), 0u) << names[3];
  names.resize(3);
  EXPECT_EQ(names, (std::vector<std::string>{"cublaslt", "cublaslt algorithm 2", "cublaslt algorithm 3"}));
  const auto normalized = Names(OnOthers(100, 96, 64, true));
  EXPECT_EQ(normalized[0], "cublaslt then LayerNorm, block per row");
  EXPECT_EQ(normalized[1], "cublaslt then LayerNorm, persistent warps");
  EXPECT_EQ(normalized[2], "cublaslt algorithm 2 then LayerNorm, block per row");
}

TEST(CublasLt, IsChosenWhereOurKernelsAreNotKnownToBeFaster) {
  std::mt19937 random(std::random_device{}());
  const auto size = [&](int most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
  for (int i = 0; i < 1000; ++i) {
    GemmProblem problem = OnOthers(128 + size(9000), size(4000), size(4000), i % 2 == 0, i % 4 < 2 ? 2 : 4);
    problem.allow_tf32 = true;
    SCOPED_TRACE(Name(problem));
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, Backend::kCublasLt);
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.algorithm, 0);
    problem.deterministic_rows = true;
    EXPECT_NE(ChooseGemmTactic(problem).tactic.backend, Backend::kCublasLt);
    problem.deterministic_rows = false;
    problem.backends.Add(Backend::kSm90);
    EXPECT_NE(ChooseGemmTactic(problem).tactic.backend, Backend::kCublasLt);
    problem.backends = {Backend::kSimt}, problem.cublaslt = {};
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, Backend::kSimt);
  }
}

// With few rows the bare product is cuBLASLt's alone: what an activation or LayerNorm adds to it is dear. In 16 bits
// and by TF32.
TEST(CublasLt, LeavesFewRowsWithMoreThanAProductToMma) {
  for (const int64_t m : {1, 128, 129, 4096}) {
    for (const int bytes : {2, 4}) {
      GemmProblem product = OnOthers(m, 3072, 768, false, bytes);
      product.allow_tf32 = true;
      EXPECT_EQ(ChooseGemmTactic(product).tactic.backend, Backend::kCublasLt) << m;
      GemmProblem gelu = product, norm = OnOthers(m, 768, 3072, true, bytes);
      gelu.gelu = norm.allow_tf32 = true;
      for (GemmProblem& problem : {std::ref(gelu), std::ref(norm)}) {
        const Backend backend = m <= 128 ? Backend::kMma : Backend::kCublasLt;
        EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, backend) << Name(problem);
        problem.backends = {Backend::kCublasLt, Backend::kSimt};
        EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, Backend::kCublasLt) << Name(problem);
      }
    }
  }
}

// Also where cuBLASLt takes less than what it takes the place of.
TEST(CublasLt, TheSameIsChosenWithTheWorkspaceThatWasAskedFor) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto size = [&](int most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
  int few_rows_in_cublaslt = 0;
  for (int i = 0; i < 4000; ++i) {
    const bool small = i % 2 == 0;
    GemmProblem problem =
        OnOthers(size(200), size(small ? 60 : 4000), size(small ? 40 : 4000), true, i % 4 < 2 ? 2 : 4);
    problem.allow_tf32 = true, problem.cublaslt = {1, {0}};
    const GemmTactic asked = ChooseGemmTactic(problem).tactic;
    few_rows_in_cublaslt += problem.m <= 128 && asked.backend == Backend::kCublasLt;
    problem.workspace = GemmWorkspaceSize(problem, asked);
    EXPECT_EQ(Describe(ChooseGemmTactic(problem).tactic), Describe(asked)) << Name(problem);
  }
  EXPECT_GT(few_rows_in_cublaslt, 0);
}

// Three products of TF32 numbers for one of float32: where the tensor cores are that much faster.
TEST(CublasLt, LeavesExactFloat32ToFastTensorCores) {
  GemmProblem problem = OnOthers(1024, 2304, 768, false, 4);
  const kernels::Device hopper = *problem.device;
  std::list<kernels::Device> devices;  // choices are remembered by device
  for (const auto& [capability, backend] : {std::pair(80, Backend::kMma),
                                            {86, Backend::kCublasLt},
                                            {89, Backend::kCublasLt},
                                            {90, Backend::kMma},
                                            {120, Backend::kCublasLt}}) {
    problem.device = &devices.emplace_back(hopper);
    devices.back().compute_capability = capability;
    problem.m = 1024, problem.allow_tf32 = false;
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, backend) << capability;
    problem.m = 1;
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, backend) << capability;
    problem.m = 1024, problem.allow_tf32 = true;
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, Backend::kCublasLt) << capability;
  }
}

TEST(CublasLt, TakesAllPackedRowsWhereTheyAreAtMostTwiceTheExpectedOnes) {
  GemmProblem problem = OnOthers(100, 768, 768, false);
  for (const int64_t capacity : {100, 200, 201, 4000}) {
    problem.capacity = capacity;
    problem.backends = {Backend::kCublasLt, Backend::kMma, Backend::kSimt};  // mma takes those that were not expected
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, Backend::kCublasLt) << capacity;
    problem.backends = {Backend::kCublasLt, Backend::kSimt};
    const Backend backend = capacity <= 200 ? Backend::kCublasLt : Backend::kSimt;
    EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, backend) << capacity;
  }
}

// Whatever chose a tactic, the model, a table or a tuning file: no product of packed rows is one of all rows that there
// is room for where most are not real. Such tactics were measured in a batch of another capacity.
TEST(CublasLt, NoTacticLeavesTheRealRowsOutOfAccount) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 300; ++i) {
    GemmProblem problem =
        OnOthers(1 + random() % 4000, 16 * (1 + random() % 400), 8 + random() % 4000, i % 3 == 0, i % 2 == 0 ? 2 : 4);
    problem.gates = i % 3 == 1, problem.keeps_total = i % 6 == 0, problem.allow_tf32 = random() % 2 == 0;
    SCOPED_TRACE(Name(problem));
    problem.capacity = 100 * problem.m;  // mma takes what was not expected
    for (const GemmTactic& tactic : GemmTactics(problem)) {
      EXPECT_TRUE(tactic.backend != Backend::kCublasLt || Runs(problem, tactic)) << Describe(tactic);
    }
    problem.backends = {Backend::kCublasLt, Backend::kSimt};  // which mma cannot take, of a width that is none of 8
    for (const int64_t capacity : {2 * problem.m, 2 * problem.m + 1 + static_cast<int64_t>(random() % 100000)}) {
      problem.capacity = capacity;
      int tactics = 0;
      for (GemmTactic& tactic : GemmTactics(problem)) {
        if (tactic.backend != Backend::kCublasLt) continue;
        EXPECT_EQ(Runs(problem, tactic), capacity == 2 * problem.m) << Describe(tactic);
        ++tactics;
      }
      EXPECT_GE(tactics, 3);
      EXPECT_TRUE(TakesPackedRows(problem, ChooseGemmTactic(problem).tactic));
    }
  }
}

// Split along k, exact float32 takes less time before LayerNorm.
TEST(CublasLt, SplitsFewRowsOfExactFloat32BeforeLayerNorm) {
  for (const int64_t k : {768, 3072}) {
    GemmProblem problem = OnOthers(128, 768, k, true, 4);
    const GemmTactic tactic = ChooseGemmTactic(problem).tactic;
    EXPECT_EQ(tactic.backend, Backend::kMma) << Describe(tactic);
    EXPECT_GT(tactic.tile.splits, 1) << Describe(tactic);
  }
}

TEST(CublasLt, FitsTheWorkspace) {
  GemmProblem problem = OnOthers(100, 768, 768, false);
  EXPECT_EQ(GemmWorkspaceSize(problem, ChooseGemmTactic(problem).tactic), kMegabyte);
  problem.workspace = kMegabyte - 1;
  EXPECT_EQ(ChooseGemmTactic(problem).tactic.algorithm, 1);
  problem.cublaslt = {1, {kMegabyte}};
  EXPECT_EQ(ChooseGemmTactic(problem).tactic.backend, Backend::kMma);
}

// The scratch lies behind float32 partial sums, on a boundary of 256 bytes, and takes all rows that there is room for.
TEST(CublasLt, ScratchLiesBehindPartialSums) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 1000; ++i) {
    GemmProblem problem = OnOthers(1 + random() % 500, 1 + random() % 500, 64, true, 4);
    problem.allow_tf32 = true;
    problem.capacity = i % 2 == 0 ? 0 : problem.m + random() % problem.m;
    problem.cublaslt = {1, {4096}};
    const GemmTactic tactic = ChooseGemmTactic(problem).tactic;
    ASSERT_EQ(tactic.backend, Backend::kCublasLt);
    EXPECT_EQ(tactic.form, GemmForm::kPartialSums);
    const size_t rows = problem.capacity > 0 ? problem.capacity : problem.m;
    const size_t offset = GemmScratchOffset(problem, tactic);
    EXPECT_EQ(offset % 256, 0u);
    EXPECT_GE(offset, rows * problem.n * sizeof(float));
    EXPECT_LT(offset, rows * problem.n * sizeof(float) + 256);
    EXPECT_EQ(GemmWorkspaceSize(problem, tactic), offset + 4096);
  }
}

// LayerNorm's kernels take a product in 16 bits only on their boundaries; bias and activation are theirs.
TEST(CublasLt, FormFollowsLayerNormsKernels) {
  GemmProblem problem = OnOthers(1000, 768, 768, true);
  problem.gelu = true;
  EXPECT_EQ(CublasLtForm(problem), GemmForm::kRounded);
  EXPECT_FALSE(ActivatesProduct(problem, ChooseGemmTactic(problem).tactic));
  GemmTactic other = ChooseGemmTactic(problem).tactic;
  EXPECT_TRUE(CublasLtHas(problem, other));
  problem.layer_norm_vector = 1;
  EXPECT_EQ(CublasLtForm(problem), GemmForm::kPartialSums);
  EXPECT_FALSE(CublasLtHas(problem, other));  // of tensors that are aligned
  other.form = GemmForm::kPartialSums;
  EXPECT_TRUE(CublasLtHas(problem, other));
  other.algorithm = problem.cublaslt.count;
  EXPECT_FALSE(CublasLtHas(problem, other));
}

}  // namespace
}  // namespace bertfuse::cuda
