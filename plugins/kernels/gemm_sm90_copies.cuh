// The two threads of a block of the Hopper matrix product that move tiles: one feeds the ring, and where blocks stay
// another sends finished tiles off.
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
  using Block::cluster_;
  using Block::Done;
  using Block::Empty;
  using Block::Full;
  using Block::Mates;
  using Block::MatesEmpty;
  using Block::NextTile;
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
    if (!p_.weight_is_constant) WaitForPrevious();
    // A constant weight does not depend on the kernel before this one: fill the ring with it while that one ends.
    Tile tile = TileAt(cluster_);
    int ahead = min(tile.last_stage - tile.first_stage, Shape::kStages);
    for (int i = 0; i < ahead; ++i) {
      ArriveExpecting(Full(i), Shape::kStageBytes);
      LoadWeight(tile, tile.first_stage + i, i);
    }
    WaitForPrevious();
    Ring ring;
    for (int index = cluster_;; tile = TileAt(index)) {
      for (int k_stage = tile.first_stage; k_stage < tile.last_stage; ++k_stage, ring.Advance()) {
        if (--ahead < 0) {
          WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
          ArriveExpecting(Full(ring.stage), Shape::kStageBytes);
          LoadWeight(tile, k_stage, ring.stage);
        }
        LoadX(tile, k_stage, ring.stage);
      }
      if (Shape::kPartStages > 0) ProvideBuffers(tile, ring);
      if (!NextTile(&index)) break;
    }
  }

  // Of blocks that stay one thread sends the finished tiles to global memory and gives their stages back to the ring,
  // so that no warpgroup waits for the copy engine.
  __device__ __forceinline__ void Store() {
    WaitForPrevious();
    Ring ring;
    uint32_t parity = 0;
    for (int index = cluster_;; parity ^= 1) {
      const Tile tile = TileAt(index);
      ring.Advance(tile.last_stage - tile.first_stage);
      const Ring first = ring;
      for (int i = 0; i < Shape::kPartStages; ++i, ring.Advance()) {
        WaitBarrier(Done(i), parity);
        for (int j = 0; j < PartsIn(i); ++j) {
          StorePart(tile, i * Shape::kPartsInStage + j, Stage(ring.stage) + j * Shape::kPartBytes);
        }
      }
      WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
      // After the last tile nothing will be loaded there, and the blocks of the cluster may have ended.
      if (!NextTile(&index)) break;
      ring = first;
      for (int i = 0; i < Shape::kPartStages; ++i, ring.Advance()) {
        for (int mate = 0; mate < Mates(); ++mate) {
          const uint32_t empty = MatesEmpty(mate);
          if (empty != 0) ArriveAt(empty + ring.stage * sizeof(uint64_t), Shape::kWarpgroups);
        }
      }
    }
  }

  __device__ __forceinline__ void StorePart(const Tile& tile, int group, const char* part) {
#pragma unroll 1
    for (int i = 0; i < Shape::kBuffers; ++i) {
      StoreTile2d(&p_.y_map, part + i * Shape::kBufferBytes, tile.column + i * Shape::kBufferColumns,
                  tile.row + group * 64);
    }
    CommitStores();
  }

 private:
  __device__ __forceinline__ void LoadX(const Tile& tile, int k_stage, int stage) {
    if (p_.cluster_n == 1) {
      LoadTile2d(Stage(stage), &p_.x_map, k_stage * kStageK, tile.row, Full(stage));
    } else if (SharesX()) {
      const int rows = Shape::kM / p_.x_sharers, first = rank_n_ * rows;
      const uint32_t blocks = ((1u << p_.cluster_n) - 1) << (rank_m_ * p_.cluster_n);
      LoadTile2dMulticast(Stage(stage) + first * kStageK * 2, &p_.x_map, k_stage * kStageK, tile.row + first,
                          Full(stage), blocks);
    }
  }

  __device__ __forceinline__ void LoadWeight(const Tile& tile, int k_stage, int stage) {
    char* to = Stage(stage) + Shape::kXBytes;
    if (p_.cluster_m == 1) {
      LoadTile2d(to, &p_.weight_map, k_stage * kStageK, tile.column, Full(stage));
    } else {
      const int rows = Shape::kN / p_.cluster_m, first = rank_m_ * rows;
      uint32_t blocks = 0;
      for (int i = 0; i < p_.cluster_m; ++i) blocks |= 1u << (i * p_.cluster_n + rank_n_);
      LoadTile2dMulticast(to + first * kStageK * 2, &p_.weight_map, k_stage * kStageK, tile.column + first, Full(stage),
                          blocks);
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
