#ifndef BERTFUSE_KERNELS_ATTENTION_H_
#define BERTFUSE_KERNELS_ATTENTION_H_

#include <algorithm>

#include "kernels/backend.h"
#include "kernels/elements.h"
#include "kernels/launch.h"
#include "kernels/prefetch.h"
#include "kernels/quantized_result.h"

namespace bertfuse::kernels {

// y[batch, sequence, heads * head_size] = attention over qkv[batch, sequence, 3 * heads * head_size] + bias, where
// mask[batch, sequence] (int32 or int64, or null) hides keys by 0. A sequence whose keys are all hidden attends to all
// alike. A variant may have fewer heads of K and V, and no bias.
//
// If `packed` has sequences, qkv[rows, ...] and y[rows, ...] have batch * sequence rows that belong to one sequence
// after the other, and a mask is not read. Rows that belong to no sequence are neither read nor written; neither they
// nor another sequence's rows change a bit of a sequence's results. Only the device knows which rows these are: offsets
// that are negative, descend or exceed the rows count as the nearest that do not.
//
// Only Q's bias is added to an operand. K's bias shifts all scores of a query alike, which softmax cancels unless a
// soft cap comes before it (then q times K's bias is added to scores), and a query's probabilities sum to 1, so that
// V's bias can be added to the result.
struct PackedSequences {
  const int32_t* cu_seqlens;  // [count + 1]: sequence i is rows cu_seqlens[i] to cu_seqlens[i + 1]
  int count, rows;            // count is 0 where sequences are padded
  // [rows], or null: row i is of token token_index[i] of the padded batch. A variant's places are counted by them, from
  // each sequence's first row (packed_places.cuh); without it by rows.
  const int32_t* token_index = nullptr;
};

// What attention does beyond softmax(QKᵀ scale) V over all keys that the mask shows; by default nothing. AttentionMma
// (mma/attention.h) takes most variants, AttentionSm90 windows, grouped and rotated heads, AttentionSimt those that
// AttentionSimtSupports(). A query to which mask and window show no key attends to all of its sequence's alike.
template <class T>
struct AttentionVariant {
  int64_t kv_heads = 0;       // of K and of V, each for neighbouring heads of Q; divides their number; 0: as many as Q
  int64_t window_left = -1;   // keys farther before the query are hidden; below 0: none
  int64_t window_right = -1;  // keys farther behind it are hidden; 0: causal; below 0: none
  float soft_cap = 0;         // above 0: a logit x becomes soft_cap * tanh(x / soft_cap)
  const T* distance_bias = nullptr;  // [bias_heads, bias_columns]: what is added to a logit then, in the column
  int64_t bias_heads = 1;            // key - query + bias_left, cut off at both ends; heads of Q, or 1 for all
  int64_t bias_columns = 0, bias_left = 0;
  // [2, heads, position_rows, head_size]: vectors that Q, and K with its bias, are multiplied with; both are added to
  // QKᵀ. The row is key - query + position_left, cut off at both ends.
  const T* positions = nullptr;
  int64_t position_rows = 0, position_left = 0;
  // [places, head_size / 2]: columns i and i + head_size / 2 of Q's and K's heads, with their bias, are rotated by the
  // angle of their token's place. By AttentionSm90 alone: for others kernels/change_heads.h does it before.
  const T* cos = nullptr;
  const T* sin = nullptr;
  int64_t places = 0;
  bool hidden_alike = false;  // a query that the mask hides attends to all of its sequence's keys alike

  bool IsPlain() const {
    return kv_heads == 0 && window_left < 0 && window_right < 0 && !(soft_cap > 0) && distance_bias == nullptr &&
           positions == nullptr && cos == nullptr && !hidden_alike;
  }
};

template <class T>
struct AttentionArguments {
  const T* qkv;
  const T* bias;
  bool bias_is_constant;  // no kernel that may still be running writes it
  const void* mask;
  bool mask_is_int64;
  T* y;
  int64_t batch, sequence, heads, head_size;
  float scale;
  PackedSequences packed;
  AttentionVariant<T> variant;
  const T* values = nullptr;  // given: V is read from there, where it lies as in qkv; by AttentionSm90's variants alone
  bool allow_tf32 = false;    // float32's products may round their operands to TF32
  // With rows: y as it is rounded to T is stored there in place of y, by the given scale, which is each row's; rows of
  // no sequence are left alone, too. By AttentionSm90 alone, where AttentionSm90Quantizes().
  QuantizedResult quantized;
  Prefetch next = {};  // by AttentionMma alone

  int64_t KvHeads() const { return variant.kv_heads == 0 ? heads : variant.kv_heads; }
};

// The most tiles that packed sequences can have, over all heads: each sequence may end in an incomplete one.
inline int64_t MaxPackedTiles(const PackedSequences& packed, int64_t heads, int queries) {
  return heads * (packed.rows / queries + std::min(packed.count, packed.rows));
}

// Any head size and alignment, without tensor cores. Needs AttentionSimtSupports().
template <class T>
cudaError_t AttentionSimt(const AttentionArguments<T>& arguments, const Device& device, cudaStream_t stream);

// All but soft caps and rotated heads.
template <class T>
bool AttentionSimtSupports(const AttentionArguments<T>& a) {
  return !(a.variant.soft_cap > 0) && a.variant.cos == nullptr;
}

// Queries of a tile, keys that are multiplied at a time, and on Hopper the pipelines of a block, each with a tile of
// its own and 64 queries for each consumer warpgroup: with two, one multiplies while the other computes exponentials.
struct AttentionTile {
  int queries;
  int keys;
  int pipelines;
};

constexpr bool operator==(const AttentionTile& a, const AttentionTile& b) {
  return a.queries == b.queries && a.keys == b.keys && a.pipelines == b.pipelines;
}

namespace attention_sm90 {

// Tiles of 64 queries have two blocks to a multiprocessor, but for head size 128.
inline constexpr AttentionTile kFewQueries = {64, 64, 1};
inline constexpr AttentionTile kFewQueries128 = {64, 128, 1};  // half as many steps, each longer
inline constexpr AttentionTile kShort = {128, 128, 1};         // one block of keys, and so no online softmax
inline constexpr AttentionTile kLong = {128, 64, 2};
inline constexpr AttentionTile kFewKeys = {64, 32, 2};       // for packed sequences
inline constexpr AttentionTile kHeadSize128 = {128, 64, 1};  // what registers allow there, for any length

// The tiles that are compiled.
inline constexpr AttentionTile kAttentionTiles[] = {kFewQueries, kHeadSize128, kFewQueries128, kShort, kLong, kFewKeys};

// Which of them, for a head size, and for packed or padded sequences.
constexpr bool HasAttentionTile(const AttentionTile& tile, int64_t head_size, bool packed) {
  if (tile == kFewQueries) return true;
  if (head_size == 128 || tile == kHeadSize128) return head_size == 128 && tile == kHeadSize128;
  return packed || !(tile == kFewKeys);
}

}  // namespace attention_sm90

// Head size 32, 64 or 128 on compute capability 9.0 (wgmma, TMA). Needs AttentionSm90Supports();
// cudaErrorInvalidConfiguration where no kernel was compiled for that tile.
template <class T>
cudaError_t AttentionSm90(const AttentionArguments<T>& arguments, const AttentionTile& tile, const Device& device,
                          cudaStream_t stream);

template <class T>
bool AttentionSm90Supports(const AttentionArguments<T>& a, const Device& device) {
  const bool size = a.head_size == 32 || a.head_size == 64 || a.head_size == 128;
  const bool packed = a.packed.count > 0;
  const bool fits = packed || a.sequence <= 16384;  // masks of several tiles lie in shared memory
  const bool scales = a.scale > 0;                  // hidden scores are infinite before they are scaled
  const bool takes = !(a.variant.soft_cap > 0) && a.variant.distance_bias == nullptr &&
                     a.variant.positions == nullptr && !a.variant.hidden_alike;
  const bool rotates = a.variant.cos != nullptr;
  const bool tables =
      !rotates || (a.variant.places > 0 && IsAligned(a.variant.cos, 16) && IsAligned(a.variant.sin, 16));
  return RunsOn(Backend::kSm90, device) && takes && size && fits && scales && tables && IsAligned(a.qkv, 16) &&
         IsAligned(a.y, 16) && IsAligned(a.bias, rotates ? 16 : 4);
}

// Whether AttentionSm90 can store results there itself.
inline bool AttentionSm90Quantizes(const QuantizedResult& to) {
  return to.scale != nullptr && IsAligned(to.rows, 8) && IsAligned(to.smooth, 32);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_H_
