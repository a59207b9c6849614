// Products without tensor cores, of any size and alignment: kernels/portable/gemm_simt.cu chooses the tile.
#include "ops/gemm_candidates.h"

namespace bertfuse::cuda {
namespace {

using Block = kernels::GemmBlock;

constexpr Block kLarge = {128, 128, 2, 2}, kSmall = {32, 64, 2, 4};
constexpr int kBlockK = 16, kPitch = 20;  // floats that shared memory holds of each row, and room for
// 128 multiply-adds a cycle, of which reading the operands from shared memory leaves about half.
constexpr double kFlopsPerCycle = 128, kBytesPerCycle = 32;

GemmKernelFacts Facts(const GemmProblem& problem, const GemmTactic&) {
  const Block block = LargestThatFills(problem, kLarge, kSmall);
  return {{block},
          kBlockK * problem.x_bytes,
          block.stages * (block.m + block.n) * kPitch * static_cast<int>(sizeof(float)),
          kFlopsPerCycle,
          kBytesPerCycle,
          false};
}

// Every tile sums over k in the same order.
bool RoundsAlike(const GemmProblem&, const GemmTactic&) { return true; }

}  // namespace

const GemmCandidates kSimtCandidates = {Backend::kSimt, nullptr, Facts, RoundsAlike};

}  // namespace bertfuse::cuda
