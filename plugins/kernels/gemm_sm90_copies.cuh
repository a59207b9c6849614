// The copy engine's part of the Hopper matrix product: a thread that feeds the ring, and sending finished tiles off.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_COPIES_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_COPIES_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/gemm_sm90_block.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Copies : protected GemmSm90Block<Shape> {
 protected:
  using Block = GemmSm90Block<Shape>;
  using Block::Block;
  using Block::Empty;
  using Block::Full;
  using Block::HasTile;
  using Block::p_;
  using Block::PartsIn;
  using Block::rank_m_;
  using Block::rank_n_;
  using Block::SharesX;
  using Block::Stage;
  using Block::TileAt;
  using typename Block::Ring;
  using typename Block::Tile;

  __device__ __forceinline__ void Produce() {
    PrefetchTensorMap(&p_.x_map);
    PrefetchTensorMap(&p_.weight_map);
    const Share x = ShareOfX(), weight = ShareOfWeight();
    if (!p_.weights_are_constant) WaitForPrevious();
    // A constant weight does not depend on the kernel before this one: fill the ring with it while that one ends.
    Tile tile = TileAt(0);
    int ahead = min(tile.stages(), Shape::kStages);
    for (int i = 0; i < ahead; ++i) {
      ArriveExpecting(Full(i), Shape::kStageBytes);
      LoadWeight(tile, tile.first_stage + i, i, weight);
    }
    WaitForPrevious();
    Ring ring;
    for (int turn = 0;;) {
      for (int k_stage = tile.first_stage; k_stage < tile.last_stage; ++k_stage, ring.Advance()) {
        if (--ahead < 0) {
          WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
          ArriveExpecting(Full(ring.stage), Shape::kStageBytes);
          LoadWeight(tile, k_stage, ring.stage, weight);
        }
        LoadX(tile, k_stage, ring.stage, x);
      }
      if (Shape::kPartStages > 0) ProvideBuffers(tile, ring);
      if (!HasTile(++turn)) break;
      tile = TileAt(turn);
    }
    // What the cluster's other blocks say about this block's stages has to get here before it ends.
    if (p_.cluster_m * p_.cluster_n == 1) return;
    for (int i = Shape::kPartStages; i < Shape::kStages; ++i, ring.Advance()) {
      WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
    }
  }

  // By one thread.
  __device__ __forceinline__ void StorePart(const Tile& tile, int group, const char* part) {
#pragma unroll 1
    for (int i = 0; i < Shape::kBuffers; ++i) {
      StoreTile2d(&p_.y_map, part + i * Shape::kBufferBytes, tile.column + i * Shape::kBufferColumns,
                  tile.row + group * 64);
    }
    CommitStores();
  }

 private:
  // What this block loads of a tile that it shares: rows from `first` on, and who gets them (a bit for each block of
  // the cluster). Worked out once: with its divisions a copy would come later than small tiles want it.
  struct Share {
    int first;
    uint32_t blocks;
  };

  __device__ __forceinline__ Share ShareOfX() const {
    return {rank_n_ * (Shape::kM / p_.x_sharers), ((1u << p_.cluster_n) - 1) << (rank_m_ * p_.cluster_n)};
  }

  __device__ __forceinline__ Share ShareOfWeight() const {
    Share share = {rank_m_ * (Shape::kN / p_.cluster_m), 0};
    for (int i = 0; i < p_.cluster_m; ++i) share.blocks |= 1u << (i * p_.cluster_n + rank_n_);
    return share;
  }

  __device__ __forceinline__ void LoadX(const Tile& tile, int k_stage, int stage, const Share& share) {
    if (p_.cluster_n == 1) {
      LoadTile2d(Stage(stage), &p_.x_map, k_stage * kStageK, tile.row, Full(stage));
    } else if (SharesX()) {
      LoadTile2dMulticast(Stage(stage) + share.first * kStageK * 2, &p_.x_map, k_stage * kStageK,
                          tile.row + share.first, Full(stage), share.blocks);
    }
  }

  __device__ __forceinline__ void LoadWeight(const Tile& tile, int k_stage, int stage, const Share& share) {
    char* to = Stage(stage) + Shape::kXBytes + share.first * kStageK * 2;
    const int row = tile.column + share.first, k = k_stage * kStageK;
    if constexpr (Shape::kTurns) {
      const int group = row / kDealtRows;
      if (p_.cluster_m == 1) {
        LoadDealtRows(to, &p_.weight_map, k, group, Full(stage));
      } else {
        LoadDealtRowsMulticast(to, &p_.weight_map, k, group, Full(stage), share.blocks);
      }
    } else if (p_.cluster_m == 1) {
      LoadTile2d(to, &p_.weight_map, k, row, Full(stage));
    } else {
      LoadTile2dMulticast(to, &p_.weight_map, k, row, Full(stage), share.blocks);
    }
  }

  // Stages for the warpgroups to put their parts of the tile in, with the residual in them where there is one.
  __device__ __forceinline__ void ProvideBuffers(const Tile& tile, Ring& ring) {
#pragma unroll 1
    for (int i = 0; i < Shape::kPartStages; ++i, ring.Advance()) {
      WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
      if (!Shape::kLayerNorm || !p_.has_residual) {
        ArriveAtOwn(Full(ring.stage));
        continue;
      }
      ArriveExpecting(Full(ring.stage), PartsIn(i) * Shape::kPartBytes);
#pragma unroll 1
      for (int j = 0; j < PartsIn(i) * Shape::kBuffers; ++j) {
        const int group = i * Shape::kPartsInStage + j / Shape::kBuffers;
        LoadTile2d(Stage(ring.stage) + j * Shape::kBufferBytes, &p_.residual_map,
                   tile.column + j % Shape::kBuffers * Shape::kBufferColumns, tile.row + group * 64, Full(ring.stage));
      }
    }
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_COPIES_CUH_
