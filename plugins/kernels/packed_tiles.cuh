// Tiles of packed sequences: which sequence, head and queries a tile's number means. The device alone knows.
#ifndef BERTFUSE_KERNELS_PACKED_TILES_CUH_
#define BERTFUSE_KERNELS_PACKED_TILES_CUH_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels {

// A tile of one head: queries from `first_query` on of the sequence that is `length` rows from `first_row` on.
struct alignas(16) PackedTile {
  int first_row, length;  // 0: there are no more tiles
  int first_query, head;
};

// Divides all tiles among `workers` blocks or pipelines, and finds those of one of them, the `worker`, by a warp: 32
// sequences at a time, one per lane. Among these 32 the longest sequence comes first, and every second round over the
// workers goes backwards, so that all get about the same amount of work. (Simulated with the lengths of 32 passages,
// the busiest worker has 2 to 8 percent more than the mean; with plain round robin in the given order, 14 to 34
// percent.) Within a sequence, tiles go head by head, so that those that read the same keys follow each other.
//
// Offsets that descend or leave the range from 0 to the number of rows are clamped: the results are then unspecified,
// but there is no access outside of the rows, no row comes twice, and there are no more tiles than MaxPackedTiles().
template <int kQueries>
class PackedTileCursor {
 public:
  __device__ __forceinline__ PackedTileCursor(const PackedSequences& sequences, int heads, int worker, int workers)
      : sequences_(sequences), heads_(heads), lane_(threadIdx.x % 32), own_(worker), other_(workers - 1 - worker) {
    Fetch();
  }

  // Called by the whole warp: all lanes get the worker's next tile.
  __device__ __forceinline__ PackedTile Next() {
    const int number = round_ + own_;
    const int workers = own_ + other_ + 1, backwards = other_;
    round_ += workers;
    other_ = own_;
    own_ = backwards;
    while (number - tiles_before_ >= tiles_) {
      if (next_ >= sequences_.count) return {0, 0, 0, 0};
      tiles_before_ += tiles_;
      ScanNext32();
    }
    const int in_32 = number - tiles_before_;
    const bool here = in_32 < last_tile_ && in_32 >= last_tile_ - QueryTiles(length_) * heads_;
    const int lane = __ffs(__ballot_sync(0xffffffffu, here)) - 1;
    const int first_row = __shfl_sync(0xffffffffu, first_row_, lane);
    const int length = __shfl_sync(0xffffffffu, length_, lane);
    const int query_tiles = QueryTiles(length);
    const int in_sequence = in_32 - __shfl_sync(0xffffffffu, last_tile_, lane) + query_tiles * heads_;
    const int head = in_sequence / query_tiles;
    return {first_row, length, (in_sequence - head * query_tiles) * kQueries, head};
  }

 private:
  static constexpr int kShortSequence = 128;  // rows: up to here ordering costs more than it saves

  __device__ __forceinline__ static int QueryTiles(int length) { return (length + kQueries - 1) / kQueries; }

  // Loads the next 32 sequences' offsets, before they are needed.
  __device__ __forceinline__ void Fetch() {
    const int sequence = next_ + lane_;
    begin_ = Clamped(LoadRowCount(sequences_.cu_seqlens + min(sequence, sequences_.count)));
    end_ = Clamped(LoadRowCount(sequences_.cu_seqlens + min(sequence + 1, sequences_.count)));
  }
  __device__ __forceinline__ int Clamped(int offset) const { return min(max(offset, 0), sequences_.rows); }

  // Lengths and tiles of the 32 sequences whose offsets were fetched.
  __device__ __forceinline__ void ScanNext32() {
    int begin = begin_, end = end_;
    if (!__all_sync(0xffffffffu, rows_before_ <= begin && begin <= end)) {
      if (lane_ == 0) end = max(end, max(begin, rows_before_));
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, end, lanes);
        if (lane_ >= lanes) end = max(end, other);
      }
      const int other = __shfl_up_sync(0xffffffffu, end, 1);
      begin = lane_ == 0 ? max(begin, rows_before_) : other;
    }
    rows_before_ = __shfl_sync(0xffffffffu, end, 31);
    first_row_ = begin;
    length_ = end - begin;
    next_ += 32;
    Fetch();
    if (__all_sync(0xffffffffu, length_ <= kShortSequence)) {
      last_tile_ = QueryTiles(length_) * heads_;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, last_tile_, lanes);
        if (lane_ >= lanes) last_tile_ += other;
      }
      tiles_ = __shfl_sync(0xffffffffu, last_tile_, 31);
      return;
    }
    last_tile_ = tiles_ = 0;
#pragma unroll 8
    for (int lane = 0; lane < 32; ++lane) {
      const int length = __shfl_sync(0xffffffffu, length_, lane), tiles = QueryTiles(length) * heads_;
      tiles_ += tiles;
      if (length > length_ || (length == length_ && lane <= lane_)) last_tile_ += tiles;
    }
  }

  const PackedSequences& sequences_;
  int heads_, lane_;
  int own_, other_;                         // the worker's place in this round and in the next
  int round_ = 0;                           // number of the round's first tile
  int next_ = 0;                            // sequence that follows these 32
  int begin_, end_;                         // offsets of the 32 that follow
  int rows_before_ = 0, tiles_before_ = 0;  // of these 32: where the sequences ahead of them end
  int first_row_, length_;                  // this lane's sequence
  int last_tile_;                           // its last one and one more, counted from these 32's first
  int tiles_ = 0;                           // of these 32; none before the first Next()
};

// For kernels that know padded sequences: a packed one as a call of its own.
template <class T>
__device__ __forceinline__ AttentionArguments<T> OneSequence(AttentionArguments<T> a, const PackedTile& tile) {
  const int64_t kv_heads = a.variant.kv_heads == 0 ? a.heads : a.variant.kv_heads;
  a.qkv += tile.first_row * (a.heads + 2 * kv_heads) * a.head_size;
  a.y += tile.first_row * a.heads * a.head_size;
  a.batch = 1;
  a.sequence = tile.length;
  a.mask = nullptr;
  if (a.packed.token_index != nullptr) a.packed.token_index += tile.first_row;
  return a;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKED_TILES_CUH_
