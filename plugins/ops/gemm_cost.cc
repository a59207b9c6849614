#include "ops/gemm_cost.h"

#include <algorithm>
#include <cmath>

namespace bertfuse::cuda {
namespace {

using kernels::CeilDiv;
using kernels::Device;

// As GemmConstants, the same for all kernels. They are fitted to random products of hidden sizes 256 to 2048 and 16 to
// 20,000 rows, so that what is chosen takes little more time on an H200 than what the times measured there choose.
constexpr double kClusterStart = 1000;  // cycles until all blocks of a cluster run
constexpr double kLoadLatency = 2500;   // cycles of a loaded device from a load's issue to its data: a ring hides it
constexpr double kStageSync = 80;       // cycles of a stage's barriers, and of issuing its loads
constexpr double kEpilogue = 0.20;      // cycles of a multiprocessor for an element of the tile: bias, rounding, store
constexpr double kActivation = 0.15;    // the same for GELU
constexpr double kExchange = 1750;      // cycles in which a cluster's blocks tell each other a row's sums
constexpr double kElementwiseBytes = 22;  // per cycle of a multiprocessor, through the L2 cache, of LayerNorm's kernel
constexpr double kWavesInStep = 3;        // that begin together, and then drift apart: see GemmConstants::exposed
constexpr double kUnhidden = 0.1;         // of the shorter of computing and moving bytes to and from device memory
constexpr double kSharedWork = 0.75;  // of the time for the product, what counts by all work, not by the longest block

constexpr int kMultiprocessorsOfCluster = 16;  // of a GPC, within which a cluster lies

// Blocks that the device runs at a time. Larger clusters than pairs leave multiprocessors of a GPC idle.
double AtOnce(const Device& device, const GemmKernelFacts& facts) {
  const int cluster = facts.tile.cluster_m * facts.tile.cluster_n;
  const int gpcs = device.multiprocessors / kMultiprocessorsOfCluster;
  const int clusters =
      cluster > 2 && gpcs > 0 ? gpcs * (kMultiprocessorsOfCluster / cluster) : device.multiprocessors / cluster;
  return std::max(clusters, 1) * cluster * ResidentBlocks(device, facts);
}

// `full` waves, of which a multiprocessor has `together` blocks, and one of which it has `last`, which may be none.
struct Waves {
  double full, together, last;

  double Count() const { return full + (last > 0 ? 1 : 0); }
  // cycles(blocks of a multiprocessor) of each, added up.
  template <class Cycles>
  double Sum(Cycles&& cycles) const {
    return full * cycles(together) + (last > 0 ? cycles(last) : 0);
  }
};

// What the blocks of some rows take, their k split `splits` ways.
struct Blocks {
  double count;
  Waves waves;
  double stages;
};

Waves WavesOf(const Device& device, const GemmKernelFacts& facts, double count) {
  const double at_once = AtOnce(device, facts), each = std::ceil(count / device.multiprocessors);
  const double together = ResidentBlocks(device, facts);
  if (!facts.constants->counts_last_wave) return {std::ceil(count / at_once), std::min(together, each), 0};
  const double full = std::floor(count / at_once);
  return {full, together, std::ceil((count - full * at_once) / device.multiprocessors)};
}

Blocks BlocksOf(const GemmProblem& problem, const GemmKernelFacts& facts, int64_t rows, int splits) {
  const kernels::GemmTile& tile = facts.tile;
  const int64_t clusters = CeilDiv(rows, int64_t{tile.cluster_m} * tile.block.m) *
                           CeilDiv(problem.n, int64_t{tile.cluster_n} * tile.block.n);
  const auto count = static_cast<double>(clusters * tile.cluster_m * tile.cluster_n * splits);
  const int64_t stages = CeilDiv(problem.k * problem.x_bytes, facts.stage_row_bytes);
  return {count, WavesOf(*problem.device, facts, count), static_cast<double>(CeilDiv(stages, splits))};
}

// Cycles of the product's stages. A stage takes a multiprocessor as long as its product, or its operands' way from the
// L2 cache (multicast saves reads, not what arrives), and a block alone no less than a load's latency over the ring's
// stages, or its own instructions' latency. Multiprocessors share power and the L2 cache, so that a part of that time
// goes by the work of all of them, where a wave is not full.
double StageCycles(const GemmProblem& problem, const GemmKernelFacts& facts, const Blocks& blocks) {
  const kernels::GemmTile& tile = facts.tile;
  const Device& device = *problem.device;
  const double flops = 2.0 * tile.block.m * tile.block.n * facts.stage_row_bytes / problem.x_bytes;
  const double bytes = static_cast<double>(facts.stage_row_bytes) * (tile.block.m + tile.block.n);
  const double stage = std::max(flops / (facts.constants->sustained_tensor * facts.flops_per_cycle),
                                bytes / (facts.constants->sustained_loads * facts.bytes_per_cycle));
  const double share = blocks.count / device.multiprocessors;
  const int under_way = facts.rings * std::max(tile.block.stages - 1, 1);
  const double alone = std::max(kLoadLatency / under_way, facts.stage_latency);
  const double longest =
      blocks.waves.Sum([&](double together) { return std::max(together * stage + kStageSync, alone); });
  return blocks.stages *
         std::max((1 - kSharedWork) * longest + kSharedWork * share * stage, facts.constants->longest_block * longest);
}

// Cycles of LayerNorm: among a cluster's blocks, or of a launch that reads the product, its partial sums and the
// residual.
double LayerNormCycles(const GemmProblem& problem, const GemmTactic& tactic, double split_rows) {
  if (!problem.layer_norm) return 0;
  if (tactic.form == GemmForm::kComplete) return kExchange;
  const double partial_bytes = tactic.form == GemmForm::kPartialSums ? sizeof(float) : problem.y_bytes;
  // It reads product and residual and writes y and, where that is an output, the sum; or it reads the sum alone.
  const double transfers = AddsResidual(problem, tactic) ? 2 : problem.adds_residual ? 4 : 3;
  const double bytes_of_row = transfers * problem.y_bytes * static_cast<double>(problem.n);
  const double bytes_of_partials = 2 * partial_bytes * (tactic.tile.splits - 1) * static_cast<double>(problem.n);
  return (bytes_of_row * static_cast<double>(problem.m) + bytes_of_partials * split_rows) /
         (kElementwiseBytes * problem.device->multiprocessors);
}

// Cycles of a gate's launch, which reads the product and writes half as much.
double GateCycles(const GemmProblem& problem, const GemmTactic& tactic) {
  if (!GateIsALaunch(problem, tactic)) return 0;
  return 1.5 * problem.y_bytes * static_cast<double>(problem.n) * static_cast<double>(problem.m) /
         (kElementwiseBytes * problem.device->multiprocessors);
}

// Microseconds of a launch that reads y and writes it in 8 bits, as a gate's launch does itself.
double QuantizingMicroseconds(const GemmProblem& problem, const GemmTactic& tactic, const GemmConstants& constants) {
  if (!problem.quantizes || WritesQuantized(problem, tactic) || GateIsALaunch(problem, tactic)) return 0;
  const double bytes = (problem.y_bytes + 1.0) * static_cast<double>(problem.n) * static_cast<double>(problem.m);
  return constants.another_launch +
         bytes / (kElementwiseBytes * problem.device->multiprocessors * problem.device->clock_mhz);
}

// Microseconds of a launch that reads heads of y and writes them rotated.
double RotatingMicroseconds(const GemmProblem& problem, const GemmTactic& tactic, const GemmConstants& constants) {
  if (!problem.rotates || RotatesInEpilogue(problem, tactic)) return 0;
  const double bytes = 2.0 * problem.y_bytes * static_cast<double>(problem.n) * static_cast<double>(problem.m);
  return constants.launch + bytes / (kElementwiseBytes * problem.device->multiprocessors * problem.device->clock_mhz);
}

// Bytes to and from device memory: the weight, and the rest where the L2 cache does not hold it from kernel to kernel.
double MemoryBytes(const GemmProblem& problem) {
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n), k = static_cast<double>(problem.k);
  const double rows = m * (k * problem.x_bytes + n * problem.y_bytes);
  return n * k * problem.x_bytes + (rows > problem.device->l2_bytes ? rows : 0);
}

}  // namespace

double TensorFlopsPerCycle(int compute_capability) {
  struct Rate {
    int compute_capability;
    double flops_per_cycle;
  };
  constexpr Rate kRates[] = {{120, 1024}, {100, 8192}, {90, 4096}, {86, 1024}, {80, 2048}, {70, 1024}};
  for (const Rate& rate : kRates) {
    if (compute_capability >= rate.compute_capability) return rate.flops_per_cycle;
  }
  return Float32FlopsPerCycle(compute_capability);
}

int ResidentBlocks(const Device& device, const GemmKernelFacts& facts) {
  const int by_memory = device.shared_bytes_per_multiprocessor / (facts.shared_bytes + kernels::kReservedShared);
  return std::clamp(by_memory, 1, std::max(facts.tile.block.per_multiprocessor, 1));
}

double Float32FlopsPerCycle(int compute_capability) { return compute_capability <= 80 ? 128 : 256; }

double ExpectedMicroseconds(const GemmProblem& problem, const GemmTactic& tactic, const GemmKernelFacts& facts) {
  const Device& device = *problem.device;
  const GemmConstants& constants = *facts.constants;
  const int64_t unsplit_rows = tactic.form == GemmForm::kPartialSums ? 0 : UnsplitRows(problem, tactic);
  const Blocks unsplit = BlocksOf(problem, facts, unsplit_rows, 1);
  const int64_t split_rows = std::max<int64_t>(problem.m, 1) - unsplit_rows;
  const Blocks split = BlocksOf(problem, facts, split_rows, facts.tile.splits);
  const bool gates = problem.gates && tactic.form == GemmForm::kComplete;
  const double elements = static_cast<double>(facts.tile.block.m) * facts.tile.block.n;
  // A gate stores half as many elements as the tile has, and computes an activation for as many.
  const double plain = gates ? (kEpilogue + kActivation) / 2 : kEpilogue + (problem.gelu ? kActivation : 0);
  const double each = plain * facts.slower_epilogue;
  const double start = constants.fill + (facts.tile.cluster_m * facts.tile.cluster_n > 1 ? kClusterStart : 0);
  const auto beside_stages = [&](double together) { return start + elements * together * each; };
  const double besides = unsplit.waves.Sum(beside_stages) + split.waves.Sum(beside_stages);
  const double stages = StageCycles(problem, facts, unsplit) + StageCycles(problem, facts, split);
  const double waves = unsplit.waves.Count() + split.waves.Count();
  const int resident = ResidentBlocks(device, facts);
  const double in_step = std::min(besides, kWavesInStep * beside_stages(resident));
  // A persistent kernel's epilogues but the last run beside the next tiles' products, if these take as long.
  const double product = facts.overlaps_epilogue
                             ? start + elements * each + std::max(stages, (waves - 1) * elements * each)
                         : resident > 1 ? in_step + (besides - in_step) * constants.exposed + stages
                                        : besides + stages;
  const double cycles =
      product + LayerNormCycles(problem, tactic, static_cast<double>(split_rows)) + GateCycles(problem, tactic);
  const bool launches_another = (problem.layer_norm || problem.gates) && tactic.form != GemmForm::kComplete;
  const double other_launch =
      launches_another
          ? constants.another_launch + (tactic.form == GemmForm::kPartialSums ? constants.of_partial_sums : 0)
          : 0;
  const double computing = cycles / device.clock_mhz, moving = MemoryBytes(problem) / (device.memory_gb_s * 1e3);
  return constants.launch + QuantizingMicroseconds(problem, tactic, constants) +
         RotatingMicroseconds(problem, tactic, constants) + other_launch + std::max(computing, moving) +
         kUnhidden * std::min(computing, moving);
}

}  // namespace bertfuse::cuda
