// The Hopper matrix product. One thread feeds tiles of x and weight through a ring of shared-memory stages (bulk tensor
// copies, shared among the blocks of a cluster); one or two warpgroups multiply (wgmma) and finish the result in
// registers.
//
// In turns: a block stays on its multiprocessor, and two warpgroups take tiles of the output, or parts of them along k,
// in turns. While one finishes its tile the other multiplies; ring and tensor cores go on without a pause. Otherwise,
// for few rows: a block for each tile, one or two on a multiprocessor, whose result leaves through stages of the ring.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_CUH_

#include "kernels/gemm_sm90_copies.cuh"
#include "kernels/gemm_sm90_epilogue.cuh"

namespace bertfuse::kernels {

template <class Shape>
class GemmSm90Kernel : GemmSm90Copies<Shape> {
  using T = typename Shape::T;
  using Copies = GemmSm90Copies<Shape>;
  using typename Copies::Ring;
  using typename Copies::Tile;
  using Buffers = Matrices<T, Shape::kBufferColumns>;
  static constexpr int kSums = Shape::kN / 2;  // of a thread, in 64 rows
  static constexpr int kRowBlocks = Shape::kRowBlocks;
  static constexpr bool kPartial = Shape::kEpilogue == GemmEpilogue::kPartial;
  // Barriers of the hardware: 1 and 2 are each warpgroup's own.
  static constexpr int kTurnBarrier = 4, kVectorBarrier = 8;
  using Sums = float[kRowBlocks][kSums];
  using Copies::Full;
  using Copies::HasTile;
  using Copies::InitBarriers;
  using Copies::MatesEmpty;
  using Copies::p_;
  using Copies::Produce;
  using Copies::rank_m_;
  using Copies::rank_n_;
  using Copies::Stage;
  using Copies::Statistics;
  using Copies::StatisticsFull;
  using Copies::StorePart;
  using Copies::TileAt;
  using Copies::Vector;

 public:
  __device__ __forceinline__ GemmSm90Kernel(const GemmSm90Parameters& parameters, char* shared)
      : Copies(parameters, shared) {}

  __device__ __forceinline__ void Run() {
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) InitBarriers();
    LaunchNext();
    const bool clustered = p_.cluster_m * p_.cluster_n > 1;
    if (clustered) SyncCluster();
    __syncthreads();
    if (warp < 4 * Shape::kWarpgroups) {
      if constexpr (Shape::kTurns) GrowRegisters<240>();
      Consume(warp / 4);
    } else {
      if constexpr (Shape::kTurns) ShrinkRegisters<24>();
      if (warp == 4 * Shape::kWarpgroups && threadIdx.x % 32 == 0) Produce();
      __syncwarp();
    }
    // A block's shared memory must outlive what the copy engine reads there: statistics on their way to the cluster's
    // other blocks, which wait for them. For what they write there somebody in the block has waited.
    if (clustered) SyncCluster();
  }

 private:
  // ---- multiplying ----

  __device__ __forceinline__ void Consume(int group) {
    if (!p_.weights_are_constant) WaitForPrevious();
    const uint32_t empty = MatesEmpty(threadIdx.x % 128);
    const auto release = [&](int stage) {
      if (empty != 0) ArriveAt(empty + stage * sizeof(uint64_t));
    };
    Ring ring;
    if (Shape::kTurns && group == 1) ring.Advance(TileAt(0).stages());
    for (int turn = Shape::kTurns ? group : 0; HasTile(turn); turn += 2) {
      const Tile tile = TileAt(turn);
      const int stages = tile.stages();
      Sums sum;
      if (Shape::kTurns) StartFromBias(sum, tile);
      const VectorRegisters vectors(p_, tile.column);
      if constexpr (Shape::kTurns) {
        FenceSums(sum);  // or the compiler converts the bias when the wait is over
        // In turns also because a barrier tells only a round of the ring from the one before it.
        if (turn > 0) WaitForTurn(turn);
      }
      int previous = -1;
      for (int i = 0; i < stages; ++i, ring.Advance()) {
        WaitBarrier(Full(ring.stage), ring.parity);
        Multiply(sum, ring.stage, Shape::kTurns ? 0 : group, Shape::kTurns || i > 0);
        if (i == 0) vectors.Store(Vector(0));  // under cover of the first product
        WaitWgmma<1>();
        if (previous >= 0) release(previous);
        previous = ring.stage;
      }
      if (Shape::kTurns && HasTile(turn + 1)) GiveTurn(turn + 1);
      WaitWgmma<0>();
      FenceSums(sum);
      release(previous);
      if constexpr (kPartial) {
        WaitForPrevious();
        FinishPartial(sum[0], tile, group);
      } else if constexpr (Shape::kTurns) {
        FinishTurn(sum, tile);
        if (HasTile(turn + 2)) ring.Advance(TileAt(turn + 1).stages());  // which are the other warpgroup's
      } else {
        FinishTile(sum[0], tile, group, ring);
      }
    }
  }

  // One warpgroup says when the other may wait for its first stage.
  __device__ __forceinline__ static void WaitForTurn(int turn) {
    asm volatile("bar.sync %0, 256;" ::"r"(kTurnBarrier + turn % 2) : "memory");
  }
  __device__ __forceinline__ static void GiveTurn(int turn) {
    asm volatile("bar.arrive %0, 256;" ::"r"(kTurnBarrier + turn % 2) : "memory");
  }

  __device__ __forceinline__ static void FenceSums(Sums& sum) {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) FenceRegisters(sum[b]);
  }

  __device__ __forceinline__ void Multiply(Sums& sum, int stage, int first_block, bool accumulate) {
    constexpr int kBlockBytes = 64 * kStageK * 2;
    uint64_t x = TileDescriptor(Stage(stage) + first_block * kBlockBytes);
    uint64_t weight = TileDescriptor(Stage(stage) + Shape::kXBytes);
    FenceSums(sum);
    BeginWgmma();
#pragma unroll
    for (int step = 0; step < kStageK / 16; ++step, x += 2, weight += 2) {
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
        WgmmaSs<T, Shape::kN>(sum[b], x + b * (kBlockBytes >> 4), weight, step > 0 || accumulate);
      }
    }
    CommitWgmma();
    FenceSums(sum);
  }

  // The bias (or 0) of this thread's columns, as FinishTurn() has them.
  __device__ __forceinline__ void StartFromBias(Sums& sum, const Tile& tile) {
    const T* bias = static_cast<const T*>(p_.bias) + tile.column + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < Shape::kN / kDealtRows; ++i) {
      const bool inside = p_.bias != nullptr && tile.column + i * kDealtRows < p_.n;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t packed = inside ? *reinterpret_cast<const uint32_t*>(bias + i * kDealtRows + 2 * t) : 0;
        const float2 pair = UnpackPair<T>(packed);
#pragma unroll
        for (int j = 0; j < 2 * kRowBlocks; ++j) {
          float* v = &sum[j / 2][16 * i + 4 * t + j % 2 * 2];
          v[0] = pair.x, v[1] = pair.y;
        }
      }
    }
  }

  // The columns' vectors on their way from global to shared memory, where they are float32: bias, and with LayerNorm
  // for every two columns gamma and beta, which are read together.
  class VectorRegisters {
   public:
    __device__ __forceinline__ VectorRegisters(const GemmSm90Parameters& p, int first) {
#pragma unroll
      for (int vector = 0; vector < Shape::kVectors; ++vector) {
        const T* data = static_cast<const T*>(vector == 0 ? p.bias : vector == 1 ? p.gamma : p.beta);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const bool inside = data != nullptr && Column(i) < Shape::kN && first + Column(i) < p.n;
          value_[vector][i] = inside ? ToFloat(data[first + Column(i)]) : 0.0f;
        }
      }
    }
    __device__ __forceinline__ void Store(float* vectors) const {
#pragma unroll
      for (int i = 0; i < kCount * (Shape::kVectors > 0); ++i) {
        const int column = Column(i);
        if (column >= Shape::kN) break;
        vectors[column] = value_[0][i];
        if (Shape::kLayerNorm) {
          float* pair = vectors + Shape::kN + column / 2 * 4 + column % 2;
          pair[0] = value_[1][i], pair[2] = value_[2][i];
        }
      }
    }

   private:
    static constexpr int kThreads = 128 * Shape::kWarpgroups, kCount = (Shape::kN + kThreads - 1) / kThreads;
    __device__ __forceinline__ static int Column(int i) { return threadIdx.x + i * kThreads; }
    float value_[Shape::kLayerNorm ? 3 : 1][kCount];
  };

  // ---- finishing ----

  // A block's only tile: activation(sum + bias), and through LayerNorm with the residual where that is what the kernel
  // ends in, by way of the stages that follow the tile's. Branches stand outside of the loops: between them the
  // compiler overlaps nothing.
  __device__ __forceinline__ void FinishTile(float (&sum)[kSums], const Tile& tile, int group, Ring ring) {
    ring.Advance(group / Shape::kPartsInStage);
    char* part = Stage(ring.stage) + group % Shape::kPartsInStage * Shape::kPartBytes;
    WaitBarrier(Full(ring.stage), ring.parity);
    const Buffers buffers(part);
    WaitForVectors();
    AddBias<kSums>(sum, Vector(0));
    Activate<kSums>(sum, p_.activation);
    if constexpr (Shape::kLayerNorm) {
      NormalizeRows(sum, group, buffers);
    } else {
#pragma unroll
      for (int i = 0; i < kSums / 8; ++i) buffers.Store(i / Buffers::kCount, i % Buffers::kCount, &sum[8 * i]);
    }
    FenceSharedForAsync();
    SyncWarpgroup(1 + group);
    if (threadIdx.x % 128 == 0) {
      WaitForPrevious();
      StorePart(tile, group, part);
      WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
    }
  }

  // Until all warpgroups have put their parts of the vectors in shared memory.
  __device__ __forceinline__ static void WaitForVectors() {
    asm volatile("bar.sync %0, %1;" ::"n"(kVectorBarrier), "n"(128 * Shape::kWarpgroups) : "memory");
  }

  // A warpgroup's own tile, from registers. The weight's rows were dealt out so that a thread has 8 columns of every 32
  // side by side: shared memory is busy enough with the other warpgroup's product.
  __device__ __forceinline__ void FinishTurn(Sums& sum, const Tile& tile) {
    const int column = tile.column + threadIdx.x % 4 * 8;
    T* const out = tile.split == 0 ? static_cast<T*>(p_.y) : Part(tile.split);
    WaitForPrevious();  // it may still read what this overwrites
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      Activate<kSums>(sum[b], p_.activation);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row + b * 64 + FirstRow() + 8 * half;
        T* y = out + static_cast<int64_t>(row) * p_.n + column;
#pragma unroll
        for (int i = 0; i < Shape::kN / kDealtRows; ++i) {
          uint32_t pairs[4];
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const float* v = &sum[b][16 * i + 4 * t + 2 * half];
            pairs[t] = PackPair<T>(v[0], v[1]);
          }
          if (row < p_.m && column + i * kDealtRows < p_.n) {
            *reinterpret_cast<int4*>(y + i * kDealtRows) = make_int4(pairs[0], pairs[1], pairs[2], pairs[3]);
          }
        }
      }
    }
  }

  // Where row 0 of that part would lie; its memory begins with row whole_rows.
  __device__ __forceinline__ T* Part(int split) const {
    const int64_t rows = static_cast<int64_t>(split - 1) * (p_.m - p_.whole_rows) - p_.whole_rows;
    return static_cast<T*>(p_.parts) + rows * p_.n;
  }

  __device__ __forceinline__ void NormalizeRows(float (&sum)[kSums], int group, const Buffers& buffers) {
    if (p_.has_residual) {
#pragma unroll
      for (int i = 0; i < kSums / 8; ++i) buffers.Add(i / Buffers::kCount, i % Buffers::kCount, &sum[8 * i]);
    }
    float mean[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < kSums; ++i) mean[i / 2 % 2] += sum[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) mean[i] = QuadSum(mean[i]) / Shape::kN;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float centered = sum[i] - mean[i / 2 % 2];
      squares[i / 2 % 2] = fmaf(centered, centered, squares[i / 2 % 2]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) squares[i] = QuadSum(squares[i]);
    if (p_.cluster_n > 1) {
      ShareStatistics(mean, squares, group);
#pragma unroll
      for (int i = 0; i < 2; ++i) MergeStatistics(Statistics(group, 0) + FirstRow() + 8 * i, &mean[i], &squares[i]);
    }
    const float count = static_cast<float>(p_.cluster_n) * Shape::kN;
    float scale[2], shift[2];  // (x - mean) / deviation is x * scale + shift
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = rsqrtf(squares[i] / count + p_.epsilon);
      shift[i] = -mean[i] * scale[i];
    }
#pragma unroll
    for (int i = 0; i < kSums / 8; ++i) {
      float* v = &sum[8 * i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = j % 2;
        // gamma and beta of two columns
        const float4 g = *reinterpret_cast<const float4*>(Vector(1) + 2 * (16 * i + j / 2 * 8 + FirstColumn()));
        v[2 * j] = fmaf(fmaf(v[2 * j], scale[row], shift[row]), g.x, g.z);
        v[2 * j + 1] = fmaf(fmaf(v[2 * j + 1], scale[row], shift[row]), g.y, g.w);
      }
      buffers.Store(i / Buffers::kCount, i % Buffers::kCount, v);
    }
  }

  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Every block of the cluster row gets the statistics of this block's slice; returns when all of theirs are here. Only
  // for rows of several blocks: in a launch without a cluster the copy is an illegal instruction even where no thread
  // makes one (the compiler predicates UBLKCP.S.S instead of branching around it; seen on an H200).
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

  // Chan's parallel form of Welford's update, over the row's equally long slices.
  __device__ __forceinline__ void MergeStatistics(const float2* slices, float* mean, float* squares) {
    *mean = *squares = 0.0f;
#pragma unroll 4
    for (int i = 0; i < p_.cluster_n; ++i) *mean += slices[i * 64].x;
    *mean /= static_cast<float>(p_.cluster_n);
#pragma unroll 4
    for (int i = 0; i < p_.cluster_n; ++i) {
      const float2 slice = slices[i * 64];
      *squares += slice.y + Shape::kN * (slice.x - *mean) * (slice.x - *mean);
    }
  }

  __device__ __forceinline__ void FinishPartial(float (&sum)[kSums], const Tile& tile, int group) {
    const int row = tile.row + group * 64 + FirstRow();
    float* out = p_.partial + (static_cast<int64_t>(tile.split) * p_.m + row) * p_.n;
#pragma unroll
    for (int j = 0; j < Shape::kN / 8; ++j) {
      const int column = tile.column + 8 * j + FirstColumn();
      if (column >= p_.n) continue;
      if (row < p_.m) *reinterpret_cast<float2*>(out + column) = make_float2(sum[4 * j], sum[4 * j + 1]);
      if (row + 8 < p_.m) {
        *reinterpret_cast<float2*>(out + 8 * static_cast<int64_t>(p_.n) + column) =
            make_float2(sum[4 * j + 2], sum[4 * j + 3]);
      }
    }
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_CUH_
