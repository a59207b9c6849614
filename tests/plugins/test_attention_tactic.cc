// How attention is computed: arithmetic alone, no GPU is needed.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "ops/attention_tactic.h"

namespace bertfuse::cuda {
namespace {

AttentionProblem Problem(int64_t batch, int64_t sequence, int64_t heads, int64_t head_size) {
  return {batch, sequence, heads, head_size, {Backend::kSm90, Backend::kMma, Backend::kSimt}, 132};
}

std::string Chosen(int64_t batch, int64_t sequence, int64_t heads, int64_t head_size) {
  return Describe(ChooseAttentionTactic(Problem(batch, sequence, heads, head_size)));
}

TEST(AttentionTactic, TheChosenOneIsListedOnce) {
  for (int64_t head_size : {32, 64, 128}) {
    for (int64_t batch : {1, 3, 11, 64}) {
      for (int64_t sequence : {1, 64, 127, 128, 129, 512, 16384}) {
        for (int kind = 0; kind < 3; ++kind) {
          AttentionProblem problem = Problem(batch, sequence, 12, head_size);
          problem.variant = kind > 0, problem.rotates = kind > 1;
          std::multiset<std::string> names;
          for (const AttentionTactic& tactic : AttentionTactics(problem)) names.insert(Describe(tactic));
          EXPECT_EQ(names.size(), std::set<std::string>(names.begin(), names.end()).size());
          EXPECT_EQ(names.count(Describe(ChooseAttentionTactic(problem))), 1u) << sequence << " " << head_size;
        }
      }
    }
  }
}

// On an H200's 132 multiprocessors.
TEST(AttentionTactic, ByQueriesAndKeys) {
  EXPECT_EQ(Chosen(1, 64, 12, 64), "sm90 64x64");  // 12 tiles of 128 queries
  EXPECT_EQ(Chosen(1, 65, 12, 64), "sm90 64x128");
  EXPECT_EQ(Chosen(10, 128, 12, 32), "sm90 64x128");
  EXPECT_EQ(Chosen(1, 129, 12, 64), "sm90 64x64");  // 3 steps, or 2 of 128
  EXPECT_EQ(Chosen(4, 200, 12, 64), "sm90 64x128");
  EXPECT_EQ(Chosen(1, 128, 12, 128), "sm90 64x64");
  EXPECT_EQ(Chosen(11, 128, 12, 64), "sm90 128x128");  // 132
  EXPECT_EQ(Chosen(11, 129, 12, 64), "sm90 128x64 pipelines 2");
  EXPECT_EQ(Chosen(32, 384, 12, 32), "sm90 128x64 pipelines 2");
  EXPECT_EQ(Chosen(32, 384, 12, 128), "sm90 128x64");
}

// The fastest of what was measured on an H200, as if it had no wgmma.
TEST(AttentionTactic, FastestWithoutWgmma) {
  const auto chosen = [](int64_t batch, int64_t sequence, int64_t heads, int64_t head_size) {
    AttentionProblem problem = Problem(batch, sequence, heads, head_size);
    problem.backends = {Backend::kMma, Backend::kSimt};
    return Describe(ChooseAttentionTactic(problem));
  };
  EXPECT_EQ(chosen(1, 64, 12, 64), "mma 64x64");
  EXPECT_EQ(chosen(1, 128, 12, 64), "mma 64x128");
  EXPECT_EQ(chosen(8, 128, 12, 64), "mma 64x128");
  EXPECT_EQ(chosen(32, 128, 12, 64), "mma 128x32");
  EXPECT_EQ(chosen(8, 256, 12, 64), "mma 64x128");
  EXPECT_EQ(chosen(32, 256, 12, 64), "mma 128x128");
  EXPECT_EQ(chosen(32, 384, 12, 64), "mma 128x128");
  EXPECT_EQ(chosen(16, 512, 12, 64), "mma 128x128");
  EXPECT_EQ(chosen(8, 128, 8, 128), "mma 64x64");
  EXPECT_EQ(chosen(32, 128, 8, 128), "mma 128x64");
  EXPECT_EQ(chosen(16, 512, 8, 128), "mma 128x64");
  EXPECT_EQ(chosen(32, 128, 12, 32), "mma 64x64");
  EXPECT_EQ(chosen(32, 256, 12, 32), "mma 128x64");
}

TEST(AttentionTactic, VariantsButNarrowWindowsAreHoppers) {
  AttentionProblem problem = Problem(8, 512, 12, 64);
  problem.variant = true;
  EXPECT_EQ(ChooseAttentionTactic(problem).backend, Backend::kSm90);
  problem.window = 129;
  EXPECT_EQ(ChooseAttentionTactic(problem).backend, Backend::kSm90);
  problem.window = 33;
  EXPECT_EQ(ChooseAttentionTactic(problem).backend, Backend::kMma);
  problem.packed = true;
  EXPECT_EQ(ChooseAttentionTactic(problem).backend, Backend::kMma);
  problem.window = 0;
  EXPECT_EQ(ChooseAttentionTactic(problem).backend, Backend::kSm90);
  problem.backends = {Backend::kMma, Backend::kSimt};  // soft caps, biases by distance
  EXPECT_EQ(ChooseAttentionTactic(problem).backend, Backend::kMma);
}

// Those that do it are Hopper's, beside those that leave it to a launch before.
TEST(AttentionTactic, HeadsMayBeRotatedInside) {
  AttentionProblem problem = Problem(8, 512, 12, 64);
  problem.variant = true;
  const size_t without = AttentionTactics(problem).size();
  problem.rotates = true;
  const std::vector<AttentionTactic> tactics = AttentionTactics(problem);
  size_t rotating = 0;
  for (const AttentionTactic& tactic : tactics) {
    rotating += tactic.rotates;
    EXPECT_EQ(tactic.rotates, Describe(tactic).find(", rotates") != std::string::npos);
    EXPECT_TRUE(!tactic.rotates || tactic.backend == Backend::kSm90);
  }
  EXPECT_EQ(rotating, 3u);  // 64x64, 64x128, 128x64
  EXPECT_EQ(tactics.size(), without + rotating);
}

// As an H100 measured: not where a tile would rotate too many keys.
TEST(AttentionTactic, HeadsAreRotatedInsideForFewKeys) {
  const auto chosen = [](int64_t batch, int64_t sequence, int64_t window, bool packed = false) {
    AttentionProblem problem = Problem(batch, sequence, 12, 64);
    problem.variant = problem.rotates = true, problem.window = window, problem.packed = packed;
    return Describe(ChooseAttentionTactic(problem));
  };
  EXPECT_EQ(chosen(1, 128, 0), "sm90 64x128, rotates");
  EXPECT_EQ(chosen(32, 128, 0), "sm90 128x64 pipelines 2, rotates");
  EXPECT_EQ(chosen(8, 512, 0), "sm90 128x64 pipelines 2, rotates");
  EXPECT_EQ(chosen(8, 513, 0), "sm90 128x64 pipelines 2");
  EXPECT_EQ(chosen(2, 4096, 129), "sm90 128x64 pipelines 2, rotates");
  EXPECT_EQ(chosen(1, 1024, 129), "sm90 64x64, rotates");  // blocks of 128 keys have more that nothing sees
  EXPECT_EQ(chosen(128, 22, 129, true), "sm90 64x32 pipelines 2, rotates");
}

// Of packed sequences any may be longer than the mean: every tile takes every length.
TEST(AttentionTactic, PackedSequencesHaveAllTiles) {
  for (int64_t head_size : {32, 64, 128}) {
    for (int64_t batch : {1, 32, 2000}) {
      for (int64_t mean : {0, 1, 22, 128, 400}) {
        AttentionProblem problem = Problem(batch, mean, 12, head_size);
        problem.packed = true;
        std::set<std::string> names;
        for (const AttentionTactic& tactic : AttentionTactics(problem)) names.insert(Describe(tactic));
        EXPECT_EQ(names.size(), head_size == 128 ? 7u : head_size == 64 ? 12u : 8u);
        EXPECT_EQ(names.count(Describe(ChooseAttentionTactic(problem))), 1u) << batch << " " << mean;
      }
    }
  }
}

TEST(AttentionTactic, PackedByTheMeanLength) {
  const auto chosen = [](int64_t batch, int64_t mean, int64_t head_size) {
    AttentionProblem problem = Problem(batch, mean, 12, head_size);
    problem.packed = true;
    return Describe(ChooseAttentionTactic(problem));
  };
  EXPECT_EQ(chosen(4, 33, 64), "sm90 64x64");  // 48 tiles
  EXPECT_EQ(chosen(4, 65, 64), "sm90 64x64");
  EXPECT_EQ(chosen(128, 23, 64), "sm90 64x32 pipelines 2");
  EXPECT_EQ(chosen(32, 160, 32), "sm90 64x32 pipelines 2");
  EXPECT_EQ(chosen(32, 161, 64), "sm90 128x64 pipelines 2");
  EXPECT_EQ(chosen(128, 23, 128), "sm90 64x64");
  EXPECT_EQ(chosen(128, 65, 128), "sm90 128x64");
}

// Of packed sequences tiles with as many keys; of padded ones what no row of padding has a say in.
TEST(AttentionTactic, DeterministicRowsAreComputedAlike) {
  for (int64_t head_size : {32, 64, 128}) {
    for (bool packed : {false, true}) {
      std::set<std::string> chosen;
      for (int64_t batch : {1, 10, 11, 300}) {
        for (int64_t sequence : {1, 64, 65, 128, 129, 5000}) {
          AttentionProblem problem = Problem(batch, sequence, 12, head_size);
          problem.packed = packed, problem.deterministic_rows = true;
          const AttentionTactic tactic = ChooseAttentionTactic(problem);
          EXPECT_TRUE(IsDeterministicByRow(problem, tactic));
          const int keys = head_size == 128 ? 32 : 64;
          EXPECT_EQ(IsDeterministicByRow(problem, {Backend::kMma, {64, keys, 1}}), !packed);
          EXPECT_EQ(IsDeterministicByRow(problem, {Backend::kMma, {128, keys, 1}}), !packed);
          EXPECT_FALSE(IsDeterministicByRow(problem, {Backend::kMma, {128, 128, 1}}));
          EXPECT_FALSE(IsDeterministicByRow(problem, {Backend::kSm90, {128, 128, 1}}));
          EXPECT_FALSE(IsDeterministicByRow(problem, {Backend::kSm90, {64, 128, 1}}));
          EXPECT_EQ(tactic.backend, packed ? Backend::kSm90 : Backend::kMma);
          EXPECT_EQ(tactic.tile.keys, !packed && head_size == 128 ? 32 : 64);
          chosen.insert(Describe(tactic));
        }
      }
      EXPECT_EQ(chosen.size(), 2u);
    }
  }
  AttentionProblem problem = Problem(4, 128, 12, 64);
  problem.deterministic_rows = true, problem.backends = {Backend::kSimt};
  EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "simt");
}

// Where there is no wgmma: tiles of 128 queries where there are three for two multiprocessors, 84 here.
TEST(AttentionTactic, WithoutWgmma) {
  const auto chosen = [](int64_t batch, int64_t sequence, int64_t head_size, int shared_bytes) {
    AttentionProblem problem = {batch, sequence, 12, head_size, {Backend::kMma, Backend::kSimt}, 84};
    problem.shared_bytes = shared_bytes;
    return Describe(ChooseAttentionTactic(problem));
  };
  constexpr int kA100 = 163 << 10, kA10 = 99 << 10;
  EXPECT_EQ(chosen(1, 128, 64, kA10), "mma 64x128");  // 12 tiles
  EXPECT_EQ(chosen(64, 64, 64, kA10), "mma 64x64");
  EXPECT_EQ(chosen(64, 128, 64, kA10), "mma 128x32");
  EXPECT_EQ(chosen(3, 384, 64, kA10), "mma 64x128");  // 108
  EXPECT_EQ(chosen(16, 512, 64, kA100), "mma 128x128");
  EXPECT_EQ(chosen(16, 512, 64, kA10), "mma 64x128");  // one such block would have the multiprocessor for itself
  EXPECT_EQ(chosen(7, 128, 128, kA100), "mma 64x64");  // 84
  EXPECT_EQ(chosen(64, 64, 128, kA100), "mma 64x32");  // the other half of 128 rows would be empty
  EXPECT_EQ(chosen(32, 384, 128, kA10), "mma 64x32");  // two such blocks share a multiprocessor
  EXPECT_EQ(chosen(32, 384, 128, kA100), "mma 128x64");
  EXPECT_EQ(chosen(32, 384, 80, kA100), "mma 64x64");
  EXPECT_EQ(chosen(32, 384, 256, kA100), "mma 64x32");
}

// With 128 or 32 keys a tile for head size 64, which no variant takes.
TEST(AttentionTactic, OtherNumbersOfKeys) {
  AttentionProblem problem = {16, 512, 12, 64, {Backend::kMma, Backend::kSimt}, 84};
  for (bool variant : {false, true}) {
    problem.variant = variant;
    std::set<std::string> names;
    for (const AttentionTactic& tactic : AttentionTactics(problem)) names.insert(Describe(tactic));
    EXPECT_EQ(names.count("mma 64x128"), variant ? 0u : 1u);
    EXPECT_EQ(names.count("mma 128x128"), variant ? 0u : 1u);
    EXPECT_EQ(names.count("mma 128x32"), variant ? 0u : 1u);
    EXPECT_EQ(names.count("mma 128x64"), 1u);
    EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), variant ? "mma 128x64" : "mma 128x128");
  }
}

// What was tuned for sizes may be of a layer without a variant.
TEST(AttentionTactic, VariantsDoNotHaveAll) {
  AttentionProblem problem = {16, 512, 12, 64, {Backend::kMma, Backend::kSimt}, 84};
  const AttentionTactic narrow = {Backend::kMma, {64, 64, 1}}, wide = {Backend::kMma, {128, 64, 1}};
  const AttentionTactic more_keys = {Backend::kMma, {128, 128, 1}};
  for (const AttentionTactic& tactic : {narrow, wide, more_keys}) EXPECT_TRUE(HasTactic(problem, tactic));
  problem.variant = true;
  EXPECT_TRUE(HasTactic(problem, wide));
  EXPECT_FALSE(HasTactic(problem, more_keys));
  problem.positions = true;
  EXPECT_TRUE(HasTactic(problem, narrow));
  EXPECT_FALSE(HasTactic(problem, wide));
  EXPECT_FALSE(HasTactic(problem, {Backend::kSm90, kernels::attention_sm90::kLong}));
}

// float32's tiles take twice the shared memory.
TEST(AttentionTactic, Float32) {
  using kernels::attention_mma::Math;
  constexpr int kA100 = 163 << 10, kA10 = 99 << 10;
  for (Math math : {Math::kTf32, Math::kThreeTf32}) {
    AttentionProblem problem = {16, 512, 12, 64, {Backend::kMma, Backend::kSimt}, 108};
    problem.math = math, problem.shared_bytes = kA100;
    EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "mma 128x32");
    EXPECT_EQ(AttentionTactics(problem).size(), 3u);
    problem.shared_bytes = kA10;
    EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "mma 64x32");
    problem.batch = 1, problem.sequence = 128, problem.shared_bytes = kA100;
    EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "mma 64x32");
    problem.head_size = 32;
    EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "mma 64x64");
    problem.batch = 32, problem.sequence = 256;
    EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), math == Math::kTf32 ? "mma 64x64" : "mma 128x64");
  }
}

TEST(AttentionTactic, WhatTakesEveryCallComesLast) {
  AttentionProblem problem = Problem(32, 384, 12, 64);
  EXPECT_EQ(Describe(AttentionTactics(problem).back()), "simt");
  problem.backends = {Backend::kMma, Backend::kSimt};
  EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "mma 128x128");
  problem.backends = {Backend::kSimt};
  EXPECT_EQ(Describe(ChooseAttentionTactic(problem)), "simt");
  EXPECT_EQ(AttentionTactics(problem).size(), 1u);
}

}  // namespace
}  // namespace bertfuse::cuda
