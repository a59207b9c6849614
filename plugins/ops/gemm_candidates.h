// What each backend tells the choice of a product's tactic: which tactics it has, and what their kernels are to the
// cost model. A backend's row is in a file of its own, gemm_candidates_BACKEND.cc.
#ifndef BERTFUSE_OPS_GEMM_CANDIDATES_H_
#define BERTFUSE_OPS_GEMM_CANDIDATES_H_

#include <optional>
#include <vector>

#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

// What a family of kernels makes of a device; cycles scale with its clock. Fitted to times (docs/kernels.md says how
// well they choose).
struct GemmConstants {
  double launch;            // microseconds from one kernel's end to the next one's first instruction
  double another_launch;    // the same of what runs behind the product: LayerNorm, a gate
  double of_partial_sums;   // microseconds more where it adds partial sums
  double fill;              // cycles before a block's first product: its set-up and the first load
  double sustained_tensor;  // of flops_per_cycle
  double sustained_loads;   // of bytes_per_cycle, an estimate which the fit may exceed
  double longest_block;     // of the longest blocks' time, at least, that all stages take
  // Whether a last wave that is not full takes as long as the blocks that a multiprocessor has of it; else as a full
  // one.
  bool counts_last_wave;
  // Of starts and epilogues, where blocks share a multiprocessor, behind the waves in which these are in step: one's
  // run beside another's product.
  double exposed;
};

// By TMA and wgmma (and SIMT, which nothing was fitted to), where what follows begins before the product ends
// (programmatic dependent launch).
inline constexpr GemmConstants kWgmmaConstants = {1.5, 1.0, 0, 1200, 0.62, 0.9, 0, false, 1};

// By cp.async and mma.sync: of code for 8.0, each launch behind the end of the one before. Code for 9.0 and later,
// whose launches overlap, was not measured.
inline constexpr GemmConstants kMmaConstants = {1.4, 2.4, 1.5, 3300, 0.94, 1.45, 0.82, true, 0.7};

// One launch of a tactic's product, as the cost model (ops/gemm_cost.h) takes it. Its tiles are tactic.tile's; a
// backend that chooses its tile itself says here which one it would take.
struct GemmKernelFacts {
  kernels::GemmTile tile;
  int stage_row_bytes = 0;         // of k that a stage holds of each row
  int shared_bytes = 0;            // of a block
  double flops_per_cycle = 0;      // of a multiprocessor, at most, by the instructions that the kernel uses
  double bytes_per_cycle = 0;      // of operands that a multiprocessor takes in from the L2 cache, about
  bool overlaps_epilogue = false;  // persistent: a tile's epilogue runs beside the next tile's product
  double stage_latency = 0;        // cycles of a stage, by its instructions' latencies, in a block that runs alone
  int rings = 1;                   // of a block, of tile.block.stages each
  const GemmConstants* constants = &kWgmmaConstants;
  double slower_epilogue = 1;  // than others': so many times the cycles for an element
};

struct GemmCandidates {
  Backend backend;
  // Appends every tactic that the backend has for the problem, without LayerNorm's kernels, in an order that does not
  // change from call to call. Null: it chooses its tile itself, one tactic without one.
  void (*list)(const GemmProblem& problem, std::vector<GemmTactic>* tactics) = nullptr;
  // Null: the cost model never chooses one of the backend's, but a measurement, a user or code of its own.
  GemmKernelFacts (*facts)(const GemmProblem& problem, const GemmTactic& tactic) = nullptr;
  // Whether a row's bits are those that any other tactic of the backend gives it for which this holds, whatever m is;
  // null: none's are.
  bool (*rounds_alike)(const GemmProblem& problem, const GemmTactic& tactic) = nullptr;
  // Whether another of its blocks has the same tile, so that the name of a tactic tells their stages; null: none has.
  bool (*shares_tile)(const kernels::GemmBlock& block) = nullptr;
};

extern const GemmCandidates kSm90Candidates;      // gemm_candidates_sm90.cc
extern const GemmCandidates kCublasLtCandidates;  // gemm_candidates_cublaslt.cc
extern const GemmCandidates kMmaCandidates;       // gemm_candidates_mma.cc
extern const GemmCandidates kSimtCandidates;      // gemm_candidates_simt.cc

// In the order of kernels::kBackends.
inline constexpr const GemmCandidates* kGemmCandidates[] = {&kSm90Candidates, &kCublasLtCandidates, &kMmaCandidates,
                                                            &kSimtCandidates};

inline const GemmCandidates& CandidatesOf(Backend backend) { return *kGemmCandidates[static_cast<int>(backend)]; }

// The larger block where it has a tile for each multiprocessor, else the smaller one.
inline kernels::GemmBlock LargestThatFills(const GemmProblem& problem, const kernels::GemmBlock& large,
                                           const kernels::GemmBlock& small) {
  const int64_t tiles = kernels::CeilDiv(problem.m, large.m) * kernels::CeilDiv(problem.n, large.n);
  return tiles >= problem.device->multiprocessors ? large : small;
}

// Dense operations of tensor cores on 16-bit operands, a multiplication and an addition each counted, in a cycle of one
// multiprocessor: NVIDIA's data sheets' peak over multiprocessors and boost clock. With float32 accumulators; TF32 has
// half of it.
double TensorFlopsPerCycle(int compute_capability);

// Of mma.sync, which every architecture has: 9.0 and 10.0 reach their tensor cores' peak by other instructions.
inline constexpr double kMostMmaFlopsPerCycle = 2048;

// The same of float32 arithmetic.
double Float32FlopsPerCycle(int compute_capability);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_CANDIDATES_H_
