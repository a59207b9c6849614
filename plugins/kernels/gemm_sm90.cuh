// The Hopper matrix product: a block computes one tile of the output. One thread feeds tiles of x and weight through a
// ring of shared-memory stages (bulk tensor copies, shared among the blocks of a cluster), one or two warpgroups
// multiply (wgmma) and finish the result in registers.
//
// Two blocks of 128 x 128 fit on a multiprocessor: while one finishes its tile, the other multiplies.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/gemm_sm90_epilogue.cuh"
#include "kernels/gemm_sm90_shape.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Kernel {
  using T = typename Shape::T;
  using Ring = RingPosition<Shape::kStages>;
  using Buffers = Pairs<T, Shape::kBufferColumns>;
  static constexpr int kBufferSums = Shape::kBufferColumns / 2;

 public:
  __device__ __forceinline__ GemmSm90Kernel(const GemmSm90Parameters& parameters, char* shared)
      : p_(parameters), shared_(shared), barriers_(reinterpret_cast<uint64_t*>(shared + Shape::kBarrierOffset)) {
    const int rank = ClusterRank(), cluster = blockIdx.x / (p_.cluster_m * p_.cluster_n);
    rank_m_ = rank / p_.cluster_n;
    rank_n_ = rank % p_.cluster_n;
    // Columns change fastest: the weight stays in the L2 cache.
    const int per_split = p_.tiles_m * p_.tiles_n, tile = cluster % per_split;
    split_ = cluster / per_split;
    row_ = (tile / p_.tiles_n * p_.cluster_m + rank_m_) * Shape::kM;
    column_ = (tile % p_.tiles_n * p_.cluster_n + rank_n_) * Shape::kN;
    first_stage_ = split_ * p_.stages_per_split;
    last_stage_ = min(first_stage_ + p_.stages_per_split, p_.k_stages);
  }

  __device__ __forceinline__ void Run() {
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Shape::kStages; ++stage) {
        InitBarrier(Full(stage), 1);
        InitBarrier(Empty(stage), Shape::kWarpgroups * (p_.cluster_m + p_.cluster_n - 1));
      }
      for (int group = 0; group < Shape::kWarpgroups; ++group) {
        InitBarrier(ResidualFull(group), 1);
        InitBarrier(StatisticsFull(group), 1);
      }
      FenceBarrierInit();
    }
    LaunchNext();
    const bool clustered = p_.cluster_m * p_.cluster_n > 1;
    if (clustered) SyncCluster();
    __syncthreads();
    if (warp == 4 * Shape::kWarpgroups) {
      if (threadIdx.x % 32 == 0) Produce();
      __syncwarp();
    } else {
      Consume(warp / 4);
    }
    // A block's shared memory must outlive what its cluster writes there.
    if (clustered) SyncCluster();
  }

 private:
  __device__ __forceinline__ uint64_t* Full(int stage) { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* Empty(int stage) { return barriers_ + Shape::kStages + stage; }
  __device__ __forceinline__ uint64_t* ResidualFull(int group) { return barriers_ + 2 * Shape::kStages + group; }
  __device__ __forceinline__ uint64_t* StatisticsFull(int group) { return ResidualFull(Shape::kWarpgroups + group); }
  __device__ __forceinline__ char* Stage(int stage) { return shared_ + stage * Shape::kStageBytes; }
  __device__ __forceinline__ float* Vector(int index) {
    return reinterpret_cast<float*>(shared_ + Shape::kVectorOffset) + index * Shape::kN;
  }
  // Mean and sum of squared deviations of each row's slice: [warpgroup][source block][row].
  __device__ __forceinline__ float2* Statistics(int group, int source) {
    return reinterpret_cast<float2*>(shared_ + Shape::kStatisticsOffset) + (group * p_.cluster_n + source) * 64;
  }

  // ---- loading ----

  __device__ __forceinline__ void LoadX(int k_stage, int stage) {
    if (p_.cluster_n == 1) {
      LoadTile2d(Stage(stage), &p_.x_map, k_stage * kStageK, row_, Full(stage));
    } else if (rank_n_ < p_.x_sharers) {
      const int rows = Shape::kM / p_.x_sharers, first = rank_n_ * rows;
      const uint32_t blocks = ((1u << p_.cluster_n) - 1) << (rank_m_ * p_.cluster_n);
      LoadTile2dMulticast(Stage(stage) + first * kStageK * 2, &p_.x_map, k_stage * kStageK, row_ + first, Full(stage),
                          blocks);
    }
  }

  __device__ __forceinline__ void LoadWeight(int k_stage, int stage) {
    char* to = Stage(stage) + Shape::kXBytes;
    if (p_.cluster_m == 1) {
      LoadTile2d(to, &p_.weight_map, k_stage * kStageK, column_, Full(stage));
    } else {
      const int rows = Shape::kN / p_.cluster_m, first = rank_m_ * rows;
      uint32_t blocks = 0;
      for (int i = 0; i < p_.cluster_m; ++i) blocks |= 1u << (i * p_.cluster_n + rank_n_);
      LoadTile2dMulticast(to + first * kStageK * 2, &p_.weight_map, k_stage * kStageK, column_ + first, Full(stage),
                          blocks);
    }
  }

  __device__ __forceinline__ void Produce() {
    PrefetchTensorMap(&p_.x_map);
    PrefetchTensorMap(&p_.weight_map);
    if (!p_.weight_is_constant) WaitForPrevious();
    // A constant weight does not depend on the kernel before this one: fill the ring with it while that one ends.
    const int ahead = min(last_stage_ - first_stage_, Shape::kStages);
    for (int i = 0; i < ahead; ++i) {
      ArriveExpecting(Full(i), Shape::kStageBytes);
      LoadWeight(first_stage_ + i, i);
    }
    WaitForPrevious();
    Ring ring;
    for (int k_stage = first_stage_; k_stage < last_stage_; ++k_stage, ring.Advance()) {
      if (k_stage >= first_stage_ + ahead) {
        WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
        ArriveExpecting(Full(ring.stage), Shape::kStageBytes);
        LoadWeight(k_stage, ring.stage);
      }
      LoadX(k_stage, ring.stage);
    }
    if (Shape::kLayerNorm && p_.has_residual) {
#pragma unroll 1
      for (int group = 0; group < Shape::kWarpgroups; ++group, ring.Advance()) {
        WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
        ArriveExpecting(ResidualFull(group), Shape::kBuffers * Shape::kBufferBytes);
#pragma unroll 1
        for (int i = 0; i < Shape::kBuffers; ++i) {
          LoadTile2d(Stage(ring.stage) + i * Shape::kBufferBytes, &p_.residual_map, column_ + i * Shape::kBufferColumns,
                     row_ + group * 64, ResidualFull(group));
        }
      }
    }
  }

  // ---- multiplying ----

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

  __device__ __forceinline__ void Consume(int group) {
    if (!p_.weight_is_constant) WaitForPrevious();
    LoadVectors();
    Ring ring;
    int previous = -1;
    float sum[Shape::kN / 2];
    for (int k_stage = first_stage_; k_stage < last_stage_; ++k_stage, ring.Advance()) {
      WaitBarrier(Full(ring.stage), ring.parity);
      uint64_t x = TileDescriptor(Stage(ring.stage) + group * 64 * kStageK * 2);
      uint64_t weight = TileDescriptor(Stage(ring.stage) + Shape::kXBytes);
      FenceRegisters(sum);
      BeginWgmma();
#pragma unroll
      for (int step = 0; step < kStageK / 16; ++step, x += 2, weight += 2) {
        WgmmaSs<T, Shape::kN>(sum, x, weight, step > 0 || k_stage > first_stage_);
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
    if constexpr (Shape::kEpilogue == GemmEpilogue::kPartial) {
      WaitForPrevious();
      FinishPartial(sum, group);
    } else {
      FinishTile(sum, group, ring);
    }
  }

  // The block's columns of bias, gamma and beta as float32; 0 where there is no bias or no column.
  __device__ __forceinline__ void LoadVectors() {
    const T* sources[3] = {static_cast<const T*>(p_.bias), static_cast<const T*>(p_.gamma),
                           static_cast<const T*>(p_.beta)};
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      for (int column = threadIdx.x; column < Shape::kN; column += 128 * Shape::kWarpgroups) {
        const bool inside = sources[i] != nullptr && column_ + column < p_.n;
        Vector(i)[column] = inside ? ToFloat(sources[i][column_ + column]) : 0.0f;
      }
    }
    if (Shape::kVectors > 0) asm volatile("bar.sync 8, %0;" ::"n"(128 * Shape::kWarpgroups) : "memory");
  }

  // ---- finishing ----

  // activation(sum + bias), and through LayerNorm with the residual where that is what the kernel ends in.
  __device__ __forceinline__ void FinishTile(float (&sum)[Shape::kN / 2], int group, Ring ring) {
    if (group > 0) ring.Advance();
    char* buffers = Stage(ring.stage);
    const Buffers pairs(buffers);
    // Every warpgroup of the cluster must be done with the stage that the tile passes through.
    if (Shape::kLayerNorm && p_.has_residual) {
      WaitBarrier(ResidualFull(group), 0);
    } else {
      WaitBarrier(Empty(ring.stage), ring.parity ^ 1);
    }
    if constexpr (Shape::kLayerNorm) {
      NormalizeRows(sum, group, pairs);
    } else {
#pragma unroll
      for (int buffer = 0; buffer < Shape::kBuffers; ++buffer) {
        Activate(sum, buffer);
        pairs.StoreAll(buffer, &sum[buffer * kBufferSums]);
      }
    }
    FenceSharedForAsync();
    SyncWarpgroup(1 + group);
    if (threadIdx.x % 128 == 0) {
      WaitForPrevious();
#pragma unroll 1
      for (int buffer = 0; buffer < Shape::kBuffers; ++buffer) {
        StoreTile2d(&p_.y_map, buffers + buffer * Shape::kBufferBytes, column_ + buffer * Shape::kBufferColumns,
                    row_ + group * 64);
      }
      CommitStores();
      WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
    }
  }

  __device__ __forceinline__ void Activate(float (&sum)[Shape::kN / 2], int buffer) {
    AddBiasAndActivate<Shape::kBufferColumns>(&sum[buffer * kBufferSums], Vector(0) + buffer * Shape::kBufferColumns,
                                              p_.activation);
  }

  __device__ __forceinline__ void NormalizeRows(float (&sum)[Shape::kN / 2], int group, const Buffers& pairs) {
    float mean[2] = {}, squares[2] = {};
#pragma unroll
    for (int buffer = 0; buffer < Shape::kBuffers; ++buffer) {
      Activate(sum, buffer);
      float* v = &sum[buffer * kBufferSums];
#pragma unroll
      for (int j = 0; j < Buffers::kCount; ++j) {
        if (p_.has_residual) {
          const float2 upper = pairs.Load(buffer, j, 0), lower = pairs.Load(buffer, j, 1);
          v[4 * j] += upper.x, v[4 * j + 1] += upper.y, v[4 * j + 2] += lower.x, v[4 * j + 3] += lower.y;
        }
        mean[0] += v[4 * j] + v[4 * j + 1], mean[1] += v[4 * j + 2] + v[4 * j + 3];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) mean[i] = QuadSum(mean[i]) / Shape::kN;
#pragma unroll
    for (int i = 0; i < Shape::kN / 2; ++i) {
      const float centered = sum[i] - mean[i / 2 % 2];
      squares[i / 2 % 2] = fmaf(centered, centered, squares[i / 2 % 2]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) squares[i] = QuadSum(squares[i]);
    ShareStatistics(mean, squares, group);
    float scale[2], shift[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) MergeStatistics(Statistics(group, 0) + FirstRow() + 8 * i, &scale[i], &shift[i]);
#pragma unroll
    for (int buffer = 0; buffer < Shape::kBuffers; ++buffer) {
      const float* v = &sum[buffer * kBufferSums];
#pragma unroll
      for (int j = 0; j < Buffers::kCount; ++j) {
        const int column = buffer * Shape::kBufferColumns + 8 * j + FirstColumn();
        const float2 gamma = *reinterpret_cast<const float2*>(Vector(1) + column);
        const float2 beta = *reinterpret_cast<const float2*>(Vector(2) + column);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          pairs.Store(buffer, j, i, fmaf(fmaf(v[4 * j + 2 * i], scale[i], shift[i]), gamma.x, beta.x),
                      fmaf(fmaf(v[4 * j + 2 * i + 1], scale[i], shift[i]), gamma.y, beta.y));
        }
      }
    }
  }

  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Every block of the cluster row gets the statistics of this block's slice; returns when all of theirs are here.
  __device__ __forceinline__ void ShareStatistics(const float (&mean)[2], const float (&squares)[2], int group) {
    const int thread = threadIdx.x % 128;
    if (thread == 0) ArriveExpecting(StatisticsFull(group), (p_.cluster_n - 1) * 64 * sizeof(float2));
    float2* slot = Statistics(group, rank_n_);
    if (threadIdx.x % 4 == 0) {
      slot[FirstRow()] = make_float2(mean[0], squares[0]);
      slot[FirstRow() + 8] = make_float2(mean[1], squares[1]);
    }
    FenceSharedForAsync();
    SyncWarpgroup(1 + group);
    if (thread < p_.cluster_n && thread != rank_n_) {
      const uint32_t rank = rank_m_ * p_.cluster_n + thread;
      CopyToBlock(ClusterAddress(slot, rank), slot, 64 * sizeof(float2), ClusterAddress(StatisticsFull(group), rank));
    }
    WaitBarrier(StatisticsFull(group), 0);
  }

  // Chan's parallel form of Welford's update, over the row's equally long slices: (x - mean) / deviation is x * scale +
  // shift.
  __device__ __forceinline__ void MergeStatistics(const float2* slices, float* scale, float* shift) {
    const float count = static_cast<float>(p_.cluster_n);
    float mean = 0.0f, squares = 0.0f;
#pragma unroll 4
    for (int i = 0; i < p_.cluster_n; ++i) mean += slices[i * 64].x;
    mean /= count;
#pragma unroll 4
    for (int i = 0; i < p_.cluster_n; ++i) {
      const float2 slice = slices[i * 64];
      squares += slice.y + Shape::kN * (slice.x - mean) * (slice.x - mean);
    }
    *scale = rsqrtf(squares / (count * Shape::kN) + p_.epsilon);
    *shift = -mean * *scale;
  }

  __device__ __forceinline__ void FinishPartial(float (&sum)[Shape::kN / 2], int group) {
    const int row = row_ + group * 64 + FirstRow();
    float* out = p_.partial + (static_cast<int64_t>(split_) * p_.m + row) * p_.n;
#pragma unroll
    for (int j = 0; j < Shape::kN / 8; ++j) {
      const int column = column_ + 8 * j + FirstColumn();
      if (column >= p_.n) continue;
      if (row < p_.m) *reinterpret_cast<float2*>(out + column) = make_float2(sum[4 * j], sum[4 * j + 1]);
      if (row + 8 < p_.m) {
        *reinterpret_cast<float2*>(out + 8 * static_cast<int64_t>(p_.n) + column) =
            make_float2(sum[4 * j + 2], sum[4 * j + 3]);
      }
    }
  }

  const GemmSm90Parameters& p_;
  char* shared_;
  uint64_t* barriers_;
  int rank_m_, rank_n_, row_, column_, split_, first_stage_, last_stage_;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_CUH_
