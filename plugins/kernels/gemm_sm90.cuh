// The Hopper matrix product whose multiplying warpgroups finish the result in their registers: for small tiles, and for
// parts of k.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_CUH_

#include "kernels/gemm_sm90_loop.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Kernel : GemmSm90Loop<Shape> {
  using Loop = GemmSm90Loop<Shape>;
  using T = typename Shape::T;
  using Loop::barriers_;
  using Loop::p_;
  using Loop::rank_m_;
  using Loop::rank_n_;
  using Loop::shared_;
  using Loop::Vector;

 public:
  __device__ __forceinline__ GemmSm90Kernel(const GemmSm90Parameters& parameters, char* shared)
      : Loop(parameters, shared) {}

  __device__ __forceinline__ void Run() {
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
      this->InitRing();
      for (int i = 0; i < 3 * Shape::kMultipliers; ++i) InitBarrier(barriers_ + Loop::kRingBarriers + i, 1);
      FenceBarrierInit();
    }
    LaunchNext();
    if (this->Clustered()) SyncCluster();
    __syncthreads();
    if (warp >= 4 * Shape::kMultipliers) {
      if constexpr (Shape::kMultipliers > 1) ShrinkRegisters<40>();
      if (warp == 4 * Shape::kMultipliers && threadIdx.x % 32 == 0) this->Produce();
      __syncwarp();
    } else {
      if constexpr (Shape::kMultipliers > 1) GrowRegisters<232>();
      Consume(warp / 4);
    }
    // A block's shared memory must outlive what its cluster writes there.
    if (this->Clustered()) SyncCluster();
  }

 private:
  __device__ __forceinline__ uint64_t* ResidualFull(int group) { return barriers_ + Loop::kRingBarriers + group; }
  __device__ __forceinline__ uint64_t* StatisticsFull(int group, int parity) {
    return barriers_ + Loop::kRingBarriers + Shape::kMultipliers + 2 * group + parity;
  }
  __device__ __forceinline__ char* Buffer(int group, int index) {
    return shared_ + Shape::kBufferOffset + (group * Shape::kBuffers + index) * Shape::kBufferBytes;
  }
  // Mean and sum of squared deviations of each row's slice: [parity][warpgroup][source block][row].
  __device__ __forceinline__ float2* Statistics(int parity, int group, int source) {
    float2* base = reinterpret_cast<float2*>(shared_ + Shape::kStatisticsOffset);
    return base + ((parity * Shape::kMultipliers + group) * p_.cluster_n + source) * 64;
  }

  __device__ __forceinline__ void Consume(int group) {
    RingPosition<Shape::kStages> ring;
    const int thread = threadIdx.x % 128;
    const bool leader = thread == 0;
    uint32_t round = 0;
    if (!p_.weight_is_constant) WaitForPrevious();
    if constexpr (Shape::kLayerNorm) {
      this->LoadRowVectors(threadIdx.x, 128 * Shape::kMultipliers);
      asm volatile("bar.sync 8, %0;" ::"n"(128 * Shape::kMultipliers) : "memory");
    }
    WaitForPrevious();
    if constexpr (Shape::kLayerNorm) {
      if (leader && p_.has_residual) {
        bool first = true;
        this->ForEachTile([&](const GemmSm90Work& work) {
          if (first) LoadResidual(work, group);
          first = false;
        });
      }
    }
    this->ForEachTile([&](const GemmSm90Work& work) {
      if constexpr (Shape::kLayerNorm) {
        if (leader) ArriveExpecting(StatisticsFull(group, round & 1), (p_.cluster_n - 1) * 64 * sizeof(float2));
      }
      // Fetched before the products, put where the epilogue finds them after.
      constexpr int kBiases = Shape::kEpilogue == GemmEpilogue::kElementwise ? (Shape::kN + 127) / 128 : 0;
      float bias[kBiases + 1];
#pragma unroll
      for (int i = 0; i < kBiases; ++i) {
        const int column = work.column + i * 128 + thread;
        const bool inside = p_.bias != nullptr && i * 128 + thread < Shape::kN && column < p_.n;
        bias[i] = inside ? ToFloat(static_cast<const T*>(p_.bias)[column]) : 0.0f;
      }
      float sum[Shape::kN / 2];
      this->Multiply(sum, work, group, ring);
      if constexpr (Shape::kLayerNorm) {
        FinishLayerNorm(sum, work, group, round);
      } else if constexpr (Shape::kEpilogue == GemmEpilogue::kElementwise) {
#pragma unroll
        for (int i = 0; i < kBiases; ++i) {
          if (i * 128 + thread < Shape::kN) Vector(group)[i * 128 + thread] = bias[i];
        }
        FinishElementwise(sum, work, group);
      } else {
        FinishPartial(sum, work, group);
      }
      ++round;
    });
    if constexpr (Shape::kBuffers > 0) {
      if (leader) WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
    }
  }

  // Where a thread's accumulators start (GemmSm90Loop::Multiply).
  __device__ __forceinline__ static int FirstRow() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ static int FirstColumn() { return threadIdx.x % 4 * 2; }

  // Where a thread's pairs lie in the buffers that the copy engine reads and writes: of each 8 columns, one address.
  // Eight rows further and in the next buffer the swizzle is the same, so those are constants away; left to itself the
  // compiler keeps every address in a register.
  struct Pairs {
    static constexpr int kCount = Shape::kBufferColumns / 8;
    static constexpr int kPitch = Shape::kBufferColumns * 2;
    char* at[kCount];
    __device__ __forceinline__ explicit Pairs(char* buffers) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) at[j] = buffers + Swizzled<kPitch>(FirstRow(), (8 * j + FirstColumn()) * 2);
    }
    __device__ __forceinline__ uint32_t& operator()(int buffer, int j, int lower) const {
      return *reinterpret_cast<uint32_t*>(at[j] + buffer * Shape::kBufferBytes + lower * 8 * kPitch);
    }
  };

  __device__ __forceinline__ void FinishElementwise(float (&sum)[Shape::kN / 2], const GemmSm90Work& work, int group) {
    const int first_column = FirstColumn();
    const bool leader = threadIdx.x % 128 == 0;
    constexpr int kPairs = Pairs::kCount;
    const Pairs pairs(Buffer(group, 0));
#pragma unroll
    for (int tile = 0; tile < Shape::kBufferTiles; ++tile) {
      if (leader) WaitStoresRead<Shape::kBuffers - 1>();
      SyncWarpgroup(1 + group);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        float* v = &sum[4 * (tile * kPairs + j)];
        const int column = tile * Shape::kBufferColumns + 8 * j + first_column;
        const float2 bias = *reinterpret_cast<const float2*>(Vector(group) + column);
        v[0] += bias.x, v[1] += bias.y, v[2] += bias.x, v[3] += bias.y;
      }
      ActivateFast<4 * kPairs>(&sum[4 * tile * kPairs], p_.activation);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float* v = &sum[4 * (tile * kPairs + j)];
        pairs(tile % Shape::kBuffers, j, 0) = PackPair<T>(v[0], v[1]);
        pairs(tile % Shape::kBuffers, j, 1) = PackPair<T>(v[2], v[3]);
      }
      FenceSharedForAsync();
      SyncWarpgroup(1 + group);
      if (leader) {
        StoreTile2d(&p_.y_map, Buffer(group, tile % Shape::kBuffers), work.column + tile * Shape::kBufferColumns,
                    work.row + group * 64);
        CommitStores();
      }
    }
  }

  // Keeps the compiler from loading for later tiles early: the accumulators leave it no registers for that, and with
  // nearly all of the L1 cache given to shared memory, what it spills goes to the L2 cache.
  __device__ __forceinline__ static void KeepOrder() { asm volatile("" ::: "memory"); }

  __device__ __forceinline__ void FinishPartial(float (&sum)[Shape::kN / 2], const GemmSm90Work& work, int group) {
    const int row = work.row + group * 64 + FirstRow();
    float* out = p_.partial + (static_cast<int64_t>(work.split) * p_.m + row) * p_.n;
#pragma unroll
    for (int j = 0; j < Shape::kN / 8; ++j) {
      const int column = work.column + 8 * j + FirstColumn();
      if (column >= p_.n) continue;
      if (row < p_.m) *reinterpret_cast<float2*>(out + column) = make_float2(sum[4 * j], sum[4 * j + 1]);
      if (row + 8 < p_.m) {
        *reinterpret_cast<float2*>(out + 8 * static_cast<int64_t>(p_.n) + column) =
            make_float2(sum[4 * j + 2], sum[4 * j + 3]);
      }
    }
  }

  __device__ __forceinline__ void LoadResidual(const GemmSm90Work& work, int group) {
    ArriveExpecting(ResidualFull(group), Shape::kBufferTiles * Shape::kBufferBytes);
#pragma unroll 1
    for (int tile = 0; tile < Shape::kBufferTiles; ++tile) {
      LoadTile2d(Buffer(group, tile), &p_.residual_map, work.column + tile * Shape::kBufferColumns,
                 work.row + group * 64, ResidualFull(group));
    }
  }

  __device__ __forceinline__ void FinishLayerNorm(float (&sum)[Shape::kN / 2], const GemmSm90Work& work, int group,
                                                  uint32_t round) {
    static_assert(!Shape::kLayerNorm || Shape::kBuffers == Shape::kBufferTiles);
    constexpr int kPairs = Pairs::kCount;
    const int first_column = FirstColumn();
    const Pairs pairs(Buffer(group, 0));
    const bool leader = threadIdx.x % 128 == 0;
    if (p_.has_residual) {
      WaitBarrier(ResidualFull(group), round & 1);
    } else {
      if (leader) WaitStoresRead<0>();
      SyncWarpgroup(1 + group);
    }
    float mean[2] = {}, squares[2] = {};
#pragma unroll
    for (int tile = 0; tile < Shape::kBufferTiles; ++tile) {
      float* v = &sum[4 * tile * kPairs];
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int column = tile * Shape::kBufferColumns + 8 * j + first_column;
        const float2 bias = *reinterpret_cast<const float2*>(Vector(0) + column);
        v[4 * j] += bias.x, v[4 * j + 1] += bias.y, v[4 * j + 2] += bias.x, v[4 * j + 3] += bias.y;
      }
      ActivateFast<4 * kPairs>(v, p_.activation);
      if (p_.has_residual) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const float2 upper = UnpackPair<T>(pairs(tile, j, 0));
          const float2 lower = UnpackPair<T>(pairs(tile, j, 1));
          v[4 * j] += upper.x, v[4 * j + 1] += upper.y, v[4 * j + 2] += lower.x, v[4 * j + 3] += lower.y;
        }
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) mean[0] += v[4 * j] + v[4 * j + 1], mean[1] += v[4 * j + 2] + v[4 * j + 3];
      KeepOrder();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) mean[i] = QuadSum(mean[i]) / Shape::kN;
#pragma unroll
    for (int i = 0; i < Shape::kN / 2; ++i) {
      const float centered = sum[i] - mean[i / 2 % 2];
      squares[i / 2 % 2] += centered * centered;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) squares[i] = QuadSum(squares[i]);
    ShareStatistics(mean, squares, group, round & 1);
    WaitBarrier(StatisticsFull(group, round & 1), round >> 1 & 1);
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 merged = MergeStatistics(Statistics(round & 1, group, 0) + FirstRow() + 8 * i, 64, p_.cluster_n,
                                            Shape::kN, p_.epsilon);
      mean[i] = merged.x, inverse[i] = merged.y;
    }
#pragma unroll
    for (int tile = 0; tile < Shape::kBufferTiles; ++tile) {
      // All loads of a tile before its first store: the compiler would not move one past the other.
      float2 gamma[kPairs], beta[kPairs];
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int column = tile * Shape::kBufferColumns + 8 * j + first_column;
        gamma[j] = *reinterpret_cast<const float2*>(Vector(1) + column);
        beta[j] = *reinterpret_cast<const float2*>(Vector(2) + column);
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float* v = &sum[4 * (tile * kPairs + j)];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = (v[2 * i] - mean[i]) * inverse[i], y = (v[2 * i + 1] - mean[i]) * inverse[i];
          pairs(tile, j, i) = PackPair<T>(fmaf(x, gamma[j].x, beta[j].x), fmaf(y, gamma[j].y, beta[j].y));
        }
      }
      KeepOrder();
    }
    FenceSharedForAsync();
    SyncWarpgroup(1 + group);
    if (leader) {
#pragma unroll 1
      for (int tile = 0; tile < Shape::kBufferTiles; ++tile) {
        StoreTile2d(&p_.y_map, Buffer(group, tile), work.column + tile * Shape::kBufferColumns, work.row + group * 64);
      }
      CommitStores();
      if (p_.has_residual) LoadNextResidual(work, group);
    }
  }

  __device__ __forceinline__ void LoadNextResidual(const GemmSm90Work& work, int group) {
    const int step = gridDim.x / (p_.cluster_m * p_.cluster_n) * p_.cluster_m * Shape::kM;
    GemmSm90Work next = work;
    next.row += step;  // a LayerNorm tile spans the row: the next one is that many clusters below
    if (next.row - rank_m_ * Shape::kM >= p_.tiles_m * p_.cluster_m * Shape::kM) return;
    WaitStoresRead<0>();
    LoadResidual(next, group);
  }

  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Every block of the cluster row gets the statistics of this block's slice.
  __device__ __forceinline__ void ShareStatistics(const float (&mean)[2], const float (&squares)[2], int group,
                                                  int parity) {
    float2* slot = Statistics(parity, group, rank_n_);
    if (threadIdx.x % 4 == 0) {
      slot[FirstRow()] = make_float2(mean[0], squares[0]);
      slot[FirstRow() + 8] = make_float2(mean[1], squares[1]);
    }
    FenceSharedForAsync();
    SyncWarpgroup(1 + group);
    const int other = threadIdx.x % 128;
    if (other < p_.cluster_n && other != rank_n_) {
      const uint32_t rank = rank_m_ * p_.cluster_n + other;
      CopyToBlock(ClusterAddress(slot, rank), slot, 64 * sizeof(float2),
                  ClusterAddress(StatisticsFull(group, parity), rank));
    }
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_CUH_
