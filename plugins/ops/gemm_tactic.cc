#include "ops/gemm_tactic.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "ops/gemm_candidates_cublaslt.h"
#include "ops/gemm_cost.h"
#include "ops/layer_norm_tactic.h"
#include "ops/measured_gemms.h"

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;

// Partial sums take little memory with few rows, but there may be many packed rows.
constexpr size_t kMaxPackedWorkspace = 64 << 20;

auto Fields(const GemmProblem& p) {
  return std::tie(p.m, p.n, p.k, p.layer_norm, p.backends, p.device, p.measured, p.workspace, p.capacity, p.x_bytes,
                  p.y_bytes, p.gelu, p.gates, p.keeps_total, p.adds_residual, p.deterministic_rows, p.biased,
                  p.layer_norm_vector, p.allow_tf32, p.cublaslt, p.fp8, p.quantizes, p.quantizes_rows, p.rotates);
}

// The tactics whose blocks the device has room for, without LayerNorm's kernels.
std::vector<GemmTactic> Products(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  for (const GemmCandidates* candidates : kGemmCandidates) {
    if (!problem.backends.Has(candidates->backend)) continue;
    if (candidates->list != nullptr) {
      candidates->list(problem, &tactics);
    } else {
      tactics.push_back({candidates->backend, problem.layer_norm ? GemmForm::kPartialSums : ProductForm(problem)});
    }
  }
  for (GemmTactic& tactic : tactics) tactic.gate = GateIsALaunch(problem, tactic);
  const auto is_too_large = [&](const GemmTactic& tactic) {
    const auto facts = CandidatesOf(tactic.backend).facts;
    return facts != nullptr && facts(problem, tactic).shared_bytes > problem.device->shared_bytes;
  };
  tactics.erase(std::remove_if(tactics.begin(), tactics.end(), is_too_large), tactics.end());
  return tactics;
}

// What was measured left y in its type. Where 8 bits are wanted it is the tile of that size that writes them, if all of
// y is one wave of such tiles: on an H200 128x96 tiles then took 9.6 us for the persistent kernel's 12.1 (int8,
// 1024x3072x768), but 34.5 for 30.3 in four waves. Else nothing: a kernel that writes 8 bits is most likely faster.
std::optional<GemmTactic> Measured(const GemmProblem& problem) {
  const GemmTactic* const found = problem.measured == nullptr ? nullptr : problem.measured->Find(problem);
  if (found == nullptr || !problem.quantizes || WritesQuantized(problem, *found) || GateIsALaunch(problem, *found)) {
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  GemmTactic tactic = *found;
  for (const kernels::GemmBlock& block : kernels::gemm_sm90::kQuantizingOneTileBlocks) {
    const int64_t tiles = kernels::CeilDiv(problem.m, int64_t{block.m}) * kernels::CeilDiv(problem.n, int64_t{block.n});
    const bool one_wave = tiles <= int64_t{block.per_multiprocessor} * problem.device->multiprocessors;
    const kernels::GemmBlock& measured = found->tile.block;
    if (block.m == measured.m && block.n == measured.n && one_wave) tactic.tile.block = block;
  }
  return WritesQuantized(problem, tactic) ? std::optional(tactic) : std::nullopt;
}

bool IsStationary(const GemmTactic& tactic) {
  return tactic.backend == Backend::kSm90 && kernels::gemm_sm90::IsStationary(tactic.tile.block);
}

// Whether a weight-stationary kernel, whose grid is as many blocks as whole rows of tiles have, leaves at most a
// twentieth of the multiprocessors idle, and most of its blocks have two tiles, whose work overlaps.
bool OccupiesBlocks(const GemmProblem& problem, const kernels::GemmBlock& block) {
  const int64_t columns = CeilDiv(problem.n, int64_t{block.n}), rows = CeilDiv(problem.m, int64_t{block.m}),
                for_each_column = problem.device->multiprocessors / columns;
  return for_each_column * columns * 20 >= int64_t{problem.device->multiprocessors} * 19 &&
         2 * rows >= 3 * for_each_column;
}

// Rows from which on the loading of a weight-stationary kernel's weight is paid for. On an H200, us of what was chosen
// without it, and by it, fp8 and int8: GELU 2048x3072x768 14.2, 14.6 and 13.5, 13.8; 2048x4096x1024 19.1, 19.6
// and 19.0, 19.2; 2048x2048x512 8.5, 8.8 and 8.8, 9.2; 2560x1536x384 7.7, 7.5 and 7.5, 8.4. LayerNorm of 384 columns,
// 1,024 rows 6.5, 6.8 and 6.0, 6.3; of 512, 4,096 rows 9.5, 9.8 and 9.6, 9.8, 5,120 11.0, 11.1 and 10.4, 11.0; of 768,
// 2,048 rows 9.6, 9.8 and 10.2, 10.5, 2,560 10.6, 10.8 and 10.4, 10.7; of 1,024, 2,560 rows 13.4, 14.0 and 12.5, 13.2,
// 4,096 17.1, 17.3 and 16.7, 17.9, 5,120 20.9, 21.3 and 18.7, 20.1. What was not measured begins late.
int64_t LeastStationaryRows(const GemmProblem& problem, const kernels::GemmTile& tile) {
  if (problem.quantizes) return problem.n < 3072 ? 3072 : 2048;
  if (tile.block.n == 128) return tile.cluster_n == 8 && problem.fp8 ? 2560 : 5120;
  constexpr int64_t kLeast[] = {2048, 1024, 5120, 2560};  // by blocks of 192 columns
  return kLeast[tile.cluster_n - 1];
}

// A weight-stationary kernel, where it pays.
std::optional<GemmTactic> Stationary(const GemmProblem& problem) {
  if (!(problem.quantizes && problem.gelu) && !problem.quantizes_rows) return std::nullopt;
  for (const GemmTactic& tactic : Products(problem)) {
    if (!IsStationary(tactic) || !Runs(problem, tactic)) continue;
    const bool pays = problem.m >= LeastStationaryRows(problem, tactic.tile) &&
                      (problem.quantizes_rows || OccupiesBlocks(problem, tactic.tile.block));
    return pays ? std::optional(tactic) : std::nullopt;
  }
  return std::nullopt;
}

// Few rows of 8-bit operands: the narrowest tiles, where all of them run at once, one or two to a multiprocessor. Each
// waits for so much less of the weight, and has so much less of an epilogue. bert-base on H200s in float16's time, fp8
// and int8, by tiles of 64x96, which costs had chosen, and by these: 1x16 1.02, 1.11 and 0.97, 1.01; 1x64 1.03, 1.10
// and 0.93, 0.98; 1x128 1.01, 1.09 and 0.93, 0.97; 2x128, where not all run at once, 0.99, 1.05 and 1.12, 1.16.
// (Products alone, one after the other, find none of this.)
std::optional<GemmTactic> Narrow(const GemmProblem& problem) {
  if (problem.x_bytes != 1 || problem.layer_norm || problem.gates || problem.rotates || Promotes(problem)) return {};
  for (const GemmTactic& tactic : Products(problem)) {
    const kernels::GemmTile& tile = tactic.tile;
    const kernels::GemmBlock& block = tile.block;
    if (tactic.backend != Backend::kSm90 || block.n != 32 || tile.cluster_m * tile.cluster_n > 1) continue;
    const int64_t tiles = CeilDiv(problem.m, int64_t{block.m}) * CeilDiv(problem.n, int64_t{block.n});
    const int64_t at_once = problem.device->multiprocessors *
                            ResidentBlocks(*problem.device, CandidatesOf(tactic.backend).facts(problem, tactic));
    return tiles <= at_once && Runs(problem, tactic) ? std::optional(tactic) : std::nullopt;
  }
  return std::nullopt;
}

bool PromotesAsItShould(const GemmProblem& problem, const GemmTactic& tactic) {
  // Of a last wave that is split the waves before are not.
  const int splits = tactic.form == GemmForm::kPartialSums ? tactic.tile.splits : 1;
  return tactic.tile.block.promotes == Promotes(problem, splits);
}

// Of Hopper's split-K. LayerNorm adds a row's partial sums in one place, which costs take to be spread over the device:
// they chose 12 splits of float16 where 4 were measured to be the fastest, and 8 of 8-bit operands, with which
// bert-base takes an H200 (ms by that, by 4 splits and by 3) at 1x16 0.231, 0.223, 0.224 in fp8 and 0.228, 0.220, 0.222
// in int8; bert-large in fp8, 2 layers, 0.0548, 0.0542, 0.0554.
bool SplitsTooMuch(const GemmTactic& tactic) {
  return tactic.backend == Backend::kSm90 && tactic.form == GemmForm::kPartialSums && tactic.tile.splits > 4;
}

// Where the workspace is too little for every tactic, the one that takes the least: its launch says what is missing.
GemmChoice Choose(GemmProblem problem) {
  if (problem.capacity > 0 && !problem.gates) problem.workspace = std::min(problem.workspace, kMaxPackedWorkspace);
  if (const auto stationary = Stationary(problem)) return {*stationary, ChosenBy::kModel};
  if (const auto measured = Measured(problem)) {
    const GemmTactic fitting = WithLayerNormKernel(problem, *measured);
    // Measured where nothing is rotated: with a launch more it need not be the fastest.
    const bool same = !problem.rotates || RotatesInEpilogue(problem, fitting);
    if (same && Runs(problem, fitting)) return {fitting, ChosenBy::kMeasured};
  }
  if (const auto narrow = Narrow(problem)) return {*narrow, ChosenBy::kModel};
  const std::optional<GemmTactic> cublaslt = CublasLtByDefault(problem);
  if (cublaslt && !PrefersMma(problem)) return {WithLayerNormKernel(problem, *cublaslt), ChosenBy::kModel};
  GemmTactic chosen = {};
  std::pair least = {std::numeric_limits<size_t>::max(), std::numeric_limits<double>::infinity()};
  for (const GemmTactic& product : Products(problem)) {
    const GemmTactic tactic = WithLayerNormKernel(problem, product);
    const auto facts = CandidatesOf(tactic.backend).facts;
    if (facts == nullptr || !IsDeterministicByRow(problem, tactic)) continue;
    if (tactic.backend == Backend::kSm90 && !PromotesAsItShould(problem, tactic)) continue;
    if (IsStationary(tactic) || SplitsTooMuch(tactic)) continue;
    // What cuBLASLt will replace needs no bytes: a smaller workspace must not turn the choice to mma.
    const size_t bytes = cublaslt && tactic.backend != Backend::kMma ? 0 : GemmWorkspaceSize(problem, tactic);
    const std::pair cost = {bytes <= problem.workspace ? 0 : bytes,
                            ExpectedMicroseconds(problem, tactic, facts(problem, tactic))};
    if (cost < least) chosen = tactic, least = cost;
  }
  if (cublaslt && chosen.backend != Backend::kMma) chosen = WithLayerNormKernel(problem, *cublaslt);
  return {chosen, ChosenBy::kModel};
}

}  // namespace

bool operator==(const GemmProblem& a, const GemmProblem& b) { return Fields(a) == Fields(b); }

std::vector<GemmTactic> GemmTactics(const GemmProblem& problem) {
  std::vector<GemmTactic> tactics;
  for (const GemmTactic& product : Products(problem)) {
    if (!LayerNormIsALaunch(problem, product)) {
      tactics.push_back(product);
      continue;
    }
    for (kernels::LayerNormKernel kernel : LayerNormKernels(problem, product)) {
      tactics.push_back(product);
      tactics.back().layer_norm = kernel;
    }
  }
  return tactics;
}

std::optional<GemmTactic> FindGemmTactic(const GemmProblem& problem, std::string_view name) {
  for (const GemmTactic& tactic : GemmTactics(problem)) {
    if (name == Describe(tactic)) return tactic;
  }
  return std::nullopt;
}

GemmChoice ChooseGemmTactic(const GemmProblem& problem) {
  // A model asks for the same few problems over and over.
  struct Remembered {
    GemmProblem problem;
    GemmChoice choice;
    bool made = false;
  };
  thread_local std::array<Remembered, 64> remembered;
  const uint64_t mixed = (static_cast<uint64_t>(problem.m) * 31 + static_cast<uint64_t>(problem.n)) * 31 +
                         static_cast<uint64_t>(problem.k) + static_cast<uint64_t>(problem.workspace) * 7;
  Remembered& entry = remembered[mixed * 0x9E3779B97F4A7C15u >> 58];
  if (!entry.made || !(entry.problem == problem)) entry = {problem, Choose(problem), true};
  return entry.choice;
}

bool Runs(const GemmProblem& problem, const GemmTactic& tactic) {
  const bool splits_last_wave = tactic.form == GemmForm::kRounded && tactic.tile.splits > 1;
  if (splits_last_wave && PartialRows(problem, tactic) == 0) return false;  // of other rows it was one
  // Measured where y is wanted in 8 bits.
  const bool norm_in_8_bits = problem.layer_norm && IsStationary(tactic);
  const bool in_8_bits = tactic.backend == Backend::kSm90 && kernels::gemm_sm90::OnlyQuantizes(tactic.tile.block);
  if (in_8_bits && !(norm_in_8_bits ? problem.quantizes_rows : WritesQuantized(problem, tactic))) return false;
  // Measured where nothing but y is an output.
  if (problem.keeps_total && tactic.form == GemmForm::kComplete && !norm_in_8_bits) return false;
  // Measured with fewer rows to each that is real.
  if (!TakesPackedRows(problem, tactic)) return false;
  return problem.backends.Has(tactic.backend) && CublasLtHas(problem, tactic) &&
         IsDeterministicByRow(problem, tactic) && GemmWorkspaceSize(problem, tactic) <= problem.workspace;
}

// One backend computes all rows, and one of LayerNorm's kernels: they add up a row in different orders.
bool IsDeterministicByRow(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!problem.deterministic_rows) return true;
  if (tactic.layer_norm != WithLayerNormKernel(problem, tactic).layer_norm) return false;
  for (const GemmCandidates* candidates : kGemmCandidates) {
    if (candidates->rounds_alike == nullptr || !problem.backends.Has(candidates->backend)) continue;
    return candidates->backend == tactic.backend && candidates->rounds_alike(problem, tactic);
  }
  return false;
}

kernels::LastWave LastWaveOf(const GemmProblem& problem, const kernels::GemmTile& tile) {
  return {tile.cluster_m * tile.block.m,
          static_cast<int>(CeilDiv(problem.n, static_cast<int64_t>(tile.cluster_n) * tile.block.n)),
          std::max(problem.device->multiprocessors / (tile.cluster_m * tile.cluster_n), 1)};
}

int64_t UnsplitRows(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.form != GemmForm::kRounded || tactic.tile.splits == 1) return problem.m;
  return RowsOfFullPanels(LastWaveOf(problem, tactic.tile), problem.m);
}

int64_t PartialRows(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.form != GemmForm::kRounded || tactic.tile.splits == 1) return 0;
  if (problem.capacity == 0) return problem.m - UnsplitRows(problem, tactic);
  return MaxRowsLeft(LastWaveOf(problem, tactic.tile), problem.capacity);
}

size_t GemmWorkspaceSize(const GemmProblem& problem, const GemmTactic& tactic) {
  return GemmScratchOffset(problem, tactic) + CublasLtScratch(problem, tactic);
}

size_t GemmScratchOffset(const GemmProblem& problem, const GemmTactic& tactic) {
  if (tactic.form == GemmForm::kComplete) return 0;
  const auto rows = static_cast<size_t>(problem.capacity > 0 ? problem.capacity : problem.m);
  const auto columns = static_cast<size_t>(problem.n);
  if (tactic.form == GemmForm::kRounded && !problem.gates) {
    return static_cast<size_t>(PartialRows(problem, tactic)) * columns * (tactic.tile.splits - 1) * problem.y_bytes;
  }
  const size_t bytes = rows * columns * (problem.gates ? problem.y_bytes : tactic.tile.splits * sizeof(float));
  return CublasLtScratch(problem, tactic) == 0 ? bytes : (bytes + 255) / 256 * 256;
}

std::string Describe(const GemmTactic& tactic) {
  std::string name = kernels::FactsOf(tactic.backend).name;
  if (tactic.algorithm > 0) name += " algorithm " + std::to_string(tactic.algorithm + 1);
  const kernels::GemmTile& tile = tactic.tile;
  const auto shares_tile = CandidatesOf(tactic.backend).shares_tile;
  const auto text = [](int number) { return std::to_string(number); };
  if (tile.block.m > 0) {
    name += " " + text(tile.block.m) + "x" + text(tile.block.n);
    if (shares_tile != nullptr && shares_tile(tile.block)) name += " stages " + text(tile.block.stages);
    if (tile.block.long_stages) name += " long stages";
    if (tile.block.promotes) name += " promoting";
    if (tactic.backend == Backend::kSm90) name += " cluster " + text(tile.cluster_m) + "x" + text(tile.cluster_n);
    if (tactic.form == GemmForm::kPartialSums) name += " split-K " + text(tile.splits);
    if (tactic.form == GemmForm::kRounded && tile.splits > 1) name += " last wave split-K " + text(tile.splits);
  }
  if (tactic.gate) return name + " then gate";
  if (tactic.form == GemmForm::kRounded || tactic.layer_norm) name += " then LayerNorm";
  return tactic.layer_norm ? name + ", " + Describe(*tactic.layer_norm) : name;
}

const char* Describe(ChosenBy by) {
  return by == ChosenBy::kTuningFile ? "tuning file" : by == ChosenBy::kMeasured ? "measured" : "model";
}

}  // namespace bertfuse::cuda
