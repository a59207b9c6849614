// Which tiles of queries a block computes.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_TILE_SCHEDULER_CUH_

#include <new>

#include "kernels/mma/attention/key_tiles.cuh"
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
    union {
      alignas(alignof(Cursor)) unsigned char cursors[32 * sizeof(Cursor)];  // of packed sequences
      uint32_t mask_words[KeyTiles<Config>::kMaskKeys / 32];                // of padded ones
    };
    PackedTile tile;
  };

  __device__ __forceinline__ TileScheduler(const Parameters<typename Config::T>& p, Shared& shared)
      : p_(p), shared_(shared) {
    if (p_.packed.count > 0 && threadIdx.x < 32) new (cursor()) Cursor(p_.packed, p_.heads, blockIdx.x, gridDim.x);
  }

  // Whether there is none behind the first: always, but for packed or very many sequences.
  __device__ __forceinline__ bool HasOneTile() const { return p_.packed.count == 0 && gridDim.z == p_.batch; }

  // Finds the tile behind `tile`, the first behind one of no length, or that there is none. Called by the whole block,
  // when no thread needs the shared memory of the tile before. One place in the kernel: code that a block jumps over
  // must be fetched, too.
  __device__ __forceinline__ bool Find(Tile& tile) const {
    if (p_.packed.count > 0) {
      tile = NextPacked();
      return tile.length > 0;
    }
    int64_t batch = blockIdx.z;
    if (tile.length > 0) batch = tile.first_row / p_.sequence + static_cast<int64_t>(gridDim.z);
    if (batch >= p_.batch) return false;
    const int first_query = static_cast<int>(blockIdx.x) * Config::kQueries;
    tile = {static_cast<int>(batch) * p_.sequence, p_.sequence, first_query, static_cast<int>(blockIdx.y)};
    return true;
  }

 private:
  __device__ __forceinline__ Cursor* cursor() const {
    return reinterpret_cast<Cursor*>(shared_.cursors) + threadIdx.x % 32;
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
