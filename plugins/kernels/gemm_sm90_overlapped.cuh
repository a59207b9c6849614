// The Hopper matrix product for many rows: two warpgroups multiply, a third finishes the tile before, so that the
// tensor cores wait only while the sums move to shared memory.
//
// The finishing warpgroup has a thread for each of the tile's 128 rows: row sums need no shuffles, and what belongs to
// a column (bias, gamma, beta) is the same address in the whole warp.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_OVERLAPPED_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_OVERLAPPED_CUH_

#include "kernels/gemm_sm90_loop.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90OverlappedKernel : GemmSm90Loop<Shape> {
  using Loop = GemmSm90Loop<Shape>;
  using T = typename Shape::T;
  using Loop::barriers_;
  using Loop::p_;
  using Loop::rank_n_;
  using Loop::shared_;
  using Loop::Vector;
  static constexpr int kMultipliers = Shape::kMultipliers, kSlotBytes = Shape::kSlotBytes;

 public:
  __device__ __forceinline__ GemmSm90OverlappedKernel(const GemmSm90Parameters& parameters, char* shared)
      : Loop(parameters, shared) {}

  __device__ __forceinline__ void Run() {
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4;
    if (threadIdx.x == 0) {
      this->InitRing();
      InitBarrier(StagingReady(), 1);
      InitBarrier(StagingFull(), 4 * kMultipliers);
      InitBarrier(StatisticsFull(0), 1);
      InitBarrier(StatisticsFull(1), 1);
      FenceBarrierInit();
    }
    LaunchNext();
    if (this->Clustered()) SyncCluster();
    __syncthreads();
    if (group < kMultipliers) {
      GrowRegisters<176>();
      MultiplyTiles(group);
    } else if (group == kMultipliers) {
      ShrinkRegisters<120>();
      FinishTiles();
    } else {
      ShrinkRegisters<40>();  // 2 * 176 + 120 + 40 is all that there is: 512
      if (warp == 4 * kMultipliers + 4 && threadIdx.x % 32 == 0) this->Produce();
      __syncwarp();
    }
    // A block's shared memory must outlive what its cluster writes there.
    if (this->Clustered()) SyncCluster();
  }

 private:
  // The staging area is free, and holds the residual where there is one.
  __device__ __forceinline__ uint64_t* StagingReady() { return barriers_ + Loop::kRingBarriers; }
  // It holds the sums.
  __device__ __forceinline__ uint64_t* StagingFull() { return barriers_ + Loop::kRingBarriers + 1; }
  __device__ __forceinline__ uint64_t* StatisticsFull(int parity) {
    return barriers_ + Loop::kRingBarriers + 2 + parity;
  }
  __device__ __forceinline__ char* Staging(int slot, int row) {
    return shared_ + Shape::kStagingOffset + slot * kSlotBytes + row * 128;
  }
  // Mean and sum of squared deviations of each row's slice: [parity][source block][row].
  __device__ __forceinline__ float2* Statistics(int parity, int source) {
    return reinterpret_cast<float2*>(shared_ + Shape::kStatisticsOffset) + (parity * p_.cluster_n + source) * Shape::kM;
  }
  // Where in its row's 128 bytes a 16-byte chunk lies. As T, where the copy engine wants it; as float32, so that
  // neither the 8-byte stores of the sums nor the 16-byte loads of a row meet in a bank.
  __device__ __forceinline__ static int ChunkOfT(int row, int chunk) { return (chunk ^ row % 8) * 16; }
  __device__ __forceinline__ static int ChunkOfFloat(int row, int chunk) {
    return (chunk ^ (row % 4 * 2 + row / 4 % 2)) * 16;
  }

  __device__ __forceinline__ void MultiplyTiles(int group) {
    RingPosition<Shape::kStages> ring;
    const int row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    uint32_t parity = 0;
    this->ForEachTile([&](const GemmSm90Work& work) {
      float sum[Shape::kN / 2];
      this->Multiply(sum, work, group, ring);
      WaitBarrier(StagingReady(), parity);
      parity ^= 1;
      if constexpr (Shape::kLayerNorm) {
        StageRounded(sum, row);
      } else {
        StageFloats(sum, row);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) ArriveAtOwn(StagingFull());
    });
  }

  __device__ __forceinline__ void StageFloats(const float (&sum)[Shape::kN / 2], int row) {
    const int lane = threadIdx.x % 4;
    char* at[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = Staging(0, row) + ChunkOfFloat(row, 2 * i + lane / 2) + lane % 2 * 8;
#pragma unroll
    for (int j = 0; j < Shape::kN / 8; ++j) {
      char* to = at[j % 4] + j / 4 * kSlotBytes;
      *reinterpret_cast<float2*>(to) = make_float2(sum[4 * j], sum[4 * j + 1]);
      *reinterpret_cast<float2*>(to + 8 * 128) = make_float2(sum[4 * j + 2], sum[4 * j + 3]);
    }
  }

  // activation(sum + bias) + residual in the residual's place: rounded once, like a row of a tensor of that type.
  __device__ __forceinline__ void StageRounded(float (&sum)[Shape::kN / 2], int row) {
    const int lane = threadIdx.x % 4;
    char* at = Staging(0, row) + lane * 4;
    const float* bias = Vector(0) + 2 * lane;
    if (p_.activation != Activation::kNone) {
#pragma unroll
      for (int slot = 0; slot < Shape::kSlots; ++slot) {
#pragma unroll
        for (int i = 0; i < 8; ++i) AddToColumns(&sum[32 * slot + 4 * i], bias + 64 * slot + 8 * i);
        ActivateFast<32>(&sum[32 * slot], p_.activation);
      }
    }
    const bool add_bias = p_.activation == Activation::kNone, has_residual = p_.has_residual;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      char* to = at + ChunkOfT(row, i);
#pragma unroll
      for (int slot = 0; slot < Shape::kSlots; ++slot, to += kSlotBytes) {
        float* v = &sum[32 * slot + 4 * i];
        if (add_bias) AddToColumns(v, bias + 64 * slot + 8 * i);
        uint32_t* upper = reinterpret_cast<uint32_t*>(to);
        uint32_t* lower = reinterpret_cast<uint32_t*>(to + 8 * 128);
        if (has_residual) {
          const float2 above = UnpackPair<T>(*upper), below = UnpackPair<T>(*lower);
          v[0] += above.x, v[1] += above.y, v[2] += below.x, v[3] += below.y;
        }
        *upper = PackPair<T>(v[0], v[1]);
        *lower = PackPair<T>(v[2], v[3]);
      }
    }
  }

  // The thread's two rows of a pair of columns.
  __device__ __forceinline__ static void AddToColumns(float* v, const float* columns) {
    const float2 add = *reinterpret_cast<const float2*>(columns);
    v[0] += add.x, v[1] += add.y, v[2] += add.x, v[3] += add.y;
  }

  __device__ __forceinline__ void FinishTiles() {
    const int row = threadIdx.x % 128;
    const bool leader = row == 0;
    uint32_t round = 0;
    if (!p_.weight_is_constant) WaitForPrevious();
    if constexpr (Shape::kLayerNorm) this->LoadRowVectors(row, 128);
    WaitForPrevious();
    SyncWarpgroup(1);
    this->ForEachTile([&](const GemmSm90Work& work) {
      if (leader) PrepareStaging(work, round);
      if constexpr (Shape::kLayerNorm) {
        WaitBarrier(StagingFull(), round & 1);
        FinishLayerNorm(work, row, round);
      } else {
        for (int column = row; column < Shape::kN; column += 128) {
          const bool inside = p_.bias != nullptr && work.column + column < p_.n;
          Vector(0)[column] = inside ? ToFloat(static_cast<const T*>(p_.bias)[work.column + column]) : 0.0f;
        }
        SyncWarpgroup(1);
        WaitBarrier(StagingFull(), round & 1);
        FinishElementwise(work, row);
      }
      ++round;
    });
    if (leader) WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
  }

  __device__ __forceinline__ void PrepareStaging(const GemmSm90Work& work, uint32_t round) {
    WaitStoresRead<0>();
    if constexpr (Shape::kLayerNorm) {
      ArriveExpecting(StatisticsFull(round & 1), (p_.cluster_n - 1) * Shape::kM * sizeof(float2));
      if (p_.has_residual) {
        ArriveExpecting(StagingReady(), Shape::kSlots * kSlotBytes);
#pragma unroll 1
        for (int slot = 0; slot < Shape::kSlots; ++slot) {
          LoadTile2d(Staging(slot, 0), &p_.residual_map, work.column + slot * 64, work.row, StagingReady());
        }
        return;
      }
    }
    ArriveAtOwn(StagingReady());
  }

  __device__ __forceinline__ void FinishElementwise(const GemmSm90Work& work, int row) {
#pragma unroll 1
    for (int slot = 0; slot < Shape::kSlots; slot += 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* from = Staging(slot + half, row);
        const float* bias = Vector(0) + (slot + half) * 32;
        float v[32];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float4 sum = *reinterpret_cast<const float4*>(from + ChunkOfFloat(row, i));
          const float4 add = *reinterpret_cast<const float4*>(bias + 4 * i);
          v[4 * i] = sum.x + add.x, v[4 * i + 1] = sum.y + add.y;
          v[4 * i + 2] = sum.z + add.z, v[4 * i + 3] = sum.w + add.w;
        }
        ActivateFast<32>(v, p_.activation);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          *reinterpret_cast<uint4*>(Staging(slot, row) + ChunkOfT(row, 4 * half + i)) =
              make_uint4(PackPair<T>(v[8 * i], v[8 * i + 1]), PackPair<T>(v[8 * i + 2], v[8 * i + 3]),
                         PackPair<T>(v[8 * i + 4], v[8 * i + 5]), PackPair<T>(v[8 * i + 6], v[8 * i + 7]));
        }
      }
      FenceSharedForAsync();
      SyncWarpgroup(1);
      if (row == 0) {
        StoreTile2d(&p_.y_map, Staging(slot, 0), work.column + slot * 32, work.row);
        CommitStores();
      }
    }
  }

  // Calls visit(column, values) with 8 values of the thread's row at a time; what visit leaves there is stored if
  // kKeep.
  template <bool kKeep, class Visit>
  __device__ __forceinline__ void ForEachChunk(int row, Visit&& visit) {
#pragma unroll 1
    for (int slot = 0; slot < Shape::kSlots; ++slot) {
      uint4 chunk[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) chunk[i] = *reinterpret_cast<const uint4*>(Staging(slot, row) + ChunkOfT(row, i));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t pair[4] = {chunk[i].x, chunk[i].y, chunk[i].z, chunk[i].w};
        float v[8];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 value = UnpackPair<T>(pair[e]);
          v[2 * e] = value.x, v[2 * e + 1] = value.y;
        }
        visit(slot * 64 + i * 8, v);
        if constexpr (kKeep) {
          *reinterpret_cast<uint4*>(Staging(slot, row) + ChunkOfT(row, i)) = make_uint4(
              PackPair<T>(v[0], v[1]), PackPair<T>(v[2], v[3]), PackPair<T>(v[4], v[5]), PackPair<T>(v[6], v[7]));
        }
      }
    }
  }

  __device__ __forceinline__ void FinishLayerNorm(const GemmSm90Work& work, int row, uint32_t round) {
    float part[4] = {};
    ForEachChunk<false>(row, [&](int, float (&v)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) part[i % 4] += v[i];
    });
    const float mean = (part[0] + part[1] + part[2] + part[3]) / Shape::kN;
    float squares[4] = {};
    ForEachChunk<false>(row, [&](int, float (&v)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[i % 4] = fmaf(v[i] - mean, v[i] - mean, squares[i % 4]);
    });
    const float2 merged =
        ShareStatistics(make_float2(mean, squares[0] + squares[1] + squares[2] + squares[3]), row, round);
    const float shift = -merged.x * merged.y;
    ForEachChunk<true>(row, [&](int column, float (&v)[8]) {
      const float4* gamma = reinterpret_cast<const float4*>(Vector(1) + column);
      const float4* beta = reinterpret_cast<const float4*>(Vector(2) + column);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 scale = gamma[i], add = beta[i];
        v[4 * i] = fmaf(fmaf(v[4 * i], merged.y, shift), scale.x, add.x);
        v[4 * i + 1] = fmaf(fmaf(v[4 * i + 1], merged.y, shift), scale.y, add.y);
        v[4 * i + 2] = fmaf(fmaf(v[4 * i + 2], merged.y, shift), scale.z, add.z);
        v[4 * i + 3] = fmaf(fmaf(v[4 * i + 3], merged.y, shift), scale.w, add.w);
      }
    });
    FenceSharedForAsync();
    SyncWarpgroup(1);
    if (row == 0) {
#pragma unroll 1
      for (int slot = 0; slot < Shape::kSlots; ++slot) {
        StoreTile2d(&p_.y_map, Staging(slot, 0), work.column + slot * 64, work.row);
      }
      CommitStores();
    }
  }

  // The statistics of this block's slice of every row to the cluster; the whole row's mean and 1 / deviation back.
  __device__ __forceinline__ float2 ShareStatistics(float2 slice, int row, uint32_t round) {
    const int parity = round & 1;
    float2* own = Statistics(parity, rank_n_);
    own[row] = slice;
    FenceSharedForAsync();
    SyncWarpgroup(1);
    if (row < p_.cluster_n && row != rank_n_) {
      const uint32_t rank = this->rank_m_ * p_.cluster_n + row;
      CopyToBlock(ClusterAddress(own, rank), own, Shape::kM * sizeof(float2),
                  ClusterAddress(StatisticsFull(parity), rank));
    }
    WaitBarrier(StatisticsFull(parity), round >> 1 & 1);
    return MergeStatistics(Statistics(parity, 0) + row, Shape::kM, p_.cluster_n, Shape::kN, p_.epsilon);
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_OVERLAPPED_CUH_
