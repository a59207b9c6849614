// Products by mma.sync, for the tensor cores of every architecture since 8.0 (without wgmma and TMA), and of float16 on
// 7.5.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_H_
#define BERTFUSE_KERNELS_MMA_GEMM_H_

#include <algorithm>
#include <climits>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/gemm.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {
namespace gemm_mma {

// A stage of the ring holds 64 bytes of k of each row: two steps of the tensor cores, and small enough for three stages
// of the largest tile in the 99 KB of 8.6, 8.9 and 12.x. Long stages hold 128, for half as many barriers and whole
// lines of the caches.
constexpr int kRowBytes = 64, kLongRowBytes = 128;

// A block's tile of y, what each of its warps computes of it, and how many blocks share a multiprocessor where shared
// memory allows it.
struct Tile {
  int m, n, warp_m, warp_n, blocks;
  int row_bytes = kRowBytes;  // of k that a stage of the ring holds of each row
  // Groups of warps that share the tile's k (CUTLASS: sliced-K). Of `slices` stages one after the other each has one,
  // in a ring of its own, with sums of its own for the whole tile, which meet at the end: so no group waits for
  // another's loads or barriers. Of few rows a multiprocessor has one small block, whose warps would else wait most of
  // the time.
  int slices = 1;
  constexpr int threads() const { return 32 * (m / warp_m) * (n / warp_n) * slices; }
  constexpr bool has_long_stages() const { return row_bytes == kLongRowBytes; }
};

// How a type is multiplied. kThreeTf32 splits each float32 into two TF32 numbers and adds three of their four products.
// kInt8: integers of 8 bits, summed exactly. kFp8: floats of 8 bits; tensor cores keep about 14 bits of a sum, so that
// each step has sums of its own, which are added with rounding.
enum class Math { kHalf, kTf32, kThreeTf32, kInt8, kFp8 };

constexpr bool IsQuantized(Math math) { return math == Math::kInt8 || math == Math::kFp8; }

// What is compiled, by Math. A warp tile of 64 x 64 has 128 accumulators and twice 32 registers of operands;
// kThreeTf32, which holds the operands' halves beside them, takes smaller ones.
// (A step of 8 bits takes 32 of k where kHalf's takes 16: the same registers and bytes.) TF32 in tiles of 128 x 128 was
// never the fastest: 114 us for the 98 of 128 x 64 with 4096x2304x768 on an H100.
inline constexpr Tile kHalfTiles[] = {{256, 128, 64, 64, 1},
                                      {128, 256, 64, 64, 1},
                                      {128, 128, 64, 64, 2},
                                      {128, 64, 64, 32, 3},
                                      {64, 128, 32, 64, 3},
                                      {64, 64, 32, 32, 4},
                                      {64, 32, 16, 32, 4},
                                      {256, 128, 64, 64, 1, kLongRowBytes},
                                      {128, 128, 64, 64, 2, kLongRowBytes},
                                      {128, 64, 64, 32, 3, kLongRowBytes},
                                      {64, 64, 32, 32, 4, kLongRowBytes},
                                      {64, 32, 32, 32, 2, kLongRowBytes, 4},
                                      {64, 48, 32, 48, 1, kLongRowBytes, 4},
                                      {64, 96, 32, 96, 1, kLongRowBytes, 4},
                                      {32, 32, 32, 32, 2, kLongRowBytes, 4}};
inline constexpr Tile kInt8Tiles[] = {kHalfTiles[0], kHalfTiles[1], kHalfTiles[2], kHalfTiles[3],
                                      kHalfTiles[4], kHalfTiles[5], kHalfTiles[6]};
inline constexpr Tile kFp8Tiles[] = {{128, 128, 64, 64, 2}, {128, 64, 64, 32, 2}, {64, 64, 32, 32, 4}};
inline constexpr Tile kTf32Tiles[] = {{128, 64, 64, 32, 3},
                                      {64, 64, 32, 32, 4},
                                      {64, 32, 16, 32, 4},
                                      {64, 32, 32, 32, 2, kLongRowBytes, 4},
                                      {64, 48, 32, 48, 1, kLongRowBytes, 4},
                                      {32, 32, 32, 32, 2, kLongRowBytes, 4}};
inline constexpr Tile kThreeTf32Tiles[] = {{128, 64, 64, 32, 2},
                                           {64, 64, 32, 32, 3},
                                           {64, 32, 16, 32, 4},
                                           {64, 32, 32, 32, 1, kLongRowBytes, 4},
                                           {64, 48, 16, 48, 1, kLongRowBytes, 2},
                                           {32, 32, 32, 32, 2, kLongRowBytes, 4}};

template <Math kMath>
constexpr auto& TilesOf() {
  if constexpr (kMath == Math::kHalf) {
    return kHalfTiles;
  } else if constexpr (kMath == Math::kInt8) {
    return kInt8Tiles;
  } else if constexpr (kMath == Math::kFp8) {
    return kFp8Tiles;
  } else if constexpr (kMath == Math::kTf32) {
    return kTf32Tiles;
  } else {
    return kThreeTf32Tiles;
  }
}

// Calls visit(tile) for each of them.
template <class Visit>
void ForTiles(Math math, Visit&& visit) {
  const auto all = [&](const auto& tiles) {
    for (const Tile& tile : tiles) visit(tile);
  };
  math == Math::kTf32        ? all(kTf32Tiles)
  : math == Math::kThreeTf32 ? all(kThreeTf32Tiles)
  : math == Math::kFp8       ? all(kFp8Tiles)
  : math == Math::kInt8      ? all(kInt8Tiles)
                             : all(kHalfTiles);
}

// How many stages a ring may have; each number has a main loop of its own. Of few rows' small tiles a multiprocessor
// has one block, which waits for a load's latency unless as much as that brings is under way; slices have a ring each.
constexpr int kMaxStages = 6, kMaxLongStages = 4, kMaxSmallLongStages = 8;
constexpr int kSmallTile = 64 * 64;
constexpr int kMostRows = 256;  // of a tile

constexpr int StageBytes(const Tile& tile) { return (tile.m + tile.n) * tile.row_bytes; }
constexpr int MinStages(const Tile& tile) { return tile.slices > 1 ? 2 : 3; }
constexpr int MaxStages(const Tile& tile) {
  const bool is_small = tile.m * tile.n <= kSmallTile && tile.slices == 1;
  return !tile.has_long_stages() ? kMaxStages : is_small ? kMaxSmallLongStages : kMaxLongStages;
}

// Of all slices' rings, in whose place their sums meet at the end.
constexpr int RingBytes(const Tile& tile, int stages) {
  const int rings = tile.slices * stages * StageBytes(tile);
  const int sums = tile.slices * tile.m * tile.n * static_cast<int>(sizeof(float));
  return tile.slices > 1 && sums > rings ? sums : rings;
}

// The bias, as float32, stands behind the stages; behind that the scales of the weight's rows, where it has them.
constexpr int SharedBytes(Math math, const Tile& tile, int stages) {
  return RingBytes(tile, stages) + (IsQuantized(math) ? 2 : 1) * tile.n * static_cast<int>(sizeof(float));
}

// Without cp.async, on 7.5, long stages are not compiled.
inline bool RunsOn(const Device& device, bool long_stages) { return !long_stages || device.compute_capability >= 80; }

// With as many blocks, `most_blocks` at most, and then stages as the multiprocessor's shared memory has room for;
// `shared_bytes`: the most that one block may have. Zero stages: it does not run there.
constexpr GemmBlock BlockOn(Math math, const Tile& tile, int shared_bytes, int most_blocks = INT_MAX) {
  for (int blocks = std::min(tile.blocks, most_blocks); blocks > 0; --blocks) {
    const int of_one = (shared_bytes + kReservedShared) / blocks - kReservedShared;
    int stages = MaxStages(tile);
    while (stages >= MinStages(tile) && SharedBytes(math, tile, stages) > of_one) --stages;
    if (stages >= MinStages(tile)) return {tile.m, tile.n, stages, blocks, false, tile.has_long_stages()};
  }
  return {tile.m, tile.n, 0, 0, false, tile.has_long_stages()};
}

}  // namespace gemm_mma

// Whether every row of x and weight starts on a 16-byte boundary, and sizes fit the kernel's integers: among them the
// bytes of a tile's rows.
template <class Elements>
bool GemmMmaSupports(const GemmArguments<Elements>& a) {
  constexpr int64_t kBytes = sizeof(typename Elements::X), kMax = int64_t{1} << 31;
  return a.k > 0 && a.k % (16 / kBytes) == 0 && IsAligned(a.x, 16) && IsAligned(a.weight, 16) && a.m < kMax &&
         a.n < kMax && a.k < kMax / (kBytes * gemm_mma::kMostRows);
}

// The longest k whose products of 8-bit integers 32 bits can sum up.
constexpr int64_t kMaxInt8K = ((int64_t{1} << 31) - 1) / (128 * 128);

// The product in that form, by a block of BlockOn(). Any n. kPartialSums: float_partials[splits, m, n]; otherwise
// `splits` is 1 and y = activation(product + bias). cudaErrorInvalidConfiguration for a block that no kernel was
// compiled for.
template <class T>
cudaError_t GemmMma(GemmForm form, const GemmTile& tile, const GemmArguments<Elements<T>>& arguments,
                    const Device& device, cudaStream_t stream);

// The same of quantised operands, whose scales `arguments` has; k of integers up to kMaxInt8K.
template <class T>
cudaError_t GemmMmaInt8(GemmForm form, const GemmTile& tile, const GemmArguments<Int8Elements<T>>& arguments,
                        const Device& device, cudaStream_t stream);
template <class T>
cudaError_t GemmMmaFp8(GemmForm form, const GemmTile& tile, const GemmArguments<Fp8Elements<T>>& arguments,
                       const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_MMA_GEMM_H_
