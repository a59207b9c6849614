// Which tiles of the output a block computes.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_TILE_SCHEDULER_CUH_

#include "kernels/gemm_sm90/parameters.cuh"
#include "kernels/sm90/cluster.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// Where a tile lies, and its split of k in stages.
struct Tile {
  int row, column, split, first_stage, last_stage;
  __device__ __forceinline__ int stages() const { return last_stage - first_stage; }
};

// A block's place: its cluster, and its row and column in it.
struct BlockPosition {
  int cluster, rank_m, rank_n;
  __device__ __forceinline__ explicit BlockPosition(const Parameters& p)
      : cluster(blockIdx.x / (p.cluster_m * p.cluster_n)) {
    const int rank = ClusterRank();
    rank_m = rank / p.cluster_n;
    rank_n = rank % p.cluster_n;
  }
};

template <class Config>
class TileScheduler {
 public:
  __device__ __forceinline__ explicit TileScheduler(const Parameters& parameters)
      : p_(parameters), block_(parameters) {}

  // A block's tiles are numbered from 0 on. Only persistent blocks have more than one.
  __device__ __forceinline__ bool HasTile(int number) const {
    return number == 0 || (Config::kPersistent && block_.cluster + number * p_.clusters < p_.tiles);
  }

  // Columns change fastest: the weight stays in the L2 cache. Unsplit tiles have the lower indices, then come the
  // splits of the others (which are the first to be computed where the order is backwards).
  __device__ __forceinline__ Tile TileAt(int number) const {
    Tile tile;
    int index = block_.cluster + number * p_.clusters;
    if (p_.backwards) index = p_.tiles - 1 - index;
    tile.split = 0, tile.first_stage = 0, tile.last_stage = p_.k_stages;
    if (index >= p_.unsplit_tiles) {
      const int split_tiles = p_.tiles_m * p_.tiles_n - p_.unsplit_tiles;
      index -= p_.unsplit_tiles;
      tile.split = index / split_tiles;
      index = p_.unsplit_tiles + index % split_tiles;
      tile.first_stage = tile.split * p_.stages_per_split;
      tile.last_stage = min(tile.first_stage + p_.stages_per_split, p_.k_stages);
    }
    tile.row = (index / p_.tiles_n * p_.cluster_m + block_.rank_m) * Config::kM;
    tile.column = (index % p_.tiles_n * p_.cluster_n + block_.rank_n) * Config::kN;
    return tile;
  }

 protected:
  const Parameters& p_;
  BlockPosition block_;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_GEMM_SM90_TILE_SCHEDULER_CUH_
