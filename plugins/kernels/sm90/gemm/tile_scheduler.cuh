// The tile scheduler: which tiles of the output a block computes, and which of them are split along k (split-K).
#ifndef BERTFUSE_KERNELS_SM90_GEMM_TILE_SCHEDULER_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_TILE_SCHEDULER_CUH_

#include "kernels/packed_rows.cuh"
#include "kernels/sm90/gemm/parameters.cuh"
#include "kernels/sm90/ptx/cluster.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// A tile's position in the output, and its range of k in stages.
struct Tile {
  int row, column, split, first_stage, last_stage;
  __device__ __forceinline__ int stages() const { return last_stage - first_stage; }
};

// A block's position: its cluster, and its row and column within it.
struct BlockPosition {
  int cluster, rank_m, rank_n;
  __device__ __forceinline__ explicit BlockPosition(const Parameters& p) : cluster(static_cast<int>(ClusterId())) {
    p.cluster_n_divmod(rank_m, rank_n, static_cast<int>(ClusterRank()));
  }
};

// The number of tiles, as the host computed it.
template <bool kPacked>
class TileCounts {
 public:
  __device__ __forceinline__ TileCounts(const Parameters& p, char*) : p_(p) {}
  __device__ __forceinline__ int tiles() const { return p_.tiles; }
  __device__ __forceinline__ int unsplit_tiles() const { return p_.unsplit_tiles; }
  __device__ __forceinline__ int split_tiles() const { return p_.tiles_m * p_.tiles_n - p_.unsplit_tiles; }
  __device__ __forceinline__ int unsplit_rows() const { return p_.unsplit_rows; }
  __device__ __forceinline__ int rows() const { return p_.m; }

 private:
  const Parameters& p_;
};

// The number of tiles, computed from that of packed rows. The counts are in shared memory: kept in registers, all of
// which accumulators and epilogue need, they made the persistent kernel with GELU 12% slower.
template <>
class TileCounts<true> {
  struct alignas(16) Counts {
    int tiles, unsplit_tiles, split_tiles, unsplit_rows, rows;
  };

 public:
  __device__ __forceinline__ TileCounts(const Parameters&, char* shared) : counts_(reinterpret_cast<Counts*>(shared)) {}

  // Called by every thread. Returns whether `cluster`, counted from 0, has a tile; the counts can then be read after
  // the block's next barrier.
  __device__ __forceinline__ bool Make(const Parameters& p, int row_count, int cluster) const {
    const int rows = static_cast<int>(RealRows(row_count, p.m)), panels = Panels(p.last_wave, rows);
    int full = panels;
    if (p.splits > 1) full = p.last_wave.clusters == 0 ? 0 : FullPanels(p.last_wave, panels);
    Counts counts;
    counts.unsplit_rows = full * p.last_wave.panel_rows;
    counts.unsplit_tiles = full * p.tiles_n;
    counts.split_tiles = (panels - full) * p.tiles_n;
    counts.tiles = counts.unsplit_tiles + counts.split_tiles * p.splits;
    counts.rows = rows;
    if (threadIdx.x == 0) *counts_ = counts;
    return cluster < counts.tiles;
  }
  __device__ __forceinline__ int tiles() const { return counts_->tiles; }
  __device__ __forceinline__ int unsplit_tiles() const { return counts_->unsplit_tiles; }
  __device__ __forceinline__ int split_tiles() const { return counts_->split_tiles; }
  __device__ __forceinline__ int unsplit_rows() const { return counts_->unsplit_rows; }
  __device__ __forceinline__ int rows() const { return counts_->rows; }

 private:
  Counts* counts_;
};

template <class Config>
class TileScheduler {
 public:
  // `counts`: shared memory for the counts of packed rows.
  __device__ __forceinline__ TileScheduler(const Parameters& parameters, char* counts)
      : p_(parameters), block_(parameters), counts_(parameters, counts) {}

  __device__ __forceinline__ const Parameters& parameters() const { return p_; }
  __device__ __forceinline__ const BlockPosition& block() const { return block_; }

  // With packed rows, to be called before anything else: false if the whole cluster has nothing to do.
  __device__ __forceinline__ bool CountTiles(int row_count) const {
    return counts_.Make(p_, row_count, block_.cluster);
  }

  // A block's tiles are numbered from 0 on. Only persistent blocks have more than one.
  __device__ __forceinline__ bool HasTile(int number) const {
    return number == 0 || (Config::kPersistent && block_.cluster + number * p_.clusters < counts_.tiles());
  }

  // There may be more packed rows than the grid was sized for: makes the next tile number 0. False if there is none.
  __device__ __forceinline__ bool NextRound() {
    block_.cluster += p_.clusters;
    ++round_;
    return block_.cluster < counts_.tiles();
  }

  // Counted from 0. Only packed rows have more than one.
  __device__ __forceinline__ int round() const { return Config::kPacked && !Config::kPersistent ? round_ : 0; }

  // Columns change fastest: the weight stays in the L2 cache. Unsplit tiles have the lower indices, then come the
  // splits of the others (which are the first to be computed where the order is backwards).
  __device__ __forceinline__ Tile TileAt(int number) const {
    Tile tile;
    int index = block_.cluster + number * p_.clusters;
    if (p_.last_rows_first) index = counts_.tiles() - 1 - index;
    tile.split = 0, tile.first_stage = 0, tile.last_stage = p_.k_stages;
    if (index >= counts_.unsplit_tiles()) {
      const int split_tiles = counts_.split_tiles();
      index -= counts_.unsplit_tiles();
#pragma unroll 1
      for (; index >= split_tiles; index -= split_tiles) ++tile.split;  // shorter than a division
      index += counts_.unsplit_tiles();
      tile.first_stage = tile.split * p_.stages_per_split;
      tile.last_stage = min(tile.first_stage + p_.stages_per_split, p_.k_stages);
    }
    int panel, column;
    p_.tiles_n_divmod(panel, column, index);
    tile.row = (panel * p_.cluster_m + block_.rank_m) * Config::kM;
    tile.column = (column * p_.cluster_n + block_.rank_n) * Config::kOutN;
    return tile;
  }

  __device__ __forceinline__ int UnsplitRows() const { return counts_.unsplit_rows(); }
  __device__ __forceinline__ int Rows() const { return counts_.rows(); }

 private:
  const Parameters& p_;
  BlockPosition block_;
  TileCounts<Config::kPacked> counts_;
  int round_ = 0;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_TILE_SCHEDULER_CUH_
