// Which tiles a pipeline of the Hopper attention kernel computes, and what part of the tensors belongs to a sequence.
#ifndef BERTFUSE_KERNELS_ATTENTION_SM90_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_ATTENTION_SM90_TILE_SCHEDULER_CUH_

#include "kernels/attention_sm90/config.cuh"

namespace bertfuse::kernels::attention_sm90 {

struct Tile {
  int first_query, head, batch;
  uint32_t number;  // counts the pipeline's tiles
};

// Of a packed sequence.
struct NumberedPackedTile : PackedTile {
  uint32_t number;
};

// A padded sequence's tokens: length() of them, from row first_row() on of all tokens. (Computed where it is asked for:
// members of the struct changed the kernels' schedule.)
class SequenceInfo {
 public:
  __device__ __forceinline__ SequenceInfo(const Parameters& parameters, int batch) : p_(parameters), batch_(batch) {}
  __device__ __forceinline__ int64_t first_row() const { return static_cast<int64_t>(batch_) * p_.sequence; }
  __device__ __forceinline__ int length() const { return p_.sequence; }

 private:
  const Parameters& p_;
  int batch_;
};

// Persistent: of all pipelines of the grid each takes every so-many-th tile. Of packed sequences the tiles are found by
// the producer's second warp (Producer::FindTiles).
template <class Config>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Parameters& parameters, int pipeline)
      : p_(parameters), pipeline_(pipeline) {}

  __device__ __forceinline__ int first() const { return pipeline_ * gridDim.x + blockIdx.x; }

  // Calls f(const Tile&); steps to the next tile are given, to do without divisions.
  template <class F>
  __device__ __forceinline__ void ForEachTile(F&& f) const {
    int index = first();
    const int row = Divide(index, p_.inverse_query_tiles), batch = Divide(row, p_.inverse_heads);
    Tile tile = {(index - row * p_.query_tiles) * Config::kQueries, row - batch * p_.heads, batch, 0};
    for (; index < p_.tiles; index += Config::kPipelines * gridDim.x) {
      f(tile);
      ++tile.number;
      tile.first_query += p_.step_first_query;
      tile.head += p_.step_head;
      tile.batch += p_.step_batch;
      if (tile.first_query >= p_.query_tiles * Config::kQueries) {
        tile.first_query -= p_.query_tiles * Config::kQueries;
        ++tile.head;
      }
      if (tile.head >= p_.heads) {
        tile.head -= p_.heads;
        ++tile.batch;
      }
    }
  }

 private:
  // For the first tiles, far below the 2^22 where this would no longer be right.
  __device__ __forceinline__ static int Divide(int value, float inverse) {
    return static_cast<int>((static_cast<float>(value) + 0.5f) * inverse);
  }

  const Parameters& p_;
  int pipeline_;
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_ATTENTION_SM90_TILE_SCHEDULER_CUH_
