// Which tiles a pipeline of the Hopper attention kernel computes, and which rows of the tensors belong to a sequence.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_TILE_SCHEDULER_CUH_

#include "kernels/sm90/attention/config.cuh"

namespace bertfuse::kernels::attention_sm90 {

struct Tile {
  int first_query, head, batch;
  uint32_t number;  // counts the pipeline's tiles
};

// A tile of a packed sequence.
struct NumberedPackedTile : PackedTile {
  uint32_t number;
};

// A padded sequence's tokens: length() of them, from row first_row() on of all tokens. (Functions, because as data
// members they made the compiler schedule the kernels differently.)
class SequenceInfo {
 public:
  __device__ __forceinline__ SequenceInfo(const Parameters& parameters, int batch) : p_(parameters), batch_(batch) {}
  __device__ __forceinline__ int64_t first_row() const { return static_cast<int64_t>(batch_) * p_.sequence; }
  __device__ __forceinline__ int length() const { return p_.sequence; }

 private:
  const Parameters& p_;
  int batch_;
};

// Persistent: with P pipelines in the grid, each takes every P-th tile. The tiles of packed sequences are found by the
// producer's second warp (Producer::FindTiles).
template <class Config>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Parameters& parameters, int pipeline)
      : p_(parameters), pipeline_(pipeline) {}

  __device__ __forceinline__ int first() const { return pipeline_ * gridDim.x + blockIdx.x; }

  // Calls f(const Tile&). The host gives the steps from tile to tile, to avoid divisions.
  template <class F>
  __device__ __forceinline__ void ForEachTile(F&& f) const {
    int index = first();
    const int row = Divide(index, p_.inverse_query_tiles), batch = Divide(row, p_.inverse_heads);
    Tile tile = {(index - row * p_.query_tiles) * Config::kQueries, row - batch * p_.heads, batch, 0};
#pragma unroll 1
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
  // Exact below 2^22; the numbers of the first tiles are far smaller.
  __device__ __forceinline__ static int Divide(int value, float inverse) {
    return static_cast<int>((static_cast<float>(value) + 0.5f) * inverse);
  }

  const Parameters& p_;
  int pipeline_;
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_TILE_SCHEDULER_CUH_
