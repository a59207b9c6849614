// Attention on the tensor cores of compute capability 8.0 and later, and of float16 7.5, for GPUs without wgmma and for
// every variant.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_H_
#define BERTFUSE_KERNELS_MMA_ATTENTION_H_

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/mma/gemm.h"

namespace bertfuse::kernels {
namespace attention_mma {

using gemm_mma::Math;

// What a head size is computed with. A sequence's bits depend on `keys`, but not on how many rows a warp has: a row's
// sums go through the keys in the same order.
struct TileShape {
  int head_size;            // the largest that it is for
  int keys;                 // of a tile, which is multiplied between two barriers
  int blocks, wide_blocks;  // resident on a multiprocessor, which bounds registers: with 16 rows a warp, and with 32
  bool keeps_queries, wide_keeps_queries;  // in registers
  int element_bytes = 2;
  int stages = 2;        // of a tile of keys and one of values; of one, each is loaded while the other is multiplied
  bool variants = true;  // windows, soft caps and biases by distance, whose registers the largest tiles do not have
  int column_warps = 1;  // among which the columns of results are divided

  constexpr bool HasWide() const { return wide_blocks > 0; }
};

// Of rows with one head size the first takes every call; which is chosen, says ops/attention_tactic.cc.
inline constexpr TileShape kHalfShapes[] = {
    {32, 64, 3, 2, true, false},
    {64, 64, 3, 2, true, true},
    {64, 32, 4, 3, true, false, 2, 2, false},
    {64, 128, 3, 2, true, false, 2, 1, false},
    {80, 64, 2, 0, true, false},
    {96, 32, 2, 0, true, false},
    {128, 32, 2, 2, true, false},
    {128, 64, 2, 2, true, false, 2, 1, false},
    {192, 32, 2, 0, true, false},
    {256, 32, 2, 0, false, false},
};

// float32 takes twice the shared memory, and its head sizes are whole units of LoadShared().
inline constexpr TileShape kTf32Shapes[] = {
    {32, 64, 3, 2, true, false, 4},   {64, 32, 3, 2, true, false, 4},      {96, 32, 2, 0, true, false, 4},
    {128, 32, 2, 0, false, false, 4}, {192, 32, 1, 0, false, false, 4, 1}, {256, 32, 1, 0, false, false, 4},
};
inline constexpr TileShape kThreeTf32Shapes[] = {
    {32, 64, 2, 2, false, false, 4},  {64, 32, 3, 2, false, false, 4},     {96, 32, 2, 0, false, false, 4},
    {128, 32, 2, 0, false, false, 4}, {192, 32, 1, 0, false, false, 4, 1}, {256, 32, 1, 0, false, false, 4, 2, true, 2},
};

// float32 is multiplied by TF32 where that is allowed.
template <class T>
constexpr Math MathOf(bool allow_tf32) {
  if (sizeof(T) == 2) return Math::kHalf;
  return allow_tf32 ? Math::kTf32 : Math::kThreeTf32;
}

template <Math kMath>
constexpr auto& ShapesOf() {
  if constexpr (kMath == Math::kHalf) {
    return kHalfShapes;
  } else if constexpr (kMath == Math::kTf32) {
    return kTf32Shapes;
  } else {
    return kThreeTf32Shapes;
  }
}

// The table's first row for a head size; null where there is none.
template <Math kMath>
constexpr const TileShape* FindTileShape(int64_t head_size) {
  for (const TileShape& shape : ShapesOf<kMath>()) {
    if (head_size <= shape.head_size) return &shape;
  }
  return nullptr;
}
constexpr const TileShape* FindTileShape(Math math, int64_t head_size) {
  return math == Math::kHalf   ? FindTileShape<Math::kHalf>(head_size)
         : math == Math::kTf32 ? FindTileShape<Math::kTf32>(head_size)
                               : FindTileShape<Math::kThreeTf32>(head_size);
}

// Calls visit(shape) with all rows for a head size.
template <class Visit>
void ForTileShapes(Math math, int64_t head_size, Visit&& visit) {
  const TileShape* const first = FindTileShape(math, head_size);
  const auto all = [&](const auto& shapes) {
    for (const TileShape& shape : shapes) {
      if (first != nullptr && shape.head_size == first->head_size) visit(shape);
    }
  };
  math == Math::kHalf ? all(kHalfShapes) : math == Math::kTf32 ? all(kTf32Shapes) : all(kThreeTf32Shapes);
}

// The tiles that are compiled of a row: of 64 queries, 16 for each of four warps, or of 128.
constexpr AttentionTile Narrow(const TileShape& shape) { return {64, shape.keys, 1}; }
constexpr AttentionTile Wide(const TileShape& shape) { return {128, shape.keys, 1}; }

// Whether kernels with vectors by distance are compiled for it, of 64 queries a block.
constexpr bool HasPositions(const TileShape& shape) {
  return shape.variants && (shape.head_size == 32 || shape.head_size == 64 || shape.head_size == 128);
}

// A stage holds a tile of keys and one of values.
constexpr int StageBytes(const TileShape& shape) { return 2 * shape.keys * shape.head_size * shape.element_bytes; }

// Beside dynamic shared memory: what TileScheduler and KeyTiles take, and the system for each block.
constexpr int kStaticBytes = 3 << 10;

// Dynamic shared memory of a block: the stages, and queries and later results behind them. Queries that stay in
// registers may pass through the second stage before it is needed, so that less suffices.
struct SharedLayout {
  int query_offset, bytes;
  bool queries_apart;  // from the stages
};

constexpr SharedLayout LayoutOf(const TileShape& shape, int queries, bool apart) {
  const int query_bytes = queries * shape.head_size * shape.element_bytes, stage = StageBytes(shape);
  if (apart) return {shape.stages * stage, shape.stages * stage + query_bytes, true};
  return {stage, stage + std::max(stage, query_bytes), false};
}

// Floats from query to query of what vectors by distance add to the scores. 8 more than keys, so that a warp's threads
// read pairs from different banks.
constexpr int PositionPitch(const TileShape& shape) { return shape.keys + 8; }

// Where such kernels have these sums: behind two vectors for each distance between a query and a key of the tiles.
constexpr int PositionBytes(const TileShape& shape) {
  const int queries = Narrow(shape).queries;
  return 2 * (queries + shape.keys) * shape.head_size * shape.element_bytes + queries * PositionPitch(shape) * 4;
}

// As many as registers allow, if the multiprocessor's shared memory has room for them.
constexpr int BlocksOn(const TileShape& shape, int queries, const SharedLayout& layout, int shared_bytes) {
  const int room = (shared_bytes + kReservedShared) / (layout.bytes + kStaticBytes + kReservedShared);
  return std::min(room, queries == Wide(shape).queries ? shape.wide_blocks : shape.blocks);
}

// That of a device whose blocks may have `shared_bytes`: apart, unless fewer blocks would share a multiprocessor.
constexpr SharedLayout LayoutOn(const TileShape& shape, int queries, int shared_bytes) {
  const SharedLayout apart = LayoutOf(shape, queries, true), least = LayoutOf(shape, queries, false);
  const bool keeps = queries == Wide(shape).queries ? shape.wide_keeps_queries : shape.keeps_queries;
  const bool as_many = BlocksOn(shape, queries, apart, shared_bytes) == BlocksOn(shape, queries, least, shared_bytes);
  return !keeps || shape.stages == 1 || as_many ? apart : least;
}

constexpr int BlocksOn(const TileShape& shape, int queries, int shared_bytes) {
  return BlocksOn(shape, queries, LayoutOn(shape, queries, shared_bytes), shared_bytes);
}

// Whether a block may have as much.
constexpr bool Fits(const TileShape& shape, const AttentionTile& tile, int shared_bytes) {
  return LayoutOn(shape, tile.queries, shared_bytes).bytes + kStaticBytes <= shared_bytes;
}

// The same with vectors by distance, which lie behind the queries.
constexpr bool FitsWithPositions(const TileShape& shape, int shared_bytes) {
  return LayoutOf(shape, Narrow(shape).queries, true).bytes + PositionBytes(shape) + kStaticBytes <= shared_bytes;
}

}  // namespace attention_mma

// float16 and bfloat16; float32 by TF32, and by three products of TF32, which is as exact as float32 arithmetic. Need
// AttentionMmaSupports(); cudaErrorInvalidConfiguration where no kernel was compiled for that tile.
template <class T>
cudaError_t AttentionMma(const AttentionArguments<T>& arguments, const AttentionTile& tile, const Device& device,
                         cudaStream_t stream);
template <class T>
cudaError_t AttentionMmaTf32(const AttentionArguments<T>& arguments, const AttentionTile& tile, const Device& device,
                             cudaStream_t stream);
template <class T>
cudaError_t AttentionMmaThreeTf32(const AttentionArguments<T>& arguments, const AttentionTile& tile,
                                  const Device& device, cudaStream_t stream);

template <class T>
bool AttentionMmaSupports(const AttentionArguments<T>& a, const Device& device) {
  const attention_mma::TileShape* shape =
      attention_mma::FindTileShape(attention_mma::MathOf<T>(a.allow_tf32), a.head_size);
  if (!HasMmaOf<T>(device) || shape == nullptr || !Fits(*shape, Narrow(*shape), device.shared_bytes)) return false;
  const bool size = a.head_size % 8 == 0 && a.head_size > 0;
  const bool heads = a.heads > 0 && a.heads < (1 << 16) && a.heads % a.KvHeads() == 0;
  // The kernel adds two numbers of this size in 32 bits.
  constexpr int64_t kMost = 1 << 29;
  const bool rows = (a.packed.count > 0 ? a.packed.rows : a.sequence) <= kMost && a.batch * a.sequence <= INT32_MAX;
  const AttentionVariant<T>& v = a.variant;
  if (v.cos != nullptr) return false;
  const bool bias =
      v.distance_bias == nullptr || ((v.bias_heads == 1 || v.bias_heads == a.heads) && v.bias_columns > 0 &&
                                     v.bias_columns <= kMost && v.bias_left >= 0 && v.bias_left <= kMost);
  const bool positions = v.positions == nullptr
                             ? !v.hidden_alike
                             : HasPositions(*shape) && FitsWithPositions(*shape, device.shared_bytes) &&
                                   !(v.soft_cap > 0) && IsAligned(v.positions, 16) && v.position_rows > 0 &&
                                   v.position_rows <= kMost && v.position_left >= 0 && v.position_left <= kMost;
  return size && heads && rows && bias && positions && a.scale >= 0 && IsAligned(a.qkv, 16) && IsAligned(a.y, 16) &&
         IsAligned(a.bias, 4);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_H_
