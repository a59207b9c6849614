// Attention on Hopper, without a score matrix in memory. Blocks stay on their multiprocessor and take one tile of
// queries after the other; loading warps run ahead of the computing ones, across tiles (bulk tensor copies). A
// computing warpgroup keeps 64 queries, their running softmax and their results in registers (wgmma).
#ifndef BERTFUSE_KERNELS_ATTENTION_SM90_CUH_
#define BERTFUSE_KERNELS_ATTENTION_SM90_CUH_

#include "kernels/attention_sm90_softmax.cuh"
#include "kernels/attention_sm90_team.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/mma.cuh"

namespace bertfuse::kernels {

// Descriptor of a tile with rows of kPitch bytes: K as it lies (rows are the product's columns), or V transposed.
// `tile_bytes` is the distance to the next kPitch bytes of every row; only the transposed form crosses it.
template <int kPitch>
__device__ __forceinline__ uint64_t AttentionDescriptor(const char* tile, int tile_bytes) {
  constexpr uint64_t kLayout = kPitch == 128 ? 1 : 2;
  return static_cast<uint64_t>(SharedAddress(tile) >> 4) | static_cast<uint64_t>(tile_bytes >> 4) << 16 |
         static_cast<uint64_t>(8 * kPitch >> 4) << 32 | kLayout << 62;
}

__device__ __forceinline__ void StoreTile3d(const CUtensorMap* map, const void* shared, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(SharedAddress(shared))
               : "memory");
}

// LoadMatrices' counterpart.
__device__ __forceinline__ void StoreMatrices(uint32_t address, const uint32_t (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(in[0]),
               "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}

template <class T>
__device__ __forceinline__ uint32_t AddPairs(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const Pair sum = __hadd2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const uint32_t&>(sum);
}

// A computing warpgroup of a team, with 64 queries of each of its tiles.
template <class Shape>
class AttentionSm90Warpgroup : AttentionSm90Team<Shape> {
  using Team = AttentionSm90Team<Shape>;
  using typename Team::Ring;
  using T = typename Shape::T;
  static constexpr int kKeys = Shape::kKeys, kHeadSize = Shape::kHeadSize;

 public:
  __device__ __forceinline__ AttentionSm90Warpgroup(const AttentionSm90Parameters& parameters, char* shared, int index)
      : Team(parameters, shared, index / Shape::kWarpgroups),
        group_(index % Shape::kWarpgroups),
        barrier_(1 + index),
        leader_(threadIdx.x % 128 == 0) {}

  __device__ __forceinline__ void Compute() const {
    Ring ring;
    this->ForEachTile([&](const AttentionTile& tile) {
      if (tile.first_query + 64 * group_ < this->p_.sequence) {
        ComputeTile(tile, ring);
      } else {
        WaitBarrier(this->QueriesFull(tile.round), this->QueriesParity(tile.round));
        ReleaseQueriesBefore(tile);
        Skip(max(this->WaitForMask(tile), this->SureBlocks()), ring);
        SyncWarpgroup(barrier_);
      }
      if (leader_) ArriveAtOwn(this->MaskEmpty(tile.round));
    });
    if (leader_) WaitStoresRead<0>();  // shared memory must outlive the copy engine's reads
  }

 private:
  __device__ __forceinline__ void ComputeTile(const AttentionTile& tile, Ring& ring) const {
    uint32_t q[kHeadSize / 16][4], weight[kKeys / 16][4], bias[kHeadSize / 8];
    float score[kKeys / 2], out[kHeadSize / 2];
    RunningSoftmax softmax;
    softmax.scale = this->p_.scale_log2;
    ReadQueries(q, tile);
    MultiplyKeys(score, q, ring);
    ReleaseQueriesBefore(tile);
    const int blocks = this->WaitForMask(tile);
    const bool all_hidden = (this->Mask(tile.round)[0] & Team::kAllHidden) != 0;
    SeenKeys seen(this->Mask(tile.round), 0);
    WaitWgmma<0>();
    FenceRegisters(score);
    ReleaseKeys(ring.stage);
    Hide(score, seen, all_hidden, 0);
    softmax.Start(score);
    Pack(weight, score);
    for (int block = 1; block < blocks; ++block) {
      const Ring before = ring;
      ring.Advance();
      seen = SeenKeys(this->Mask(tile.round), block);
      if constexpr (Shape::kOverlapsProducts) {
        MultiplyKeys(score, q, ring);
        MultiplyValues(out, weight, before, block > 1);
        WaitWgmma<1>();
      } else {
        MultiplyValues(out, weight, before, block > 1);
        FinishValues(out, before.stage);
        MultiplyKeys(score, q, ring);
        WaitWgmma<0>();
      }
      FenceRegisters(score);
      Hide(score, seen, all_hidden, block);
      bool corrects = false;
      float correction[2];
      if (!softmax.TryContinue(score)) {
        MultiplyKeysAgain(score, q, ring.stage);
        Hide(score, seen, all_hidden, block);
        softmax.Continue(score, correction);
        corrects = true;
      }
      ReleaseKeys(ring.stage);
      if constexpr (Shape::kOverlapsProducts) {
        FenceRegisters(score);  // else the compiler puts the exponentials after the wait
        FinishValues(out, before.stage);
      }
      if (corrects) {
#pragma unroll
        for (int i = 0; i < kHeadSize / 2; ++i) out[i] *= correction[i / 2 % 2];
      }
      Pack(weight, score);
    }
    MultiplyValues(out, weight, ring, blocks > 1);
    ReadBias(bias, 2 * this->p_.heads + tile.head);
    const float inverse[2] = {softmax.InverseTotal(0), softmax.InverseTotal(1)};
    FinishValues(out, ring.stage);
    ring.Advance();
    Skip(this->SureBlocks() - blocks, ring);
    Store(out, inverse, bias, tile);
  }

  // The pairs of a head's bias at columns 8 i + 2 (lane % 4); `head` counts through Q's, K's and V's.
  __device__ __forceinline__ void ReadBias(uint32_t (&pairs)[kHeadSize / 8], int head) const {
    const T* bias = static_cast<const T*>(this->p_.bias) + head * kHeadSize + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadSize / 8; ++i) pairs[i] = *reinterpret_cast<const uint32_t*>(bias + 8 * i);
  }

  // threadIdx.x, of which the compiler does not know that it is always the same: it would keep what follows from it in
  // registers that are not there.
  __device__ __forceinline__ static int ThreadNow() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
  }

  // Where the thread's row of the 16 x 16 elements at column 16 i lies in the warp's queries, for LoadMatrices.
  __device__ __forceinline__ static uint32_t QueryAddress(const char* queries, int thread, int i) {
    const int row = thread % 128 / 32 * 16 + thread % 16;
    const int column = 16 * i % Shape::kTileColumns + thread % 32 / 16 * 8;
    return SharedAddress(queries) + 16 * i / Shape::kTileColumns * Shape::kQueryTileBytes +
           Swizzled<Shape::kPitch>(row, column * 2);
  }

  // Queries with their bias, as the tensor cores take them: q[i][e] is the pair at row lane / 4 + 8 (e % 2), column
  // 16 i + 8 (e / 2) + 2 (lane % 4).
  __device__ __forceinline__ void ReadQueries(uint32_t (&q)[kHeadSize / 16][4], const AttentionTile& tile) const {
    uint32_t bias[kHeadSize / 8];
    ReadBias(bias, tile.head);
    WaitBarrier(this->QueriesFull(tile.round), this->QueriesParity(tile.round));
    const int thread = ThreadNow();
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
      LoadMatrices(q[i], QueryAddress(this->Queries(tile.round, group_), thread, i));
#pragma unroll
      for (int e = 0; e < 4; ++e) q[i][e] = AddPairs<T>(q[i][e], bias[2 * i + e / 2]);
    }
  }

  // Gives back the buffer of the tile before, whose results left from it.
  __device__ __forceinline__ void ReleaseQueriesBefore(const AttentionTile& tile) const {
    if (leader_ && tile.round > 0) {
      WaitStoresRead<0>();
      ArriveAtOwn(this->QueriesEmpty(tile.round - 1));
    }
  }

  // By each warp for itself: one may still read keys that the others are done with (MultiplyKeysAgain).
  __device__ __forceinline__ void ReleaseKeys(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ArriveAtOwn(this->KeysEmpty(stage));
  }

  // Lets blocks go by that were fetched and are not used.
  __device__ __forceinline__ void Skip(int blocks, Ring& ring) const {
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      WaitBarrier(this->KeysFull(ring.stage), ring.parity);
      WaitBarrier(this->ValuesFull(ring.stage), ring.parity);
      ReleaseKeys(ring.stage);
      if (leader_) ArriveAtOwn(this->ValuesEmpty(ring.stage));
      ring.Advance();
    }
  }

  __device__ __forceinline__ void MultiplyKeys(float (&score)[kKeys / 2], const uint32_t (&q)[kHeadSize / 16][4],
                                               const Ring& ring) const {
    constexpr int kSteps = Shape::kTileColumns / 16;
    WaitBarrier(this->KeysFull(ring.stage), ring.parity);
    FenceRegisters(score);
    BeginWgmma();
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
      const char* keys = this->Keys(ring.stage) + i / kSteps * Shape::kKeyTileBytes;
      WgmmaRs<typename WgmmaOp<T, kKeys>::RS>(score, q[i], AttentionDescriptor<Shape::kPitch>(keys, 0) + i % kSteps * 2,
                                              i > 0);
    }
    CommitWgmma();
  }

  // The warp's part of MultiplyKeys once more, without the other warps.
  __device__ __forceinline__ void MultiplyKeysAgain(float (&score)[kKeys / 2], const uint32_t (&q)[kHeadSize / 16][4],
                                                    int stage) const {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
    const uint32_t keys = SharedAddress(this->Keys(stage));
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      float sum[2][4] = {};
#pragma unroll
      for (int i = 0; i < kHeadSize / 16; ++i) {
        const int column = 16 * i % Shape::kTileColumns + lane / 8 % 2 * 8;
        uint32_t b[4];
        LoadMatrices(b, keys + 16 * i / Shape::kTileColumns * Shape::kKeyTileBytes +
                            Swizzled<Shape::kPitch>(16 * j + row, column * 2));
        Mma<T>(sum[0], q[i], b[0], b[1]);
        Mma<T>(sum[1], q[i], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) score[8 * j + i] = sum[i / 4][i % 4];
    }
  }

  __device__ __forceinline__ void MultiplyValues(float (&out)[kHeadSize / 2], const uint32_t (&weight)[kKeys / 16][4],
                                                 const Ring& ring, bool accumulate) const {
    WaitBarrier(this->ValuesFull(ring.stage), ring.parity);
    FenceRegisters(out);
    BeginWgmma();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const char* values = this->Values(ring.stage) + i * 16 * Shape::kPitch;
      WgmmaRs<typename WgmmaOp<T, kHeadSize>::RSTransposed>(
          out, weight[i], AttentionDescriptor<Shape::kPitch>(values, Shape::kKeyTileBytes), accumulate || i > 0);
    }
    CommitWgmma();
  }

  __device__ __forceinline__ void FinishValues(float (&out)[kHeadSize / 2], int stage) const {
    WaitWgmma<0>();
    FenceRegisters(out);
    if (leader_) ArriveAtOwn(this->ValuesEmpty(stage));
  }

  // A block's bits of the mask, in registers before the scores are there.
  struct SeenKeys {
    uint32_t bits[kKeys / 32];
    __device__ __forceinline__ SeenKeys(const uint32_t* mask, int block) {
#pragma unroll
      for (int i = 0; i < kKeys / 32; ++i) bits[i] = mask[1 + block * (kKeys / 32) + i];
    }
  };

  // A sequence whose keys are all hidden attends to all of them alike.
  __device__ __forceinline__ void Hide(float (&score)[kKeys / 2], const SeenKeys& seen, bool all_hidden,
                                       int block) const {
    if (!all_hidden) return HideKeys(score, seen.bits);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int key = block * kKeys + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      score[i] = key < this->p_.sequence ? 0.0f : -INFINITY;
    }
  }

  __device__ __forceinline__ static void Pack(uint32_t (&weight)[kKeys / 16][4], const float (&score)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      for (int e = 0; e < 2; ++e) {
        weight[i / 2][i % 2 * 2 + e] = PackPair<T>(score[4 * i + 2 * e], score[4 * i + 2 * e + 1]);
      }
    }
  }

  __device__ __forceinline__ void Store(const float (&out)[kHeadSize / 2], const float (&inverse)[2],
                                        const uint32_t (&bias)[kHeadSize / 8], const AttentionTile& tile) const {
    char* staging = this->Queries(tile.round, group_);
    const int thread = ThreadNow();
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
      uint32_t pairs[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 add = UnpackPair<T>(bias[2 * i + e / 2]);
        const float* value = &out[8 * i + 2 * e];
        pairs[e] = PackPair<T>(fmaf(value[0], inverse[e % 2], add.x), fmaf(value[1], inverse[e % 2], add.y));
      }
      StoreMatrices(QueryAddress(staging, thread, i), pairs);
    }
    FenceSharedForAsync();
    SyncWarpgroup(barrier_);
    if (leader_) {
#pragma unroll
      for (int i = 0; i < Shape::kTiles; ++i) {
        StoreTile3d(&this->p_.y_map, staging + i * Shape::kQueryTileBytes, tile.head * kHeadSize + i * 64,
                    tile.first_query + 64 * group_, tile.batch);
      }
      CommitStores();
    }
  }

  int group_;
  int barrier_;  // of the warpgroup
  bool leader_;
};

// Grid: as many blocks as stay at a time, or fewer.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerMultiprocessor)
    AttentionSm90Kernel(const __grid_constant__ AttentionSm90Parameters p) {
  extern __shared__ __align__(1024) char shared[];
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4;
  if (warp < Shape::kTeams && threadIdx.x % 32 == 0) {
    PrefetchTensorMap(&p.qkv_map);
    AttentionSm90Team<Shape>(p, shared, warp).InitBarriers();
    FenceBarrierInit();
  }
  LaunchNext();
  __syncthreads();
  WaitForPrevious();
  if (group == Shape::kComputing) {
    ShrinkRegisters<Shape::kLoadingRegisters>();
    const int role = warp % 4 / Shape::kTeams;
    const AttentionSm90Team<Shape> team(p, shared, warp % Shape::kTeams);
    if (role == 0 && threadIdx.x % 32 == 0) team.Load();
    if (role == 1) team.ReadMask();
  } else {
    GrowRegisters<Shape::kRegisters>();
    AttentionSm90Warpgroup<Shape>(p, shared, group).Compute();
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_SM90_CUH_
