// A team of the Hopper attention kernel: its tiles, its shared memory, and the warps that load for it.
#ifndef BERTFUSE_KERNELS_ATTENTION_SM90_TEAM_CUH_
#define BERTFUSE_KERNELS_ATTENTION_SM90_TEAM_CUH_

#include "kernels/attention_sm90_shape.cuh"

namespace bertfuse::kernels {

__device__ __forceinline__ void LoadTile3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                                           uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(barrier))
      : "memory");
}

__device__ __forceinline__ void PrefetchL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

struct AttentionTile {
  int first_query, head, batch;
  uint32_t round;  // counts the team's tiles
};

// One team, as each of its threads sees it.
template <class Shape>
class AttentionSm90Team {
  using T = typename Shape::T;
  static constexpr int kKeys = Shape::kKeys, kHeadSize = Shape::kHeadSize;
  static constexpr uint32_t kQueryBuffers = Shape::kQueryBuffers, kMaskBuffers = Shape::kMaskBuffers;

 protected:
  using Ring = RingPosition<Shape::kStages>;

 public:
  __device__ __forceinline__ AttentionSm90Team(const AttentionSm90Parameters& parameters, char* shared, int team)
      : p_(parameters), shared_(shared + team * Shape::kTeamBytes), team_(team) {
    shared += Shape::kTeams * Shape::kTeamBytes;
    barriers_ = reinterpret_cast<uint64_t*>(shared) + team * Shape::kBarriers;
    mask_words_ = Shape::MaskWords(p_.sequence);
    mask_ = reinterpret_cast<uint32_t*>(shared + Shape::kBarrierBytes) + team * kMaskBuffers * mask_words_;
  }

  // By one thread: these instructions take their address from the warp, so that several threads take turns, slowly.
  __device__ __forceinline__ void InitBarriers() const {
#pragma unroll
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      InitBarrier(KeysFull(stage), 1);
      InitBarrier(KeysEmpty(stage), 4 * Shape::kWarpgroups);
      InitBarrier(ValuesFull(stage), 1);
      InitBarrier(ValuesEmpty(stage), Shape::kWarpgroups);
    }
#pragma unroll
    for (uint32_t round = 0; round < kQueryBuffers; ++round) {
      InitBarrier(QueriesFull(round), 1);
      InitBarrier(QueriesEmpty(round), Shape::kWarpgroups);
    }
#pragma unroll
    for (uint32_t round = 0; round < kMaskBuffers; ++round) {
      InitBarrier(MaskFull(round), 1);
      InitBarrier(MaskEmpty(round), Shape::kWarpgroups + 1);
    }
  }

  // By one thread.
  __device__ __forceinline__ void Load() const {
    const int hidden = p_.heads * kHeadSize;
    Ring ring;
    ForEachTile([&](const AttentionTile& tile) {
      const int column = tile.head * kHeadSize;
      WaitBarrier(QueriesEmpty(tile.round), QueriesParity(tile.round) ^ 1);
      ArriveExpecting(QueriesFull(tile.round), Shape::kWarpgroups * Shape::kGroupBytes);
      for (int group = 0; group < Shape::kWarpgroups; ++group) {
        LoadRows<64>(Queries(tile.round, group), column, tile.first_query + 64 * group, tile.batch,
                     QueriesFull(tile.round));
      }
      int blocks = SureBlocks();
      for (int block = 0; block < blocks; ++block) {
        WaitBarrier(KeysEmpty(ring.stage), ring.parity ^ 1);
        ArriveExpecting(KeysFull(ring.stage), Shape::kBlockBytes);
        LoadRows<kKeys>(Keys(ring.stage), hidden + column, block * kKeys, tile.batch, KeysFull(ring.stage));
        WaitBarrier(ValuesEmpty(ring.stage), ring.parity ^ 1);
        ArriveExpecting(ValuesFull(ring.stage), Shape::kBlockBytes);
        LoadRows<kKeys>(Values(ring.stage), 2 * hidden + column, block * kKeys, tile.batch, ValuesFull(ring.stage));
        ring.Advance();
        if (block + 1 == SureBlocks()) {
          if (block + 1 < AllBlocks()) blocks = max(blocks, WaitForMask(tile));
          ArriveAtOwn(MaskEmpty(tile.round));
        }
      }
    });
  }

  // By one warp: a bit for each key that is seen, and the number of blocks up to the last such key.
  __device__ __forceinline__ void ReadMask() const {
    const int lane = threadIdx.x % 32;
    ForEachTile([&](const AttentionTile& tile) {
      WaitBarrier(MaskEmpty(tile.round), MaskParity(tile.round) ^ 1);
      const int last = p_.mask == nullptr ? SeeAll(tile, lane) : SeeMask(tile, lane);
      if (lane == 0) {
        Mask(tile.round)[0] = last > 0 ? (last * 32 + kKeys - 1) / kKeys : AllBlocks() | kAllHidden;
        ArriveAtOwn(MaskFull(tile.round));
      }
    });
  }

 protected:
  static constexpr uint32_t kAllHidden = 1u << 31;

  // For the first tiles, far below the 2^22 where this would no longer be right.
  __device__ __forceinline__ static int Divide(int value, float inverse) {
    return static_cast<int>((static_cast<float>(value) + 0.5f) * inverse);
  }

  // Calls f(const AttentionTile&); steps to the next tile are given, to do without divisions.
  template <class F>
  __device__ __forceinline__ void ForEachTile(F&& f) const {
    int index = team_ * gridDim.x + blockIdx.x;
    const int row = Divide(index, p_.inverse_query_tiles), batch = Divide(row, p_.inverse_heads);
    AttentionTile tile = {(index - row * p_.query_tiles) * Shape::kQueries, row - batch * p_.heads, batch, 0};
    for (; index < p_.tiles; index += Shape::kTeams * gridDim.x) {
      f(tile);
      ++tile.round;
      tile.first_query += p_.step_first_query;
      tile.head += p_.step_head;
      tile.batch += p_.step_batch;
      if (tile.first_query >= p_.query_tiles * Shape::kQueries) {
        tile.first_query -= p_.query_tiles * Shape::kQueries;
        ++tile.head;
      }
      if (tile.head >= p_.heads) {
        tile.head -= p_.heads;
        ++tile.batch;
      }
    }
  }

  __device__ __forceinline__ int AllBlocks() const { return (mask_words_ - 1) / (kKeys / 32); }
  // Blocks of keys that are fetched without waiting for the mask.
  __device__ __forceinline__ int SureBlocks() const { return min(AllBlocks(), 128 / kKeys); }

  __device__ __forceinline__ char* Keys(int stage) const { return shared_ + stage * Shape::kBlockBytes; }
  __device__ __forceinline__ char* Values(int stage) const { return Keys(Shape::kStages + stage); }
  __device__ __forceinline__ char* Queries(uint32_t round, int group) const {
    return Keys(2 * Shape::kStages) + (round % kQueryBuffers * Shape::kWarpgroups + group) * Shape::kGroupBytes;
  }
  __device__ __forceinline__ uint32_t* Mask(uint32_t round) const { return mask_ + round % kMaskBuffers * mask_words_; }
  __device__ __forceinline__ uint64_t* KeysFull(int stage) const { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* KeysEmpty(int stage) const { return KeysFull(Shape::kStages + stage); }
  __device__ __forceinline__ uint64_t* ValuesFull(int stage) const { return KeysFull(2 * Shape::kStages + stage); }
  __device__ __forceinline__ uint64_t* ValuesEmpty(int stage) const { return KeysFull(3 * Shape::kStages + stage); }
  __device__ __forceinline__ uint64_t* QueriesFull(uint32_t round) const {
    return KeysFull(4 * Shape::kStages + round % kQueryBuffers);
  }
  __device__ __forceinline__ uint64_t* QueriesEmpty(uint32_t round) const { return QueriesFull(round) + kQueryBuffers; }
  __device__ __forceinline__ uint64_t* MaskFull(uint32_t round) const {
    return KeysFull(4 * Shape::kStages + 2 * kQueryBuffers + round % kMaskBuffers);
  }
  __device__ __forceinline__ uint64_t* MaskEmpty(uint32_t round) const { return MaskFull(round) + kMaskBuffers; }
  __device__ __forceinline__ static uint32_t QueriesParity(uint32_t round) { return round / kQueryBuffers & 1; }
  __device__ __forceinline__ static uint32_t MaskParity(uint32_t round) { return round / kMaskBuffers & 1; }

  // Returns how many blocks of keys are used.
  __device__ __forceinline__ int WaitForMask(const AttentionTile& tile) const {
    WaitBarrier(MaskFull(tile.round), MaskParity(tile.round));
    return Mask(tile.round)[0] & ~kAllHidden;
  }

 private:
  // Both write a tile's bits and return the number of words up to the last bit.
  __device__ __forceinline__ int SeeAll(const AttentionTile& tile, int lane) const {
    // By one lane, which then tells the readers: racecheck does not follow others' writes through __syncwarp to a
    // barrier.
#pragma unroll 1
    for (int word = 0; lane == 0 && word < mask_words_ - 1; ++word) {
      const int keys = p_.sequence - word * 32;
      Mask(tile.round)[1 + word] = keys >= 32 ? 0xffffffffu : keys > 0 ? (1u << keys) - 1 : 0;
    }
    return (p_.sequence + 31) / 32;
  }

  __device__ __forceinline__ int SeeMask(const AttentionTile& tile, int lane) const {
    constexpr int kAtOnce = 4;
    const int words = mask_words_ - 1, halves = p_.mask_is_int64 ? 2 : 1;
    const int32_t* mask =
        static_cast<const int32_t*>(p_.mask) + static_cast<int64_t>(tile.batch) * p_.sequence * halves;
    int last = 0;
    if (tile.round == 0) {
#pragma unroll 1
      for (int line = lane * 32; line < p_.sequence * halves; line += 32 * 32) PrefetchL2(mask + line);
    }
#pragma unroll 1
    for (int word = 0; word < words; word += kAtOnce) {
      const int first = word * 32 + lane;
      int32_t value[kAtOnce];  // no branch between the loads: they would wait for each other
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t* at = mask + min(first + i * 32, p_.sequence - 1) * halves;
        value[i] = at[0] | at[halves - 1];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t seen = __ballot_sync(0xffffffffu, value[i] != 0 && first + i * 32 < p_.sequence);
        if (seen != 0) last = word + i + 1;
        if (lane == 0 && word + i < words) Mask(tile.round)[1 + word + i] = seen;
      }
    }
    return last;
  }

  template <int kRows>
  __device__ __forceinline__ void LoadRows(char* to, int column, int row, int batch, uint64_t* barrier) const {
#pragma unroll
    for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; j += 64) {
        LoadTile3d(to + (i * kRows + j) * Shape::kPitch, &p_.qkv_map, column + 64 * i, row + j, batch, barrier);
      }
    }
  }

 protected:
  const AttentionSm90Parameters& p_;
  char* shared_;
  int team_;
  uint64_t* barriers_;
  int mask_words_;
  uint32_t* mask_;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_SM90_TEAM_CUH_
