// The Hopper matrix product: one warp feeds tiles of x and weight through a ring of shared-memory stages (bulk tensor
// copies, shared among the blocks of a cluster), one or two warpgroups multiply (wgmma) and finish the result in
// registers.
//
// Two warpgroups either share a tile (64 rows each) or take tiles in turns, so that one multiplies while the other is
// in its epilogue. Blocks are persistent: they take one tile of the output after the other.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/gemm_sm90_shape.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Kernel {
  using T = typename Shape::T;
  using Parameters = GemmSm90Parameters;

 public:
  __device__ __forceinline__ GemmSm90Kernel(const Parameters& parameters, char* shared)
      : p_(parameters), shared_(shared), rank_(ClusterRank()) {
    barriers_ = reinterpret_cast<uint64_t*>(shared + Shape::kBarrierOffset);
    rank_m_ = rank_ / p_.cluster_n;
    rank_n_ = rank_ % p_.cluster_n;
  }

  __device__ __forceinline__ void Run() {
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Shape::kStages; ++stage) {
        InitBarrier(Full(stage), 1);
        InitBarrier(Empty(stage), Shape::kM / 64 * (p_.cluster_m + p_.cluster_n - 1));
      }
      for (int i = 0; i < 3 * Shape::kWarpgroups; ++i) InitBarrier(barriers_ + 2 * Shape::kStages + i, 1);
      for (int group = 0; group < Shape::kWarpgroups; ++group) InitBarrier(Turn(group), 4);
      FenceBarrierInit();
    }
    LaunchNext();
    const bool clustered = p_.cluster_m * p_.cluster_n > 1;
    if (clustered) SyncCluster();
    __syncthreads();
    if (warp >= 4 * Shape::kWarpgroups) {
      if constexpr (Shape::kWarpgroups > 1) ShrinkRegisters<40>();
      if (warp == 4 * Shape::kWarpgroups && threadIdx.x % 32 == 0) Produce();
      __syncwarp();
    } else {
      if constexpr (Shape::kWarpgroups > 1) GrowRegisters<232>();
      Consume(warp / 4);
    }
    // A block's shared memory must outlive what its cluster writes there.
    if (clustered) SyncCluster();
  }

 private:
  __device__ __forceinline__ uint64_t* Full(int stage) { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* Empty(int stage) { return barriers_ + Shape::kStages + stage; }
  __device__ __forceinline__ uint64_t* ResidualFull(int group) { return barriers_ + 2 * Shape::kStages + group; }
  __device__ __forceinline__ uint64_t* StatisticsFull(int group, int parity) {
    return barriers_ + 2 * Shape::kStages + Shape::kWarpgroups + 2 * group + parity;
  }
  // Completes when the other warpgroup has issued the products of its tile.
  __device__ __forceinline__ uint64_t* Turn(int group) {
    return barriers_ + 2 * Shape::kStages + 3 * Shape::kWarpgroups + group;
  }
  __device__ __forceinline__ char* Buffer(int group, int index) {
    return shared_ + Shape::kBufferOffset + (group * Shape::kBuffers + index) * Shape::kBufferBytes;
  }
  __device__ __forceinline__ float* Vector(int index) {
    return reinterpret_cast<float*>(shared_ + Shape::kVectorOffset) + index * Shape::kN;
  }
  // Mean and sum of squared deviations of each row's slice: [parity][warpgroup][source block][row].
  __device__ __forceinline__ float2* Statistics(int parity, int group, int source) {
    float2* base = reinterpret_cast<float2*>(shared_ + Shape::kStatisticsOffset);
    return base + ((parity * Shape::kWarpgroups + group) * p_.cluster_n + source) * 64;
  }

  // The block's columns are the same in every tile: a cluster spans the row. Called by the threads that multiply.
  __device__ __forceinline__ void LoadVectors() {
    const T* sources[3] = {static_cast<const T*>(p_.bias), static_cast<const T*>(p_.gamma),
                           static_cast<const T*>(p_.beta)};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      for (int column = threadIdx.x; column < Shape::kN; column += 128 * Shape::kWarpgroups) {
        Vector(i)[column] = ToFloat(sources[i][rank_n_ * Shape::kN + column]);
      }
    }
    asm volatile("bar.sync 8, %0;" ::"n"(128 * Shape::kWarpgroups) : "memory");
  }

  // Calls body(work) for each tile of this cluster. Columns change fastest: the weight stays in the L2 cache.
  template <class Body>
  __device__ __forceinline__ void ForEachTile(Body&& body, int first = 0, int step = 1) {
    const int cluster_size = p_.cluster_m * p_.cluster_n, clusters = gridDim.x / cluster_size;
    const int per_split = p_.tiles_m * p_.tiles_n, tiles = per_split * p_.splits;
    for (int tile = blockIdx.x / cluster_size + first * clusters; tile < tiles; tile += step * clusters) {
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
    RingPosition<Shape::kStages> ring;
    const int thread = threadIdx.x % 128;
    const bool leader = thread == 0;
    uint32_t round = 0;
    if (!p_.weight_is_constant) WaitForPrevious();
    if constexpr (Shape::kLayerNorm) LoadVectors();
    WaitForPrevious();
    constexpr int kTurns = Shape::kInTurns ? Shape::kWarpgroups : 1;
    const int turn = Shape::kInTurns ? group : 0;
    if constexpr (Shape::kLayerNorm) {
      if (leader && p_.has_residual) {
        bool first = true;
        const auto load_first = [&](const GemmSm90Work& work) {
          if (first) LoadResidual(work, group);
          first = false;
        };
        ForEachTile(load_first, turn, kTurns);
      }
    }
    if constexpr (Shape::kInTurns) ring.Advance(turn * p_.stages_per_split);
    const auto multiply = [&](const GemmSm90Work& work) {
      if constexpr (Shape::kLayerNorm) {
        if (leader) {
          ArriveExpecting(StatisticsFull(group, round & 1), (p_.cluster_n - 1) * 64 * sizeof(float2));
        }
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
      if constexpr (Shape::kInTurns) {
        // Also what keeps the ring's parities apart: they tell neighbouring rounds from each other, no more.
        if (group > 0 || round > 0) WaitBarrier(Turn(group), (round + group + 1) & 1);
      }
      float sum[Shape::kN / 2];
      int previous = -1;
      for (int k_stage = work.first_stage; k_stage < work.last_stage; ++k_stage, ring.Advance()) {
        WaitBarrier(Full(ring.stage), ring.parity);
        const char* x_tile = shared_ + ring.stage * Shape::kStageBytes;
        uint64_t x = TileDescriptor(x_tile + RowOffset(group) * kStageK * 2);
        uint64_t weight = TileDescriptor(x_tile + Shape::kXBytes);
        FenceRegisters(sum);
        BeginWgmma();
#pragma unroll
        for (int step = 0; step < kStageK / 16; ++step, x += 2, weight += 2) {
          WgmmaSs<T, Shape::kN>(sum, x, weight, step > 0 || k_stage > work.first_stage);
        }
        CommitWgmma();
        FenceRegisters(sum);
        WaitWgmma<1>();
        if (previous >= 0) Release(previous);
        previous = ring.stage;
      }
      if constexpr (Shape::kInTurns) {
        if (threadIdx.x % 32 == 0) ArriveAtOwn(Turn(group ^ 1));
      }
      WaitWgmma<0>();
      FenceRegisters(sum);
      Release(previous);
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
      // In turns there are no splits: every tile takes the same number of stages.
      if constexpr (Shape::kInTurns) ring.Advance((kTurns - 1) * p_.stages_per_split);
    };
    ForEachTile(multiply, turn, kTurns);
    if constexpr (Shape::kBuffers > 0) {
      if (leader) WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
    }
  }

  // A thread's accumulators: sum[4 j + e] is at row (lane / 4) + 8 (e / 2) of its warp's 16 and column 8 j + 2 (lane %
  // 4) + e % 2.
  __device__ __forceinline__ static int FirstRow() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  // Where the warpgroup's 64 rows start in the block's tile.
  __device__ __forceinline__ static int RowOffset(int group) { return Shape::kInTurns ? 0 : group * 64; }
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
      ActivateAll(&sum[4 * tile * kPairs], std::integral_constant<int, 4 * kPairs>());
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
                    work.row + RowOffset(group));
        CommitStores();
      }
    }
  }

  // Keeps the compiler from loading for later tiles early: the accumulators leave it no registers for that, and with
  // nearly all of the L1 cache given to shared memory, what it spills goes to the L2 cache.
  __device__ __forceinline__ static void KeepOrder() { asm volatile("" ::: "memory"); }

  template <int kCount>
  __device__ __forceinline__ void ActivateAll(float* v, std::integral_constant<int, kCount>) {
    if (p_.activation == Activation::kGeluErf) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = GeluErfFast(v[i]);
    } else if (p_.activation == Activation::kGeluTanh) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = GeluTanh(v[i]);
    }
  }

  __device__ __forceinline__ void FinishPartial(float (&sum)[Shape::kN / 2], const GemmSm90Work& work, int group) {
    const int row = work.row + RowOffset(group) + FirstRow();
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
                 work.row + RowOffset(group), ResidualFull(group));
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
      ActivateAll(v, std::integral_constant<int, 4 * kPairs>());
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
    MergeStatistics(mean, inverse, group, round & 1);
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
        StoreTile2d(&p_.y_map, Buffer(group, tile), work.column + tile * Shape::kBufferColumns,
                    work.row + RowOffset(group));
      }
      CommitStores();
      if (p_.has_residual) LoadNextResidual(work, group);
    }
  }

  __device__ __forceinline__ void LoadNextResidual(const GemmSm90Work& work, int group) {
    const int turns = Shape::kInTurns ? Shape::kWarpgroups : 1;
    const int step = turns * gridDim.x / (p_.cluster_m * p_.cluster_n) * p_.cluster_m * Shape::kM;
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

  // Chan's parallel form of Welford's update: the row's mean and 1 / deviation from those of its equally long slices.
  __device__ __forceinline__ void MergeStatistics(float (&mean)[2], float (&inverse)[2], int group, int parity) {
    const float count = static_cast<float>(p_.cluster_n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2* slot = Statistics(parity, group, 0) + FirstRow() + 8 * i;
      float total = 0.0f, squares = 0.0f;
#pragma unroll 4
      for (int block = 0; block < p_.cluster_n; ++block) total += slot[block * 64].x;
      total /= count;
#pragma unroll 4
      for (int block = 0; block < p_.cluster_n; ++block) {
        const float2 part = slot[block * 64];
        squares += part.y + Shape::kN * (part.x - total) * (part.x - total);
      }
      mean[i] = total;
      inverse[i] = rsqrtf(squares / (count * Shape::kN) + p_.epsilon);
    }
  }

  const Parameters& p_;
  char* shared_;
  uint64_t* barriers_;
  int rank_, rank_m_, rank_n_;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_CUH_
