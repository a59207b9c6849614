// The consumers of the Hopper attention kernel, and its main loop over blocks of keys: a warpgroup keeps its 64
// queries, their online softmax and their results in registers (wgmma).
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_CONSUMER_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_CONSUMER_CUH_

#include "kernels/packed_places.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/scalar.cuh"
#include "kernels/sm90/attention/results.cuh"
#include "kernels/sm90/attention/rotary.cuh"
#include "kernels/sm90/attention/softmax.cuh"
#include "kernels/sm90/ptx/tma.cuh"
#include "kernels/sm90/ptx/wgmma.cuh"

namespace bertfuse::kernels::attention_sm90 {

// Descriptor of a tile with rows of kPitch bytes: K as it lies (rows are the product's columns), or V transposed.
// `tile_bytes` is the distance to the next kPitch bytes of every row; only the transposed form crosses it.
template <int kPitch>
__device__ __forceinline__ uint64_t AttentionDescriptor(const char* tile, int tile_bytes) {
  constexpr uint64_t kLayout = kPitch == 128 ? 1 : 2;
  return static_cast<uint64_t>(SharedAddress(tile) >> 4) | static_cast<uint64_t>(tile_bytes >> 4) << 16 |
         static_cast<uint64_t>(8 * kPitch >> 4) << 32 | kLayout << 62;
}

// A warpgroup with 64 queries of each of its pipeline's tiles.
template <class Config>
class Consumer : Results<Config> {
  using Base = Results<Config>;
  using Base::barrier_, Base::group_, Base::leader_, Base::OwnQueries, Base::QueryAddress, Base::ThreadNow;
  using typename Base::State;
  using typename Base::Tile;
  using T = typename Config::T;
  static constexpr int kKeys = Config::kKeys, kHeadSize = Config::kHeadSize;
  static constexpr int kElementBytes = static_cast<int>(sizeof(T));

 public:
  __device__ __forceinline__ Consumer(const Parameters& parameters, char* shared, int index)
      : Base(parameters, shared, index) {}

  __device__ __forceinline__ void Compute() const {
    State state;
    this->ForEachTile([&](const Tile& tile) {
      if (tile.first_query + 64 * group_ < this->Length(tile)) {
        ComputeTile(tile, state);
      } else {
        WaitBarrier(this->QueriesFull(tile.number), this->QueriesParity(tile.number));
        ReleasePreviousQueries(tile);
        Skip(tile, Config::kVariant ? this->WaitForBlocks(tile).begin : 0, BlocksFetched(tile), state);
        SyncWarpgroup(barrier_);
      }
      // By every reader for itself, which racecheck follows, as it does not a leader's arrival for its warpgroup.
      Arrive(this->MaskEmpty(tile.number));
    });
    if (leader_) TmaWaitStoresRead<0>();  // shared memory must outlive these stores
  }

 private:
  __device__ __forceinline__ void ComputeTile(const Tile& tile, State& state) const {
    uint32_t q[kHeadSize / 16][4], weight[kKeys / 16][4], bias[kHeadSize / 8];
    float score[kKeys / 2], out[kHeadSize / 2];
    OnlineSoftmax softmax;
    softmax.scale = this->p_.scale_log2;
    ReadQueries(q, tile);
    const int begin = Config::kVariant ? OwnBlocks(tile).begin : 0;
    if constexpr (Config::kVariant) {
      const int fetched = this->WaitForBlocks(tile).begin;
      Skip(tile, fetched, begin - fetched, state);
      RotateKeys(tile, begin, state);
    }
    MultiplyKeys(score, q, state);
    ReleasePreviousQueries(tile);
    const int blocks = Config::kVariant ? OwnBlocks(tile).end : this->WaitForMask(tile);
    const bool all_hidden = !Config::kPacked && (this->Mask(tile.number)[0] & Base::kAllHidden) != 0;
    RowWindows rows;
    if constexpr (Config::kVariant) rows = OwnRows(tile, all_hidden);
    VisibleKeys visible = Visible(tile, begin);
    WaitWgmma<0>();
    FenceRegisters(score);
    ReleaseKeys(state.stage);
    MaskScores(score, visible, all_hidden, rows, begin);
    softmax.Start(score);
    Pack(weight, score);
#pragma unroll 1
    for (int block = begin + 1; block < blocks; ++block) {
      const State before = state;
      state.Advance();
      visible = Visible(tile, block);
      if constexpr (Config::kVariant) RotateKeys(tile, block, state);
      if constexpr (Config::kOverlapsProducts) {
        MultiplyKeys(score, q, state);
        MultiplyValues(out, weight, before, block > begin + 1);
        WaitWgmma<1>();
      } else {
        MultiplyValues(out, weight, before, block > begin + 1);
        FinishValues(out, before.stage);
        MultiplyKeys(score, q, state);
        WaitWgmma<0>();
      }
      FenceRegisters(score);
      MaskScores(score, visible, all_hidden, rows, block);
      bool corrects = false;
      float correction[2];
      if (!softmax.TryContinue(score)) {
        MultiplyKeysAgain(score, q, state.stage);
        MaskScores(score, visible, all_hidden, rows, block);
        softmax.Continue(score, correction);
        corrects = true;
      }
      ReleaseKeys(state.stage);
      if constexpr (Config::kOverlapsProducts) {
        FenceRegisters(score);  // else the compiler puts the exponentials after the wait
        FinishValues(out, before.stage);
      }
      if (corrects) {
#pragma unroll
        for (int i = 0; i < kHeadSize / 2; ++i) out[i] *= correction[i / 2 % 2];
      }
      Pack(weight, score);
    }
    if constexpr (Config::kPacked) ClearValues(tile.length - (blocks - 1) * kKeys, state);
    MultiplyValues(out, weight, state, blocks > begin + 1);
    ReadBias(bias, Config::kVariant ? this->ValueHead(tile.head) : 2 * this->p_.heads + tile.head);
    const float inverse[2] = {softmax.InverseRowSum(0), softmax.InverseRowSum(1)};
    FinishValues(out, state.stage);
    state.Advance();
    if constexpr (Config::kVariant) {
      Skip(tile, blocks, this->WaitForBlocks(tile).end - blocks, state);
    } else if constexpr (!Config::kPacked) {
      Skip(tile, blocks, this->BlocksBeforeMask() - blocks, state);
    }
    this->Store(out, inverse, bias, tile);
  }

  // The pairs of a head's bias at columns 8 i + 2 (lane % 4); `head` counts through Q's, K's and V's.
  __device__ __forceinline__ void ReadBias(uint32_t (&pairs)[kHeadSize / 8], int head) const {
    const T* bias = static_cast<const T*>(this->p_.bias) + head * kHeadSize + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadSize / 8; ++i) {
      if (this->p_.bias == nullptr) {
        pairs[i] = 0;
      } else {
        pairs[i] = *reinterpret_cast<const uint32_t*>(bias + 8 * i);
      }
    }
  }

  // Queries with their bias, as the tensor cores take them: q[i][e] is the pair at row lane / 4 + 8 (e % 2), column
  // 16 i + 8 (e / 2) + 2 (lane % 4).
  __device__ __forceinline__ void ReadQueries(uint32_t (&q)[kHeadSize / 16][4], const Tile& tile) const {
    uint32_t bias[kHeadSize / 8];
    ReadBias(bias, tile.head);
    WaitBarrier(this->QueriesFull(tile.number), this->QueriesParity(tile.number));
    const int thread = ThreadNow();
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
      LoadMatrices(q[i], QueryAddress(this->Queries(tile.number, group_), thread, i));
      if (Rotates()) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) q[i][e] = AddPairs<T>(q[i][e], bias[2 * i + e / 2]);
    }
    if (Rotates()) {
      const Rotary<Config> rotary = RotaryOf(tile);
      constexpr int kHalf = kHeadSize / 32;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          rotary.Rotate(q[i][e], q[i + kHalf][e], bias[2 * i + e / 2], bias[2 * (i + kHalf) + e / 2],
                        tile.first_query + 64 * group_ + FirstRow() + e % 2 * 8,
                        16 * i + e / 2 * 8 + threadIdx.x % 4 * 2);
        }
      }
    }
    if constexpr (Config::kPacked) {
      // Otherwise a neighbouring sequence's queries would help to decide whether the warp accepts TryContinue()'s
      // result.
      const int queries = OwnQueries(tile);
#pragma unroll
      for (int i = 0; i < kHeadSize / 16; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) q[i][e] = FirstRow() + e % 2 * 8 < queries ? q[i][e] : 0;
      }
    }
  }

  // The blocks of keys that the warpgroup's queries of a variant see.
  __device__ __forceinline__ KeyRange OwnBlocks(const Tile& tile) const {
    const KeyRange all = this->WaitForBlocks(tile);
    if (!Config::kPacked && (this->Mask(tile.number)[0] & Base::kAllHidden) != 0) return all;
    const KeyRange own = this->BlocksInWindow(tile, tile.first_query + 64 * group_, 64);
    return {own.begin, min(own.end, all.end)};
  }

  // Blocks of keys that the producer loads.
  __device__ __forceinline__ int BlocksFetched(const Tile& tile) const {
    if constexpr (Config::kVariant) return this->WaitForBlocks(tile).end - this->WaitForBlocks(tile).begin;
    const int blocks = this->WaitForMask(tile);
    return Config::kPacked ? blocks : max(blocks, this->BlocksBeforeMask());
  }

  // Releases the query buffer of the tile before, whose results were stored from it.
  __device__ __forceinline__ void ReleasePreviousQueries(const Tile& tile) const {
    if (leader_ && tile.number > 0) {
      TmaWaitStoresRead<0>();
      Arrive(this->QueriesEmpty(tile.number - 1));
    }
  }

  // By each warp for itself: it may still be reading keys that the others are done with (MultiplyKeysAgain).
  __device__ __forceinline__ void ReleaseKeys(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(this->KeysEmpty(stage));
  }

  __device__ __forceinline__ bool Rotates() const { return Config::kVariant && this->p_.cos != nullptr; }

  __device__ __forceinline__ Rotary<Config> RotaryOf(const Tile& tile) const {
    if constexpr (Config::kPacked) {
      return Rotary<Config>(this->p_, tile.first_row, tile.length);
    } else {
      return Rotary<Config>(this->p_, 0, this->Length(tile));
    }
  }

  // Every warpgroup of the pipeline rotates a share of every block that is fetched, whether it sees it or not. (They
  // meet at an mbarrier, not at a named barrier: one of them may be skipping blocks, and synccheck wants a named
  // barrier's threads to come from one instruction.)
  __device__ __forceinline__ void RotateKeys(const Tile& tile, int block, const State& state) const {
    if (!Rotates()) return;
    const int head = this->KeyHead(tile.head);
    const T* bias = this->p_.bias == nullptr ? nullptr : static_cast<const T*>(this->p_.bias) + head * kHeadSize;
    WaitBarrier(this->KeysFull(state.stage), state.parity);
    RotaryOf(tile).RotateKeys(this->Keys(state.stage), block * kKeys, bias, group_);
    FenceAsyncProxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(this->KeysRotated(state.stage));
    WaitBarrier(this->KeysRotated(state.stage), state.parity);
  }

  // Passes over blocks from `first` on that were fetched but are not used.
  __device__ __forceinline__ void Skip(const Tile& tile, int first, int blocks, State& state) const {
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      WaitBarrier(this->KeysFull(state.stage), state.parity);
      if constexpr (Config::kVariant) RotateKeys(tile, first + block, state);
      WaitBarrier(this->ValuesFull(state.stage), state.parity);
      ReleaseKeys(state.stage);
      if (leader_) Arrive(this->ValuesEmpty(state.stage));
      state.Advance();
    }
  }

  __device__ __forceinline__ void MultiplyKeys(float (&score)[kKeys / 2], const uint32_t (&q)[kHeadSize / 16][4],
                                               const State& state) const {
    constexpr int kSteps = Config::kTileColumns / 16;
    WaitBarrier(this->KeysFull(state.stage), state.parity);
    FenceRegisters(score);
    BeginWgmma();
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
      const char* keys = this->Keys(state.stage) + i / kSteps * Config::kKeyTileBytes;
      WgmmaRs<typename WgmmaOp<T, float, kKeys>::RS>(
          score, q[i], AttentionDescriptor<Config::kPitch>(keys, 0) + i % kSteps * 2, i > 0);
    }
    CommitWgmma();
  }

  // Computes the warp's rows of MultiplyKeys again, without the other warps.
  __device__ __forceinline__ void MultiplyKeysAgain(float (&score)[kKeys / 2], const uint32_t (&q)[kHeadSize / 16][4],
                                                    int stage) const {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
    const uint32_t keys = SharedAddress(this->Keys(stage));
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      float sum[2][4] = {};
#pragma unroll
      for (int i = 0; i < kHeadSize / 16; ++i) {
        const int column = 16 * i % Config::kTileColumns + lane / 8 % 2 * 8;
        uint32_t b[4];
        LoadMatrices(b, keys + 16 * i / Config::kTileColumns * Config::kKeyTileBytes +
                            Swizzled<Config::kPitch>(16 * j + row, column * kElementBytes));
        Mma<T>(sum[0], q[i], b[0], b[1]);
        Mma<T>(sum[1], q[i], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) score[8 * j + i] = sum[i / 4][i % 4];
    }
  }

  __device__ __forceinline__ void MultiplyValues(float (&out)[kHeadSize / 2], const uint32_t (&weight)[kKeys / 16][4],
                                                 const State& state, bool accumulate) const {
    WaitBarrier(this->ValuesFull(state.stage), state.parity);
    FenceRegisters(out);
    BeginWgmma();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const char* values = this->Values(state.stage) + i * 16 * Config::kPitch;
      WgmmaRs<typename WgmmaOp<T, float, kHeadSize>::RSTransposed>(
          out, weight[i], AttentionDescriptor<Config::kPitch>(values, Config::kKeyTileBytes), accumulate || i > 0);
    }
    CommitWgmma();
  }

  // Clears the values behind the end of a packed sequence, which are a neighbour's or stale: their weight is 0, but 0
  // times infinity is NaN. (All warpgroups of the pipeline write the same zeros, and so need not wait for each other.)
  __device__ __forceinline__ void ClearValues(int keys, const State& state) const {
    if (keys >= kKeys) return;
    WaitBarrier(this->ValuesFull(state.stage), state.parity);
#pragma unroll
    for (int i = 0; i < Config::kTiles; ++i) {
      char* values = this->Values(state.stage) + i * Config::kKeyTileBytes;
#pragma unroll 1
      for (int byte = keys * Config::kPitch + threadIdx.x % 128 * 16; byte < Config::kKeyTileBytes; byte += 128 * 16) {
        *reinterpret_cast<uint4*>(values + byte) = make_uint4(0, 0, 0, 0);
      }
    }
    FenceAsyncProxy();
    __syncwarp();
    SyncWarpgroup(barrier_);
  }

  __device__ __forceinline__ void FinishValues(float (&out)[kHeadSize / 2], int stage) const {
    WaitWgmma<0>();
    FenceRegisters(out);
    if (leader_) Arrive(this->ValuesEmpty(stage));
  }

  // A block's bits of the mask, in registers before the scores are ready.
  struct VisibleKeys {
    uint32_t bits[kKeys / 32];
    __device__ __forceinline__ VisibleKeys(const uint32_t* mask, int block) {
#pragma unroll
      for (int i = 0; i < kKeys / 32; ++i) bits[i] = mask[1 + block * (kKeys / 32) + i];
    }
    // The first `keys` of them.
    __device__ __forceinline__ explicit VisibleKeys(int keys) {
#pragma unroll
      for (int i = 0; i < kKeys / 32; ++i) {
        bits[i] = keys >= 32 * (i + 1) ? 0xffffffffu : (1u << max(keys - 32 * i, 0)) - 1;
      }
    }
  };
  __device__ __forceinline__ VisibleKeys Visible(const Tile& tile, int block) const {
    if constexpr (Config::kPacked) {
      return VisibleKeys(tile.length - block * kKeys);
    } else {
      return VisibleKeys(this->Mask(tile.number), block);
    }
  }

  // Of a variant. With `some_blind`, a query of the tile sees no key.
  __device__ __forceinline__ RowWindows OwnRows(const Tile& tile, bool some_blind) const {
    const int length = this->Length(tile);
    RowWindows rows;
    Places places;
    if constexpr (Config::kPacked) places = Places(this->p_.packed, tile.first_row, length);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      // Rows behind the end see what the last one sees, so that they have a maximum when it does.
      const int query = min(tile.first_query + 64 * group_ + FirstRow() + 8 * row, length - 1);
      rows.keys[row] = Window(this->p_, query, query, length);
      if (places.HaveGaps()) rows.keys[row] = Window(this->p_, places, query, length);
      rows.blind[row] = some_blind && !SeesAny(this->Mask(tile.number) + 1, rows.keys[row]);
      if (rows.blind[row]) rows.keys[row] = {0, length};
    }
    return rows;
  }

  // A sequence whose keys are all hidden attends to all of them alike.
  __device__ __forceinline__ void MaskScores(float (&score)[kKeys / 2], const VisibleKeys& visible, bool all_hidden,
                                             const RowWindows& rows, int block) const {
    if constexpr (Config::kVariant) return MaskKeys(score, visible.bits, rows, block * kKeys);
    if (!all_hidden) return MaskKeys(score, visible.bits);
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
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_CONSUMER_CUH_
