// Attention on the tensor cores of compute capability 8.0 and later, and of float16 7.5, for GPUs without wgmma and for
// every variant.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_H_
#define BERTFUSE_KERNELS_MMA_ATTENTION_H_

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/backend.h"

namespace bertfuse::kernels {
namespace attention_mma {

// What a head size is computed with. A sequence's bits depend on `keys`, but not on how many rows a warp has: a row's
// sums go through the keys in the same order.
struct TileShape {
  int head_size;            // the largest that it is for
  int keys;                 // of a tile, which is multiplied between two barriers
  int blocks, wide_blocks;  // resident on a multiprocessor, which bounds registers: with 16 rows a warp, and with 32
  bool wide_keeps_queries;  // with 32 rows queries stay in registers

  constexpr bool HasWide() const { return wide_blocks > 0; }
};

inline constexpr TileShape kTileShapes[] = {
    {32, 64, 4, 2, true},   {64, 64, 3, 2, true},   {80, 64, 3, 0, false},  {96, 32, 3, 0, false},
    {128, 32, 2, 2, false}, {192, 32, 2, 0, false}, {256, 32, 2, 0, false},
};

// The table's row for a head size; null where there is none.
constexpr const TileShape* FindTileShape(int64_t head_size) {
  for (const TileShape& shape : kTileShapes) {
    if (head_size <= shape.head_size) return &shape;
  }
  return nullptr;
}

// The tiles that are compiled for a head size: of 64 queries, 16 for each of four warps, or of 128.
constexpr AttentionTile Narrow(const TileShape& shape) { return {64, shape.keys, 1}; }
constexpr AttentionTile Wide(const TileShape& shape) { return {128, shape.keys, 1}; }

// A stage holds a tile of keys and one of values.
constexpr int StageBytes(const TileShape& shape) { return 2 * shape.keys * shape.head_size * 2; }

// Dynamic shared memory of a block: two stages. Queries that stay in registers pass through the second one before it is
// needed, and results leave through where the queries were; other queries stand behind the stages.
constexpr int SharedBytes(const TileShape& shape, int queries) {
  const int query_bytes = queries * shape.head_size * 2;
  const bool keeps = queries == Narrow(shape).queries || shape.wide_keeps_queries;
  return keeps ? StageBytes(shape) + std::max(StageBytes(shape), query_bytes) : 2 * StageBytes(shape) + query_bytes;
}

// Whether a block may have as much, beside what TileScheduler and KeyTiles take.
constexpr bool Fits(const TileShape& shape, const AttentionTile& tile, int shared_bytes) {
  constexpr int kStaticBytes = 3 << 10;
  return SharedBytes(shape, tile.queries) + kStaticBytes <= shared_bytes;
}

}  // namespace attention_mma

// float16 and bfloat16. Needs AttentionMmaSupports(); cudaErrorInvalidConfiguration where no kernel was compiled for
// that tile.
template <class T>
cudaError_t AttentionMma(const AttentionArguments<T>& arguments, const AttentionTile& tile, const Device& device,
                         cudaStream_t stream);

template <class T>
bool AttentionMmaSupports(const AttentionArguments<T>& a, const Device& device) {
  const attention_mma::TileShape* shape = attention_mma::FindTileShape(a.head_size);
  if (!HasMmaOf<T>(device) || shape == nullptr || !Fits(*shape, Narrow(*shape), device.shared_bytes)) return false;
  const bool size = a.head_size % 8 == 0;
  const bool heads = a.heads > 0 && a.heads < (1 << 16) && a.heads % a.KvHeads() == 0;
  // The kernel adds two numbers of this size in 32 bits.
  constexpr int64_t kMost = 1 << 29;
  const bool rows = (a.packed.count > 0 ? a.packed.rows : a.sequence) <= kMost && a.batch * a.sequence <= INT32_MAX;
  const AttentionVariant<T>& v = a.variant;
  const bool bias =
      v.distance_bias == nullptr || ((v.bias_heads == 1 || v.bias_heads == a.heads) && v.bias_columns > 0 &&
                                     v.bias_columns <= kMost && v.bias_left >= 0 && v.bias_left <= kMost);
  return size && heads && rows && bias && a.scale >= 0 && IsAligned(a.qkv, 16) && IsAligned(a.y, 16) &&
         IsAligned(a.bias, 4);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_H_
