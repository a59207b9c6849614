// Hopper's products: what kernels/sm90/gemm.h says is compiled, in clusters of every shape that it is compiled for.
#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/tensor_map.h"
#include "ops/gemm_candidates.h"

namespace bertfuse::cuda {
namespace {

namespace sm90 = kernels::gemm_sm90;
using Block = kernels::GemmBlock;

constexpr int kMaxLastWaveSplits = kernels::kMaxMorePartials + 1;  // the partial sums that LayerNorm takes
constexpr double kBytesPerCycle = 64;                              // TMA
constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 12};                  // of float32 partial sums

const sm90::Blocks& BlocksOf(const GemmProblem& problem) {
  return problem.x_bytes == 2 ? sm90::kHalfBlocks : problem.fp8 ? sm90::kFp8Blocks : sm90::kInt8Blocks;
}

// The persistent kernel loads the weight by 32 rows.
bool Supports(const GemmProblem& problem, const Block& block) {
  return !sm90::IsPersistent(block) || problem.n % 32 == 0;
}

// Every split has a stage.
bool CanSplit(const GemmProblem& problem, int splits) {
  return (splits - 1) * Stages(problem, splits) < Stages(problem);
}

void ListElementwise(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  const auto add_block = [&](const Block& block) {
    if (!Supports(problem, block)) return;
    const auto add = [&](int cluster_m, int cluster_n) {
      tactics->push_back({Backend::kSm90, ProductForm(problem), {block, cluster_m, cluster_n, 1}});
    };
    for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) add(cluster_m, cluster_n);
    if (block.m == 64 && block.n == 96) add(3, 1);
  };
  for (const Block& block : BlocksOf(problem).persistent) add_block(block);
  for (const Block& block : BlocksOf(problem).one_tile) add_block(block);
  if (!problem.quantizes || problem.gates) return;
  for (const Block& block : sm90::kStationaryBlocks) {
    const bool fits = problem.k <= sm90::MostStationaryK(block) && problem.n % 32 == 0 &&
                      kernels::CeilDiv(problem.n, int64_t{block.n}) <= problem.device->multiprocessors;
    if (fits) tactics->push_back({Backend::kSm90, ProductForm(problem), {block, 1, 1, 1}});
  }
  for (const Block& block : sm90::kQuantizingOneTileBlocks) {
    const auto& others = BlocksOf(problem).one_tile;
    if (std::find(others.begin(), others.end(), block) == others.end()) add_block(block);
  }
}

// Whether there are kernels that multiply both factors of a gate in their epilogue.
bool GatesInEpilogue(const GemmProblem& problem) {
  return problem.gates && problem.n / 2 % (problem.x_bytes == 2 ? 8 : kernels::kPermutedRows) == 0;
}

// A slice of the weight that a block loads is of both factors: whole groups of rows of each.
void ListGated(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  const auto add_block = [&](const Block& block) {
    const int rows = sm90::IsPersistent(block) ? kernels::kPermutedRows : 8;
    if (problem.n / 2 % rows != 0) return;
    for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
      if (block.n / 2 % (rows * cluster_m) != 0) continue;
      tactics->push_back({Backend::kSm90, GemmForm::kComplete, {block, cluster_m, cluster_n, 1}});
    }
  };
  for (const Block& block : BlocksOf(problem).persistent) add_block(block);
  if (problem.x_bytes != 2) return;
  for (const Block& block : sm90::kGatedOneTileBlocks) add_block(block);
}

// A cluster's blocks span a row, and normalise it together.
void ListLayerNorm(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  for (const Block& block : BlocksOf(problem).layer_norm) {
    const int64_t blocks = problem.n / block.n;
    if (problem.n % block.n != 0 || blocks > kernels::kMaxCluster) continue;
    for (int cluster_m = 1; cluster_m <= 2 && cluster_m * blocks <= kernels::kMaxCluster; ++cluster_m) {
      tactics->push_back({Backend::kSm90, GemmForm::kComplete, {block, cluster_m, static_cast<int>(blocks), 1}});
    }
  }
}

// The same in 8 bits, too.
void ListStationaryNorm(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  for (const Block& block : sm90::kStationaryBlocks) {
    if (problem.n % block.n != 0 || std::max(problem.n, problem.k) > sm90::MostStationaryK(block)) continue;
    if (problem.n / block.n > problem.device->multiprocessors) continue;
    tactics->push_back({Backend::kSm90, GemmForm::kComplete, {block, 1, static_cast<int>(problem.n / block.n), 1}});
  }
}

void ListSplitK(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  for (const Block& block : BlocksOf(problem).split_k) {
    for (int splits : kSplits) {
      if (!CanSplit(problem, splits)) continue;
      for (const auto& [cluster_m, cluster_n] : {std::pair(1, 1), {2, 1}, {1, 4}, {3, 1}}) {
        tactics->push_back({Backend::kSm90, GemmForm::kPartialSums, {block, cluster_m, cluster_n, splits}});
      }
    }
  }
}

void ListSplitLastWave(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  if (problem.n > kernels::kMaxSplitColumns) return;
  for (const Block& block : BlocksOf(problem).persistent) {
    if (!Supports(problem, block)) continue;
    for (int cluster_m : {1, 2}) {
      for (int splits = 2; splits <= kMaxLastWaveSplits; ++splits) {
        const GemmTactic tactic = {Backend::kSm90, GemmForm::kRounded, {block, cluster_m, 1, splits}};
        if (CanSplit(problem, splits) && PartialRows(problem, tactic) > 0) tactics->push_back(tactic);
      }
    }
  }
}

void List(const GemmProblem& problem, std::vector<GemmTactic>* tactics) {
  if (problem.layer_norm && !problem.keeps_total) ListLayerNorm(problem, tactics);
  if (problem.quantizes_rows) ListStationaryNorm(problem, tactics);
  if (problem.layer_norm) ListSplitK(problem, tactics);
  if (GatesInEpilogue(problem)) ListGated(problem, tactics);
  ListElementwise(problem, tactics);
  if (problem.layer_norm) ListSplitLastWave(problem, tactics);
}

GemmKernelFacts Facts(const GemmProblem& problem, const GemmTactic& tactic) {
  const Block& block = tactic.tile.block;
  // The launch trims the rings of kernels whose blocks take one tile, where there are more blocks than multiprocessors.
  const bool trims = !sm90::IsPersistent(block) && !sm90::IsStationary(block);
  const int64_t used = trims ? std::min<int64_t>(Stages(problem, tactic.tile.splits) + 1, block.stages) : block.stages;
  const int shared_bytes = static_cast<int>(used) * (block.m + block.n) * kernels::kStageRowBytes;
  GemmKernelFacts facts = {
      tactic.tile,    kernels::kStageRowBytes,
      shared_bytes,   TensorFlopsPerCycle(problem.device->compute_capability) * (problem.x_bytes == 1 ? 2 : 1),
      kBytesPerCycle, sm90::IsPersistent(block) || sm90::IsStationary(block)};
  // GELU in 8 bits by one warpgroup for a tile, on an H200, fp8 and int8, us by persistent 128x192 tiles and by 128x128
  // ones, which two share: 8192x3072x768 64, 58 and 43, 44; 3072x1536x384 15.1, 13.7 and 9.7, 10.4; 16384x1536x384 54,
  // 48 and 33, 35.
  const bool alone = WritesQuantized(problem, tactic) && sm90::IsPersistent(block) && sm90::QuantizingTeam(block) == 1;
  if (alone) facts.slower_epilogue = 1.5;
  return facts;
}

// All kernels sum over k in the same order; they differ in when they round and add. The persistent kernel begins with
// the bias, the others end with it, as it does where there are scales. Integers that a launch of its own rounds may be
// others than an epilogue's (RoundedShares()). No kernel that promotes its sums multiplies gates or rotates heads.
bool RoundsAlike(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool gates = GatesInEpilogue(problem) && !Promotes(problem);
  const bool begins_with_bias = problem.biased && problem.x_bytes == 2 && sm90::IsPersistent(tactic.tile.block);
  const bool writes_quantized = problem.quantizes && (gates || !problem.gates);  // else the gate's launch does
  const bool rounds_in_epilogue = WritesQuantized(problem, tactic) == writes_quantized || problem.fp8;
  return tactic.form == (gates ? GemmForm::kComplete : ProductForm(problem)) && tactic.tile.splits == 1 &&
         !begins_with_bias && tactic.tile.block.promotes == Promotes(problem) &&
         RotatesInEpilogue(problem, tactic) == (problem.rotates && !Promotes(problem)) && rounds_in_epilogue;
}

bool SharesTile(const Block& block) {
  const auto is_of_size = [&](const Block& other) { return other.m == block.m && other.n == block.n; };
  return std::count_if(std::begin(sm90::kPersistentBlocks), std::end(sm90::kPersistentBlocks), is_of_size) +
             std::count_if(std::begin(sm90::kOneTileBlocks), std::end(sm90::kOneTileBlocks), is_of_size) >
         1;
}

}  // namespace

const GemmCandidates kSm90Candidates = {Backend::kSm90, List, Facts, RoundsAlike, SharesTile};

}  // namespace bertfuse::cuda
