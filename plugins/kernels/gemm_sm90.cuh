// The Hopper matrix product. One thread feeds tiles of x and weight through a ring of shared-memory stages (bulk tensor
// copies, shared among the blocks of a cluster); one to three warpgroups multiply (wgmma) and finish the result in
// registers. It leaves through the ring's stages, too.
//
// Large tiles: a block stays on its multiprocessor and takes one tile of the output after the other; the ring goes on
// without a pause, and another thread sends the finished tiles off. Small tiles: a block for each, two on a
// multiprocessor where there are many.
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
  static constexpr int kSums = Shape::kN / 2;  // of a thread
  static constexpr int kBufferSums = Shape::kBufferColumns / 2;
  static constexpr bool kPartial = Shape::kEpilogue == GemmEpilogue::kPartial;
  using Copies::cluster_;
  using Copies::Done;
  using Copies::Full;
  using Copies::InitBarriers;
  using Copies::MatesEmpty;
  using Copies::NextTile;
  using Copies::p_;
  using Copies::Produce;
  using Copies::rank_m_;
  using Copies::rank_n_;
  using Copies::Stage;
  using Copies::Statistics;
  using Copies::StatisticsFull;
  using Copies::Store;
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
      Consume(warp / 4);
    } else {
      if (threadIdx.x % 32 == 0) {
        if (warp == 4 * Shape::kWarpgroups) {
          Produce();
        } else if constexpr (Shape::kStays) {
          Store();
        }
      }
      __syncwarp();
    }
    // A block's shared memory must outlive what its cluster writes there.
    if (clustered) SyncCluster();
  }

 private:
  // ---- multiplying ----

  __device__ __forceinline__ void Consume(int group) {
    if (!p_.weight_is_constant) WaitForPrevious();
    if (Shape::kLayerNorm) LoadVectors();
    const uint32_t empty = MatesEmpty(threadIdx.x % 128);
    const auto release = [&](int stage) {
      if (empty != 0) ArriveAt(empty + stage * sizeof(uint64_t));
    };
    Ring ring;
    int turn = 0;
    for (int index = cluster_;; ++turn) {
      const Tile tile = TileAt(index);
      const BiasRegisters bias(p_, tile.column);
      int previous = -1;
      float sum[kSums];
      for (int k_stage = tile.first_stage; k_stage < tile.last_stage; ++k_stage, ring.Advance()) {
        WaitBarrier(Full(ring.stage), ring.parity);
        Multiply(sum, ring.stage, group, k_stage > tile.first_stage);
        if (previous < 0) {
          // Under cover of the first product, and after every warp has finished the tile before.
          if (Shape::kEpilogue == GemmEpilogue::kElementwise) {
            SyncWarpgroup(1 + group);
            bias.Store(Vector(group));
          }
        }
        WaitWgmma<1>();
        if (previous >= 0) release(previous);
        previous = ring.stage;
      }
      WaitWgmma<0>();
      FenceRegisters(sum);
      release(previous);
      if constexpr (kPartial) {
        WaitForPrevious();
        FinishPartial(sum, tile, group);
      } else {
        FinishTile(sum, tile, turn, group, ring);
      }
      if (!NextTile(&index)) break;
    }
  }

  __device__ __forceinline__ void Multiply(float (&sum)[kSums], int stage, int group, bool accumulate) {
    uint64_t x = TileDescriptor(Stage(stage) + group * 64 * kStageK * 2);
    uint64_t weight = TileDescriptor(Stage(stage) + Shape::kXBytes);
    FenceRegisters(sum);
    BeginWgmma();
#pragma unroll
    for (int step = 0; step < kStageK / 16; ++step, x += 2, weight += 2) {
      WgmmaSs<T, Shape::kN>(sum, x, weight, step > 0 || accumulate);
    }
    CommitWgmma();
    FenceRegisters(sum);
  }

  // The next tile's bias on its way from global to shared memory, one or two values a thread.
  class BiasRegisters {
   public:
    __device__ __forceinline__ BiasRegisters(const GemmSm90Parameters& p, int column) {
      if constexpr (Shape::kEpilogue == GemmEpilogue::kElementwise) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const int at = threadIdx.x % 128 + 128 * i;
          const bool inside = p.bias != nullptr && at < Shape::kN && column + at < p.n;
          value_[i] = inside ? ToFloat(static_cast<const T*>(p.bias)[column + at]) : 0.0f;
        }
      }
    }
    __device__ __forceinline__ void Store(float* vector) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int at = threadIdx.x % 128 + 128 * i;
        if (at < Shape::kN) vector[at] = value_[i];
      }
    }

   private:
    static constexpr int kCount = (Shape::kN + 127) / 128;
    float value_[kCount];
  };

  // With LayerNorm all tiles of a block have the same columns. As float32: bias, then for every two columns gamma and
  // beta, which are read together.
  __device__ __forceinline__ void LoadVectors() {
    const int first = rank_n_ * Shape::kN;
    for (int column = threadIdx.x; column < Shape::kN; column += 128 * Shape::kWarpgroups) {
      const auto load = [&](const void* vector) { return ToFloat(static_cast<const T*>(vector)[first + column]); };
      Vector(0)[column] = p_.bias == nullptr ? 0.0f : load(p_.bias);
      Vector(1)[column / 2 * 4 + column % 2] = load(p_.gamma);
      Vector(1)[column / 2 * 4 + column % 2 + 2] = load(p_.beta);
    }
    asm volatile("bar.sync 8, %0;" ::"n"(128 * Shape::kWarpgroups) : "memory");
  }

  // ---- finishing ----

  // activation(sum + bias), and through LayerNorm with the residual where that is what the kernel ends in, into the
  // warpgroup's part of the stages that follow the tile's.
  __device__ __forceinline__ void FinishTile(float (&sum)[kSums], const Tile& tile, int turn, int group, Ring& ring) {
    const int index = group / Shape::kPartsInStage;
    Ring part = ring;
    part.Advance(index);
    ring.Advance(Shape::kPartStages);
    WaitBarrier(Full(part.stage), part.parity);
    const Buffers matrices(Stage(part.stage) + group % Shape::kPartsInStage * Shape::kPartBytes);
    if constexpr (Shape::kLayerNorm) {
      NormalizeRows(sum, turn, group, matrices);
    } else {
      SyncWarpgroup(1 + group);  // the bias is complete
#pragma unroll
      for (int i = 0; i < Shape::kBuffers; ++i) {
        float* v = &sum[i * kBufferSums];
        AddBias<kBufferSums>(v, Vector(group) + i * Shape::kBufferColumns);
        Activate<kBufferSums>(v, p_.activation);
#pragma unroll
        for (int j = 0; j < Buffers::kCount; ++j) matrices.Store(i, j, &v[8 * j]);
      }
    }
    FenceSharedForAsync();
    if constexpr (Shape::kStays) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ArriveAtOwn(Done(index));
      return;
    }
    SyncWarpgroup(1 + group);
    if (threadIdx.x % 128 == 0) {
      WaitForPrevious();
      StorePart(tile, group, Stage(part.stage) + group % Shape::kPartsInStage * Shape::kPartBytes);
      WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
    }
  }

  __device__ __forceinline__ void NormalizeRows(float (&sum)[kSums], int turn, int group, const Buffers& matrices) {
    // Branches stand outside of the loops: between them the compiler overlaps no loads.
    AddBias<kSums>(sum, Vector(0));
    Activate<kSums>(sum, p_.activation);
    if (p_.has_residual) {
#pragma unroll
      for (int i = 0; i < kSums / 8; ++i) matrices.Add(i / Buffers::kCount, i % Buffers::kCount, &sum[8 * i]);
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
    ShareStatistics(mean, squares, turn, group);
    float scale[2], shift[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      MergeStatistics(Statistics(turn, group, 0) + FirstRow() + 8 * i, &scale[i], &shift[i]);
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
      matrices.Store(i / Buffers::kCount, i % Buffers::kCount, v);
    }
  }

  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Every block of the cluster row gets the statistics of this block's slice; returns when all of theirs are here.
  __device__ __forceinline__ void ShareStatistics(const float (&mean)[2], const float (&squares)[2], int turn,
                                                  int group) {
    const int thread = threadIdx.x % 128;
    if (thread == 0) ArriveExpecting(StatisticsFull(turn, group), (p_.cluster_n - 1) * 64 * sizeof(float2));
    float2* slot = Statistics(turn, group, rank_n_);
    if (threadIdx.x % 4 == 0) {
      slot[FirstRow()] = make_float2(mean[0], squares[0]);
      slot[FirstRow() + 8] = make_float2(mean[1], squares[1]);
    }
    FenceSharedForAsync();
    SyncWarpgroup(1 + group);
    if (thread < p_.cluster_n && thread != rank_n_) {
      const uint32_t rank = rank_m_ * p_.cluster_n + thread;
      CopyToBlock(ClusterAddress(slot, rank), slot, 64 * sizeof(float2),
                  ClusterAddress(StatisticsFull(turn, group), rank));
    }
    WaitBarrier(StatisticsFull(turn, group), turn / 2 % 2);
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
