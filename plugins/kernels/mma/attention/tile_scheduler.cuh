// Which tiles of queries a block computes.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_TILE_SCHEDULER_CUH_

#include <new>

#include "kernels/mma/attention/config.cuh"
#include "kernels/packed_tiles.cuh"

namespace bertfuse::kernels::attention_mma {

// Padded sequences: one tile of a head for each block, in a grid of tiles, heads and sequences, of which there may be
// more than the grid's z axis has. Packed sequences: the grid's blocks share the tiles, which each block's first warp
// finds. Between tiles its state lies in shared memory, because a tile takes all registers.
template <class Config>
class TileScheduler {
 public:
  using Cursor = PackedTileCursor<Config::kQueries>;
  struct Shared {
    alignas(alignof(Cursor)) unsigned char cursors[32 * sizeof(Cursor)];
    PackedTile tile;
  };

  __device__ __forceinline__ TileScheduler(const Parameters<typename Config::T>& p, Shared& shared)
      : p_(p), shared_(shared) {
    if (p_.packed.count > 0 && threadIdx.x < 32) new (cursor()) Cursor(p_.packed, p_.heads, blockIdx.x, gridDim.x);
  }

  __device__ __forceinline__ Tile First() const { return p_.packed.count > 0 ? NextPacked() : Padded(blockIdx.z); }

  // Called by the whole block, when no thread needs the shared memory of the tile before.
  __device__ __forceinline__ Tile Next(const Tile& tile) const {
    if (p_.packed.count > 0) return NextPacked();
    if (gridDim.z == p_.batch) return {0, 0, 0, 0};
    return Padded(tile.first_row / p_.sequence + static_cast<int64_t>(gridDim.z));
  }

 private:
  __device__ __forceinline__ Cursor* cursor() const {
    return reinterpret_cast<Cursor*>(shared_.cursors) + threadIdx.x % 32;
  }

  __device__ __forceinline__ Tile Padded(int64_t batch) const {
    if (batch >= p_.batch) return {0, 0, 0, 0};
    const int first_query = static_cast<int>(blockIdx.x) * Config::kQueries;
    return {static_cast<int>(batch) * p_.sequence, p_.sequence, first_query, static_cast<int>(blockIdx.y)};
  }

  __device__ __forceinline__ Tile NextPacked() const {
    if (threadIdx.x < 32) {
      const PackedTile next = cursor()->Next();
      if (threadIdx.x == 0) shared_.tile = next;
    }
    __syncthreads();
    const PackedTile tile = shared_.tile;
    return {tile.first_row, tile.length, tile.first_query, tile.head};
  }

  const Parameters<typename Config::T>& p_;
  Shared& shared_;
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_TILE_SCHEDULER_CUH_
