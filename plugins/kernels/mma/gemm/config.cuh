// Compile-time configuration of a product by mma.sync, and where things lie in shared memory.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_CONFIG_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_CONFIG_CUH_

#include "kernels/mma/gemm.h"
#include "kernels/mma/gemm/math.cuh"

namespace bertfuse::kernels::gemm_mma {

constexpr int kChunkBytes = 16;  // what one copy moves, and a row of one of ldmatrix's matrices

template <class Elements_, Math kMath_, int kIndex>
struct Config {
  using Elements = Elements_;
  using X = typename Elements::X;
  using Y = typename Elements::Y;
  using Accumulator = typename Elements::Accumulator;
  static_assert(std::is_same_v<X, typename Elements::Weight>);
  static constexpr Math kMath = kMath_;
  static constexpr Tile kTile = TilesOf<kMath>()[kIndex];
  static constexpr int kM = kTile.m, kN = kTile.n, kWarpM = kTile.warp_m, kWarpN = kTile.warp_n;
  static constexpr int kWarpsN = kN / kWarpN, kThreads = kTile.threads(), kBlocks = kTile.blocks;
  static constexpr int kSlices = kTile.slices, kThreadsOfSlice = kThreads / kSlices;
  static constexpr int kI = kWarpM / 16, kJ = kWarpN / 8;                  // mma tiles of a warp
  static constexpr int kRowBytes = kTile.row_bytes;                        // of a stage
  static constexpr int kStageK = kRowBytes / static_cast<int>(sizeof(X));  // in elements
  static constexpr int kSteps = kRowBytes / 32;                            // of a warp's tensor core, in a stage
  // Where registers are short: in long stages (but of slices, which are of few rows, and have some to spare), and
  // beside a step's own sums.
  static constexpr bool kComputesOffsets =
      kSlices == 1 && (kTile.has_long_stages() || (kMath == Math::kFp8 && kI * kJ == 32));
  static constexpr bool kRuns = kHasMma<X> && (kHasAsyncCopies || !kTile.has_long_stages());
  __device__ __forceinline__ static int RingBytesOf(int stages) {
    constexpr int kStageBytes = kSlices * StageBytes(kTile), kSums = RingBytes(kTile, 0);
    return max(stages * kStageBytes, kSums);
  }
  static_assert(kI > 0 && kJ % 2 == 0 && (kSteps == 2 || kSteps == 4));
  static_assert(kSlices == 1 || (kTile.has_long_stages() && !IsQuantized(kMath)));
};

// Byte offset of a 16-byte chunk of a row in a stage. Eight consecutive rows at the same chunk, which a matrix of
// ldmatrix is, fall into different banks; so do whole rows, one or two, which eight threads copy.
template <int kRowBytes>
__device__ __forceinline__ int ChunkOffset(int row, int chunk) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  return row * kRowBytes + ((chunk ^ (kRowBytes == 64 ? row >> 1 & 3 : row & 7)) << 4);
}

}  // namespace bertfuse::kernels::gemm_mma
#endif  // BERTFUSE_KERNELS_MMA_GEMM_CONFIG_CUH_
