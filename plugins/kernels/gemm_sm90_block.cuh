// A block of the Hopper matrix product as each of its threads sees it: its place in the cluster, its tiles, what lies
// where in shared memory.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_BLOCK_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_BLOCK_CUH_

#include "kernels/gemm_sm90_shape.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Block {
 protected:
  using Ring = RingPosition<Shape::kStages>;

  // Where a tile lies, and its part of k in stages.
  struct Tile {
    int row, column, split, first_stage, last_stage;
    __device__ __forceinline__ int stages() const { return last_stage - first_stage; }
  };

  __device__ __forceinline__ GemmSm90Block(const GemmSm90Parameters& parameters, char* shared)
      : p_(parameters),
        shared_(shared),
        barriers_(reinterpret_cast<uint64_t*>(shared + Shape::kBarrierOffset)),
        cluster_(blockIdx.x / (p_.cluster_m * p_.cluster_n)) {
    const int rank = ClusterRank();
    rank_m_ = rank / p_.cluster_n;
    rank_n_ = rank % p_.cluster_n;
  }

  // By one thread.
  __device__ __forceinline__ void InitBarriers() {
    // A stage is read by this block, by the cluster row that this block loads a part of x for, and by the column.
    const int readers = (SharesX() ? p_.cluster_n : 1) + p_.cluster_m - 1;
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      InitBarrier(Full(stage), 1);
      InitBarrier(Empty(stage), Shape::kReaders * readers);
    }
    for (int group = 0; Shape::kLayerNorm && group < Shape::kWarpgroups; ++group) {
      InitBarrier(StatisticsFull(group), 1);
    }
    FenceBarrierInit();
  }

  __device__ __forceinline__ uint64_t* Full(int stage) { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* Empty(int stage) { return barriers_ + Shape::kStages + stage; }
  __device__ __forceinline__ uint64_t* StatisticsFull(int group) { return barriers_ + 2 * Shape::kStages + group; }
  __device__ __forceinline__ char* Stage(int stage) { return shared_ + stage * Shape::kStageBytes; }
  __device__ __forceinline__ float* Vector(int index) {
    return reinterpret_cast<float*>(shared_ + Shape::kVectorOffset) + index * Shape::kN;
  }
  // Mean and sum of squared deviations of each row's slice: [warpgroup][source block][row].
  __device__ __forceinline__ float2* Statistics(int group, int source) {
    return reinterpret_cast<float2*>(shared_ + Shape::kStatisticsOffset) + (group * p_.cluster_n + source) * 64;
  }

  // Columns change fastest: the weight stays in the L2 cache. Whole tiles have the lower numbers, then come the parts
  // of the others (which are the first to be computed where the order is backwards).
  __device__ __forceinline__ Tile TileAt(int turn) const {
    Tile tile;
    int index = cluster_ + turn * p_.clusters;
    if (p_.backwards) index = p_.tiles - 1 - index;
    tile.split = 0, tile.first_stage = 0, tile.last_stage = p_.k_stages;
    if (index >= p_.whole_tiles) {
      const int in_parts = p_.tiles_m * p_.tiles_n - p_.whole_tiles;
      index -= p_.whole_tiles;
      tile.split = index / in_parts;
      index = p_.whole_tiles + index % in_parts;
      tile.first_stage = tile.split * p_.stages_per_split;
      tile.last_stage = min(tile.first_stage + p_.stages_per_split, p_.k_stages);
    }
    tile.row = (index / p_.tiles_n * p_.cluster_m + rank_m_) * Shape::kM;
    tile.column = (index % p_.tiles_n * p_.cluster_n + rank_n_) * Shape::kN;
    return tile;
  }

  // Turns count a block's tiles.
  __device__ __forceinline__ bool HasTile(int turn) const {
    return turn == 0 || (Shape::kTurns && cluster_ + turn * p_.clusters < p_.tiles);
  }
  __device__ __forceinline__ bool SharesX() const { return rank_n_ < p_.x_sharers; }

  // How many warpgroups' parts are in the i-th stage of parts.
  __device__ __forceinline__ static int PartsIn(int i) {
    return min(Shape::kPartsInStage, Shape::kWarpgroups - i * Shape::kPartsInStage);
  }

  // Blocks that may write to this one's stages are numbered: first the cluster row, then the column. Where to tell
  // block `mate` that its first stage has been read here; 0 if it does not write here. Worked out before the loop: in
  // it, a tile of 64 x 64 leaves 128 cycles a stage.
  __device__ __forceinline__ uint32_t MatesEmpty(int mate) {
    if (mate < p_.cluster_n) {
      const bool writes = mate == rank_n_ || mate < p_.x_sharers;
      return writes ? ClusterAddress(Empty(0), rank_m_ * p_.cluster_n + mate) : 0;
    }
    const int row = mate - p_.cluster_n;
    return row < p_.cluster_m && row != rank_m_ ? ClusterAddress(Empty(0), row * p_.cluster_n + rank_n_) : 0;
  }

  const GemmSm90Parameters& p_;
  char* shared_;
  uint64_t* barriers_;
  int cluster_, rank_m_, rank_n_;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_BLOCK_CUH_
