// Tiles of packed sequences: which sequence, head and queries a tile's number means. The device alone knows.
#ifndef BERTFUSE_KERNELS_PACKED_TILES_CUH_
#define BERTFUSE_KERNELS_PACKED_TILES_CUH_

#include <cstdint>

#include "kernels/attention.h"

namespace bertfuse::kernels {

// Of one head: queries from `first_query` on of the sequence that is `length` rows from `first_row` on.
struct alignas(16) PackedTile {
  int first_row, length;  // 0: there are no more tiles
  int first_query, head;
};

// A warp's place among the sequences, 32 at a time, one to a lane. Tiles are numbered sequence by sequence, in it head
// by head, so that tiles of one cost follow each other, and the tiles that read the same keys.
//
// Offsets count as if each were at least the one before, from 0 up to the number of rows: others than these give other
// results, but no access outside of the rows, no row twice, and no more tiles than MostPackedTiles().
template <int kQueries>
class PackedTileCursor {
 public:
  __device__ __forceinline__ PackedTileCursor(const PackedSequences& sequences, int heads)
      : sequences_(sequences), heads_(heads), lane_(threadIdx.x % 32) {
    Fetch();
    Next();
  }

  // By the whole warp; from call to call `number` must not descend. All lanes get the tile.
  __device__ __forceinline__ PackedTile Find(int number) {
    while (number - tiles_before_ >= tiles_) {
      if (next_ >= sequences_.count) return {0, 0, 0, 0};
      tiles_before_ += tiles_;
      Next();
    }
    const int in_32 = number - tiles_before_;
    const int lane = __popc(__ballot_sync(0xffffffffu, last_tile_ <= in_32));
    const int first_row = __shfl_sync(0xffffffffu, first_row_, lane);
    const int length = __shfl_sync(0xffffffffu, length_, lane);
    const int query_tiles = QueryTiles(length);
    const int in_sequence = in_32 - __shfl_sync(0xffffffffu, last_tile_, lane) + query_tiles * heads_;
    const int head = in_sequence / query_tiles;
    return {first_row, length, (in_sequence - head * query_tiles) * kQueries, head};
  }

 private:
  __device__ __forceinline__ static int QueryTiles(int length) { return (length + kQueries - 1) / kQueries; }

  // The next 32 sequences' offsets, before they are needed.
  __device__ __forceinline__ void Fetch() {
    const int sequence = next_ + lane_;
    begin_ = Clamped(sequences_.cu_seqlens[min(sequence, sequences_.count)]);
    end_ = Clamped(sequences_.cu_seqlens[min(sequence + 1, sequences_.count)]);
  }
  __device__ __forceinline__ int Clamped(int offset) const { return min(max(offset, 0), sequences_.rows); }

  __device__ __forceinline__ void Next() {
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
    last_tile_ = QueryTiles(length_) * heads_;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, last_tile_, lanes);
      if (lane_ >= lanes) last_tile_ += other;
    }
    tiles_ = __shfl_sync(0xffffffffu, last_tile_, 31);
    next_ += 32;
    Fetch();
  }

  const PackedSequences& sequences_;
  int heads_, lane_;
  int next_ = 0;                            // sequence that follows these 32
  int begin_, end_;                         // offsets of the 32 that follow
  int rows_before_ = 0, tiles_before_ = 0;  // of these 32: where the sequences ahead of them end
  int first_row_, length_;                  // this lane's sequence
  int last_tile_;                           // the tiles up to its last one, counted from these 32's first
  int tiles_;                               // of these 32
};

// For kernels that know padded sequences: a packed one as a call of its own.
template <class T>
__device__ __forceinline__ AttentionArguments<T> OneSequence(AttentionArguments<T> a, const PackedTile& tile) {
  const int64_t hidden = a.heads * a.head_size;
  a.qkv += tile.first_row * 3 * hidden;
  a.y += tile.first_row * hidden;
  a.batch = 1;
  a.sequence = tile.length;
  a.mask = nullptr;
  return a;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKED_TILES_CUH_
