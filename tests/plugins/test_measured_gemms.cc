// The tables of what was measured, which the library has. No GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ops/layer_norm_tactic.h"
#include "ops/measured_gemms.h"
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

constexpr char kIdentity[] = "NVIDIA H200, 9.0, 132 multiprocessors";

// The shipped table that has rows for such a device.
const MeasuredGemms& OnH200() {
  static const MeasuredGemms* const found = [] {
    for (int i = 0; i < kNumMeasuredTables; ++i) {
      const auto* measured = new MeasuredGemms(kMeasuredTables[i], Hopper(), kIdentity);
      if (!measured->empty()) return measured;
      delete measured;
    }
    return static_cast<const MeasuredGemms*>(nullptr);
  }();
  return *found;
}

TEST(MeasuredGemms, WhatIsChosenIsAmongTheFastestInModels) {
  for (const Measured& one : kMeasured) {
    GemmProblem problem = Bert(one.m, one.n, one.k, one.epilogue == kNorm);
    problem.capacity = one.capacity, problem.gelu = one.epilogue == kGelu, problem.measured = &OnH200();
    const GemmChoice choice = ChooseGemmTactic(problem);
    EXPECT_EQ(choice.by, ChosenBy::kMeasured);
    const std::string chosen = ProductName(choice.tactic);
    std::set<std::string> fastest;
    std::istringstream names(one.fastest);
    for (std::string name; std::getline(names >> std::ws, name, ';');) fastest.insert("sm90 " + name);
    EXPECT_EQ(fastest.count(chosen), 1u) << Name(problem) << ": " << chosen;
    std::set<std::string> listed;
    for (const GemmTactic& tactic : GemmTactics(problem)) listed.insert(ProductName(tactic));
    for (const std::string& name : fastest) EXPECT_EQ(listed.count(name), 1u) << name;
  }
}

// Every row of every table: it names what the library has for all of its rows, and no other row has any of these.
TEST(MeasuredGemms, TablesNameWhatTheLibraryHas) {
  ASSERT_GT(kNumMeasuredTables, 0);
  for (int i = 0; i < kNumMeasuredTables; ++i) {
    std::istringstream lines(kMeasuredTables[i]);
    std::map<std::string, int64_t> last_rows;  // of the ranges that differ by their rows alone
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (rows == 0 && line.rfind("bertfuse tuning 1, library ", 0) == 0) continue;
      if (line[0] == '#') continue;
      ++rows;
      static const std::regex kRow(
          "([^\t]+, (\\d+)\\.(\\d+), (\\d+) multiprocessors)\t(\\w+ [\\w-]+) "
          "(\\d+)(-\\d+)?x(\\d+)x(\\d+)([a-z_ ]*)\t([^\t]+)(\t.*)?");
      ASSERT_TRUE(std::regex_match(line, match, kRow)) << line;
      kernels::Device device = Hopper(std::stoi(match[4]));
      device.compute_capability = 10 * std::stoi(match[2]) + std::stoi(match[3]);
      const std::string table = "bertfuse tuning 1\n" + line + "\n";
      std::vector<std::string> left_out;
      const MeasuredGemms measured(table.c_str(), device, match[1], &left_out);
      ASSERT_TRUE(left_out.empty()) << line;
      const std::string op = match[5], words = match[10];
      const auto has = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
      const int64_t first = std::stoll(match[6]);
      const int64_t last = match[7].matched ? std::stoll(match[7].str().substr(1)) : first;
      int64_t& before = last_rows[op + match[8].str() + "x" + match[9].str() + words];
      EXPECT_GT(first, before) << line;
      before = last;
      const bool total = has(op, "ResidualNorm");
      GemmProblem problem = Bert(first, std::stoll(match[8]), std::stoll(match[9]), total || has(op, "LayerNorm"));
      problem.keeps_total = problem.adds_residual = total, problem.gates = has(op, "Gated");
      problem.device = &device, problem.measured = &measured;
      problem.fp8 = has(op, "-fp8");
      if (problem.fp8 || has(op, "-int8")) problem.x_bytes = 1;
      problem.gelu = has(op, "Gelu") || has(words, "gelu");
      problem.deterministic_rows = has(words, "deterministic");
      problem.biased = problem.gelu || (!problem.layer_norm && problem.n == problem.k);
      for (int64_t m : {first, (first + last) / 2, last}) {
        problem.m = m, problem.capacity = has(words, "packed") ? 2 * m : 0;
        const std::vector<GemmTactic> tactics = GemmTactics(problem);
        const auto is_it = [&](const GemmTactic& tactic) { return Describe(tactic) == match[11]; };
        EXPECT_EQ(std::count_if(tactics.begin(), tactics.end(), is_it), 1) << m << " rows: " << line;
        ASSERT_NE(measured.Find(problem), nullptr) << m << " rows: " << line;
        EXPECT_EQ(Describe(*measured.Find(problem)), match[11]);
      }
      for (int64_t m : {first - 1, last + 1}) {
        problem.m = m;
        EXPECT_EQ(measured.Find(problem), nullptr) << m << " rows: " << line;
      }
    }
  }
}

TEST(MeasuredGemms, RowsAreOfADeviceOrItsKind) {
  const char kTable[] =
      "bertfuse tuning 1, library 0.0.1\n# of a test\n"
      "NVIDIA H200, 9.0, 132 multiprocessors\tFusedGemm bfloat16 100-200x768x768\tsm90 64x64 cluster 2x1\t1.0\n"
      "NVIDIA H100, 9.0, 132 multiprocessors\tFusedGemm bfloat16 100-200x768x768\tsm90 64x64 cluster 1x2\t1.0\n"
      "NVIDIA H100, 9.0, 132 multiprocessors\tFusedGemm bfloat16 300x768x768\tsm90 65x64 cluster 1x2\t1.0\n"
      "NVIDIA H100, 9.0, 132 multiprocessors\tFusedGem bfloat16 300x768x768\tsm90 64x64 cluster 1x2\t1.0\n"
      "NVIDIA H100, 9.0, 132 multiprocessors\tFusedGemm bfloat16 1x1x768x768\tsm90 64x64 cluster 1x2\t1.0\n"
      "a line\n";
  GemmProblem problem = Bert(150, 768, 768, false);
  const auto chosen = [&](const std::string& identity, const kernels::Device& device) {
    std::vector<std::string> left_out;
    const MeasuredGemms measured(kTable, device, identity, &left_out);
    problem.measured = &measured;
    const GemmTactic* const found = measured.Find(problem);
    const std::string name = found == nullptr ? "" : Describe(*found);
    return name + " " + std::to_string(left_out.size());
  };
  EXPECT_EQ(chosen("NVIDIA H200, 9.0, 132 multiprocessors", Hopper()), "sm90 64x64 cluster 2x1 0");
  EXPECT_EQ(chosen("NVIDIA H100, 9.0, 132 multiprocessors", Hopper()), "sm90 64x64 cluster 1x2 3");
  EXPECT_EQ(chosen("NVIDIA GH200, 9.0, 132 multiprocessors", Hopper()), "sm90 64x64 cluster 1x2 3");  // the last row
  EXPECT_EQ(chosen("NVIDIA H100 PCIe, 9.0, 114 multiprocessors", Hopper(114)), " 0");
}

// Rows of FusedGemmResidualNorm are of products that may add the residual, which take FusedGemmLayerNorm's where they
// have none.
TEST(MeasuredGemms, ResidualNormsHaveRowsOfTheirOwn) {
  const char kTable[] =
      "bertfuse tuning 1\n"
      "NVIDIA H200, 9.0, 132 multiprocessors\tFusedGemmLayerNorm float16 1-900x768x768\t"
      "sm90 128x192 cluster 1x1 then LayerNorm, persistent warps\n"
      "NVIDIA H200, 9.0, 132 multiprocessors\tFusedGemmResidualNorm float16 100-200x768x768\t"
      "sm90 128x96 stages 4 cluster 1x1 then LayerNorm, persistent warps\n";
  const kernels::Device device = Hopper();
  std::vector<std::string> left_out;
  const MeasuredGemms measured(kTable, device, "NVIDIA H200, 9.0, 132 multiprocessors", &left_out);
  EXPECT_TRUE(left_out.empty());
  const auto block_n = [&](int64_t rows, bool keeps_total, bool adds_residual) {
    GemmProblem problem = Bert(rows, 768, 768, true);
    problem.keeps_total = keeps_total, problem.adds_residual = adds_residual;
    const GemmTactic* const found = measured.Find(problem);
    return found == nullptr ? 0 : found->tile.block.n;
  };
  EXPECT_EQ(block_n(150, true, true), 96);
  EXPECT_EQ(block_n(300, true, true), 192);
  EXPECT_EQ(block_n(150, true, false), 192);  // its product is normalised first, or y written in 8 bits
  EXPECT_EQ(block_n(150, false, false), 192);
}

// What a call does not allow is not chosen, measured or not; what nobody measured is chosen by the model.
TEST(MeasuredGemms, TheModelChoosesTheRest) {
  int measured = 0, modelled = 0;
  ForRandomProblems([&](GemmProblem problem) {
    const GemmChoice without = ChooseGemmTactic(problem);
    EXPECT_EQ(without.by, ChosenBy::kModel);
    problem.measured = &OnH200();
    if (problem.m % 2 == 0) problem.n = 768, problem.k = 3072, problem.layer_norm = true;
    for (size_t workspace : {SIZE_MAX, size_t{0}}) {
      problem.workspace = workspace;
      const GemmChoice choice = ChooseGemmTactic(problem);
      EXPECT_TRUE(Runs(problem, choice.tactic)) << Describe(choice.tactic);
      const GemmTactic* const found = OnH200().Find(problem);
      const bool runs = found != nullptr && Runs(problem, WithLayerNormKernel(problem, *found));
      EXPECT_EQ(choice.by, runs ? ChosenBy::kMeasured : ChosenBy::kModel);
      (choice.by == ChosenBy::kMeasured ? measured : modelled) += 1;
    }
  });
  EXPECT_GT(measured, 500);
  EXPECT_GT(modelled, 500);
}

// A choice that depends on what it is remembered for: each of a problem's fields tells two problems apart.
TEST(MeasuredGemms, RememberedChoicesAreOfTheSameProblem) {
  GemmProblem first = Bert(4225, 768, 3072, true);
  first.measured = &OnH200();
  GemmProblem packed = first, deterministic = first, short_of_workspace = first;
  packed.capacity = 5000, deterministic.deterministic_rows = true, short_of_workspace.workspace = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(ChooseGemmTactic(first).tactic.tile.splits, 1);
    EXPECT_GT(ChooseGemmTactic(packed).tactic.tile.splits, 1);
    EXPECT_EQ(ChooseGemmTactic(deterministic).tactic.tile.splits, 1);
    EXPECT_EQ(ChooseGemmTactic(short_of_workspace).tactic.tile.splits, 1);
  }
}

}  // namespace
}  // namespace bertfuse::cuda
