// The Hopper matrix product without its end: one thread feeds tiles of x and weight through a ring of shared-memory
// stages (bulk tensor copies, shared among the blocks of a cluster), warpgroups multiply (wgmma). Blocks are
// persistent: they take one tile of the output after the other.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_LOOP_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_LOOP_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/gemm_sm90_shape.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Loop {
 protected:
  using T = typename Shape::T;
  using Parameters = GemmSm90Parameters;
  static constexpr int kRingBarriers = 2 * Shape::kStages;

  __device__ __forceinline__ GemmSm90Loop(const Parameters& parameters, char* shared)
      : p_(parameters), shared_(shared), rank_(ClusterRank()) {
    barriers_ = reinterpret_cast<uint64_t*>(shared + Shape::kBarrierOffset);
    rank_m_ = rank_ / p_.cluster_n;
    rank_n_ = rank_ % p_.cluster_n;
  }

  // By one thread, before the block's first barrier.
  __device__ __forceinline__ void InitRing() {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      InitBarrier(Full(stage), 1);
      InitBarrier(Empty(stage), Shape::kMultipliers * (p_.cluster_m + p_.cluster_n - 1));
    }
  }
  __device__ __forceinline__ bool Clustered() const { return p_.cluster_m * p_.cluster_n > 1; }

  __device__ __forceinline__ uint64_t* Full(int stage) { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* Empty(int stage) { return barriers_ + Shape::kStages + stage; }
  __device__ __forceinline__ float* Vector(int index) {
    return reinterpret_cast<float*>(shared_ + Shape::kVectorOffset) + index * Shape::kN;
  }

  // Calls body(work) for each tile of this cluster. Columns change fastest: the weight stays in the L2 cache.
  template <class Body>
  __device__ __forceinline__ void ForEachTile(Body&& body) {
    const int cluster_size = p_.cluster_m * p_.cluster_n, clusters = gridDim.x / cluster_size;
    const int per_split = p_.tiles_m * p_.tiles_n, tiles = per_split * p_.splits;
    for (int tile = blockIdx.x / cluster_size; tile < tiles; tile += clusters) {
      GemmSm90Work work;
      work.split = tile / per_split;
      const int inner = tile % per_split;
      work.row = (inner / p_.tiles_n * p_.cluster_m + rank_m_) * Shape::kM;
      work.column = (inner % p_.tiles_n * p_.cluster_n + rank_n_) * Shape::kN;
      work.first_stage = work.split * p_.stages_per_split;
      work.last_stage = min(work.first_stage + p_.stages_per_split, p_.k_stages);
      body(work);
    }
  }

  // Bias, gamma and beta of the block's columns, which are the same in every tile: a cluster spans the row. Called by
  // `threads` threads, that still have to meet at a barrier.
  __device__ __forceinline__ void LoadRowVectors(int thread, int threads) {
    const T* sources[3] = {static_cast<const T*>(p_.bias), static_cast<const T*>(p_.gamma),
                           static_cast<const T*>(p_.beta)};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      for (int column = thread; column < Shape::kN; column += threads) {
        Vector(i)[column] = ToFloat(sources[i][rank_n_ * Shape::kN + column]);
      }
    }
  }

  // Feeds the ring. By one thread.
  __device__ __forceinline__ void Produce() {
    PrefetchTensorMap(&p_.x_map);
    PrefetchTensorMap(&p_.weight_map);
    RingPosition<Shape::kStages> ring;
    if (!p_.weight_is_constant) WaitForPrevious();
    bool first_tile = true;
    ForEachTile([&](const GemmSm90Work& work) {
      int ahead = 0;  // stages whose weight is already on its way
      if (first_tile) {
        // The weight does not depend on the kernel before this one: fill the ring with it while that one ends.
        ahead = min(work.last_stage - work.first_stage, Shape::kStages);
        for (int i = 0; i < ahead; ++i) {
          ArriveExpecting(Full(i), Shape::kStageBytes);
          LoadWeight(work, work.first_stage + i, i);
        }
        WaitForPrevious();
        first_tile = false;
      }
      for (int k_stage = work.first_stage; k_stage < work.last_stage; ++k_stage, --ahead, ring.Advance()) {
        if (ahead <= 0) {
          WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
          ArriveExpecting(Full(ring.stage), Shape::kStageBytes);
          LoadWeight(work, k_stage, ring.stage);
        }
        LoadX(work, k_stage, ring.stage);
      }
    });
  }

  // sum = the product over the work's part of k. By the warpgroup of the tile's rows 64 * group to 64 * group + 63.
  //
  // sum[4 j + e] is at row (lane / 4) + 8 (e / 2) of its warp's 16 and column 8 j + 2 (lane % 4) + e % 2.
  __device__ __forceinline__ void Multiply(float (&sum)[Shape::kN / 2], const GemmSm90Work& work, int group,
                                           RingPosition<Shape::kStages>& ring) {
    int previous = -1;
    for (int k_stage = work.first_stage; k_stage < work.last_stage; ++k_stage, ring.Advance()) {
      WaitBarrier(Full(ring.stage), ring.parity);
      const char* x_tile = shared_ + ring.stage * Shape::kStageBytes;
      uint64_t x = TileDescriptor(x_tile + group * 64 * kStageK * 2);
      uint64_t weight = TileDescriptor(x_tile + Shape::kXBytes);
      FenceRegisters(sum);
      BeginWgmma();
#pragma unroll
      for (int step = 0; step < kStageK / 16; ++step, x += 2, weight += 2) {
#pragma unroll
        for (int part = 0; part < Shape::kN / Shape::kWgmmaN; ++part) {
          float(&d)[Shape::kWgmmaN / 2] = reinterpret_cast<float(&)[Shape::kWgmmaN / 2]>(sum[part * Shape::kWgmmaN / 2]);
          WgmmaSs<T, Shape::kWgmmaN>(d, x, weight + part * (Shape::kWgmmaN * kStageK * 2 >> 4),
                                     step > 0 || k_stage > work.first_stage);
        }
      }
      CommitWgmma();
      FenceRegisters(sum);
      WaitWgmma<1>();
      if (previous >= 0) Release(previous);
      previous = ring.stage;
    }
    WaitWgmma<0>();
    FenceRegisters(sum);
    Release(previous);
  }

  const Parameters& p_;
  char* shared_;
  uint64_t* barriers_;
  int rank_, rank_m_, rank_n_;

 private:
  __device__ __forceinline__ void LoadX(const GemmSm90Work& work, int k_stage, int stage) {
    char* to = shared_ + stage * Shape::kStageBytes;
    if (p_.cluster_n == 1) {
      LoadTile2d(to, &p_.x_map, k_stage * kStageK, work.row, Full(stage));
    } else if (rank_n_ < p_.x_sharers) {
      const int rows = Shape::kM / p_.x_sharers, first = rank_n_ * rows;
      const uint32_t blocks = ((1u << p_.cluster_n) - 1) << (rank_m_ * p_.cluster_n);
      LoadTile2dMulticast(to + first * kStageK * 2, &p_.x_map, k_stage * kStageK, work.row + first, Full(stage),
                          blocks);
    }
  }

  __device__ __forceinline__ void LoadWeight(const GemmSm90Work& work, int k_stage, int stage) {
    char* to = shared_ + stage * Shape::kStageBytes + Shape::kXBytes;
    if (p_.cluster_m == 1) {
      LoadTile2d(to, &p_.weight_map, k_stage * kStageK, work.column, Full(stage));
    } else {
      const int rows = Shape::kN / p_.cluster_m, first = rank_m_ * rows;
      uint32_t blocks = 0;
      for (int i = 0; i < p_.cluster_m; ++i) blocks |= 1u << (i * p_.cluster_n + rank_n_);
      LoadTile2dMulticast(to + first * kStageK * 2, &p_.weight_map, k_stage * kStageK, work.column + first, Full(stage),
                          blocks);
    }
  }

  // Tells every block that writes to this one's stage that this warpgroup has read it.
  __device__ __forceinline__ void Release(int stage) {
    const int thread = threadIdx.x % 128;
    const int row = p_.cluster_n, column = p_.cluster_m;
    if (thread < row) {
      ArriveAt(Empty(stage), rank_m_ * row + thread);
    } else if (thread < row + column - 1) {
      const int other = thread - row;
      ArriveAt(Empty(stage), (other + (other >= rank_m_ ? 1 : 0)) * row + rank_n_);
    }
  }
};

// Chan's parallel form of Welford's update: a row's mean and 1 / deviation from the means and the sums of squared
// deviations of its equally long slices, which lie `stride` apart.
__device__ __forceinline__ float2 MergeStatistics(const float2* slices, int stride, int count, int slice_columns,
                                                  float epsilon) {
  float mean = 0.0f, squares = 0.0f;
#pragma unroll 4
  for (int i = 0; i < count; ++i) mean += slices[i * stride].x;
  mean /= static_cast<float>(count);
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float2 slice = slices[i * stride];
    squares += slice.y + static_cast<float>(slice_columns) * (slice.x - mean) * (slice.x - mean);
  }
  return make_float2(mean, rsqrtf(squares / static_cast<float>(count * slice_columns) + epsilon));
}

template <int kCount>
__device__ __forceinline__ void ActivateFast(float* v, Activation activation) {
  if (activation == Activation::kGeluErf) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = GeluErfFast(v[i]);
  } else if (activation == Activation::kGeluTanh) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = GeluTanh(v[i]);
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_LOOP_CUH_
