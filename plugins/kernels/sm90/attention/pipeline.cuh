// What producers and consumers of the Hopper attention kernel share: a ring of stages with keys and values, buffers of
// queries and masks, and their mbarriers.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_PIPELINE_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_PIPELINE_CUH_

#include "kernels/sm90/attention/tile_scheduler.cuh"
#include "kernels/sm90/attention/window.cuh"
#include "kernels/sm90/pipeline_state.cuh"
#include "kernels/sm90/ptx/barrier.cuh"

namespace bertfuse::kernels::attention_sm90 {

// One pipeline, as each of its threads sees it.
template <class Config>
class Pipeline {
  static constexpr int kKeys = Config::kKeys;
  static constexpr uint32_t kQueryBuffers = Config::kQueryBuffers, kMaskBuffers = Config::kMaskBuffers;

 protected:
  using State = PipelineState<Config::kStages>;
  using Tile = std::conditional_t<Config::kPacked, NumberedPackedTile, attention_sm90::Tile>;

 public:
  __device__ __forceinline__ Pipeline(const Parameters& parameters, char* shared, int index)
      : p_(parameters), shared_(shared + index * Config::kPipelineBytes), scheduler_(parameters, index) {
    shared += Config::kPipelines * Config::kPipelineBytes;
    barriers_ = reinterpret_cast<uint64_t*>(shared) + index * Config::kBarriers;
    mask_words_ = Config::MaskWords(p_.sequence);
    mask_ = reinterpret_cast<uint32_t*>(shared + Config::kBarrierBytes) + index * kMaskBuffers * mask_words_;
  }

  // Called by one thread: mbarrier.init takes its address from a uniform register, so several threads would execute it
  // one after the other.
  __device__ __forceinline__ void InitBarriers() const {
#pragma unroll
    for (int stage = 0; stage < Config::kStages; ++stage) {
      InitBarrier(KeysFull(stage), 1);
      InitBarrier(KeysEmpty(stage), 4 * Config::kWarpgroups);
      InitBarrier(ValuesFull(stage), 1);
      InitBarrier(ValuesEmpty(stage), Config::kWarpgroups);
      if constexpr (Config::kVariant) InitBarrier(KeysRotated(stage), 4 * Config::kWarpgroups);
    }
#pragma unroll
    for (uint32_t number = 0; number < kQueryBuffers; ++number) {
      InitBarrier(QueriesFull(number), 1);
      InitBarrier(QueriesEmpty(number), Config::kWarpgroups);
    }
#pragma unroll
    for (uint32_t number = 0; number < kMaskBuffers; ++number) {
      InitBarrier(MaskFull(number), 1);
      InitBarrier(MaskEmpty(number), 128 * Config::kWarpgroups + 1);
    }
  }

 protected:
  // Beside the number of key blocks in a mask's first word. In a variant's are the range of blocks, and whether one of
  // the tile's queries sees none of the keys: then these are all.
  static constexpr uint32_t kAllHidden = 1u << 31;
  static constexpr int kBeginBit = 16;

  // Calls f(const Tile&) for the pipeline's tiles, which come in the same order to all of its threads.
  template <class F>
  __device__ __forceinline__ void ForEachTile(F&& f) const {
    if constexpr (Config::kPacked) {
#pragma unroll 1
      for (uint32_t number = 0;; ++number) {
        WaitBarrier(MaskFull(number), MaskParity(number));
        const Tile tile = {*PackedTileAt(number), number};
        if (tile.length == 0) return;
        f(tile);
      }
    } else {
      scheduler_.ForEachTile(f);
    }
  }

  // The length of a tile's sequence.
  __device__ __forceinline__ int Length(const Tile& tile) const {
    if constexpr (Config::kPacked) {
      return tile.length;
    } else {
      return SequenceInfo(p_, tile.batch).length();
    }
  }
  // Its first row among all.
  __device__ __forceinline__ int64_t FirstRowOf(const Tile& tile) const {
    if constexpr (Config::kPacked) {
      return tile.first_row;
    } else {
      return SequenceInfo(p_, tile.batch).first_row();
    }
  }
  // Where the keys and values of a variant's head of queries are, counted through the heads of Q, K and V.
  __device__ __forceinline__ int KeyHead(int head) const {
    return p_.heads + static_cast<int>((static_cast<float>(head) + 0.5f) * p_.kv_heads_per_head);
  }
  __device__ __forceinline__ int ValueHead(int head) const { return KeyHead(head) + p_.kv_heads; }

  // Blocks of that many packed keys.
  __device__ __forceinline__ static int BlocksOf(int length) { return (length + kKeys - 1) / kKeys; }

  __device__ __forceinline__ int AllBlocks() const { return (mask_words_ - 1) / (kKeys / 32); }
  // Blocks of keys that are fetched without waiting for the mask.
  __device__ __forceinline__ int BlocksBeforeMask() const { return min(AllBlocks(), 128 / kKeys); }
  // The mask's buffer, which holds the tile where sequences are packed.
  __device__ __forceinline__ PackedTile* PackedTileAt(uint32_t number) const {
    return reinterpret_cast<PackedTile*>(Mask(number));
  }

  __device__ __forceinline__ char* Keys(int stage) const { return shared_ + stage * Config::kKeyBlockBytes; }
  __device__ __forceinline__ char* Values(int stage) const { return Keys(Config::kStages + stage); }
  __device__ __forceinline__ char* Queries(uint32_t number, int group) const {
    return Keys(2 * Config::kStages) +
           (number % kQueryBuffers * Config::kWarpgroups + group) * Config::kWarpgroupQueryBytes;
  }
  __device__ __forceinline__ uint32_t* Mask(uint32_t number) const {
    return mask_ + number % kMaskBuffers * mask_words_;
  }
  __device__ __forceinline__ uint64_t* KeysFull(int stage) const { return barriers_ + stage; }
  __device__ __forceinline__ uint64_t* KeysEmpty(int stage) const { return KeysFull(Config::kStages + stage); }
  __device__ __forceinline__ uint64_t* ValuesFull(int stage) const { return KeysFull(2 * Config::kStages + stage); }
  __device__ __forceinline__ uint64_t* ValuesEmpty(int stage) const { return KeysFull(3 * Config::kStages + stage); }
  __device__ __forceinline__ uint64_t* QueriesFull(uint32_t number) const {
    return KeysFull(4 * Config::kStages + number % kQueryBuffers);
  }
  __device__ __forceinline__ uint64_t* QueriesEmpty(uint32_t number) const {
    return QueriesFull(number) + kQueryBuffers;
  }
  __device__ __forceinline__ uint64_t* MaskFull(uint32_t number) const {
    return KeysFull(4 * Config::kStages + 2 * kQueryBuffers + number % kMaskBuffers);
  }
  __device__ __forceinline__ uint64_t* MaskEmpty(uint32_t number) const { return MaskFull(number) + kMaskBuffers; }
  // Where a variant's consumers have rotated a stage's keys.
  __device__ __forceinline__ uint64_t* KeysRotated(int stage) const {
    return KeysFull(4 * Config::kStages + 2 * (kQueryBuffers + kMaskBuffers) + stage);
  }
  __device__ __forceinline__ static uint32_t QueriesParity(uint32_t number) { return number / kQueryBuffers & 1; }
  __device__ __forceinline__ static uint32_t MaskParity(uint32_t number) { return number / kMaskBuffers & 1; }

  // Returns how many blocks of keys are used.
  __device__ __forceinline__ int WaitForMask(const Tile& tile) const {
    if constexpr (Config::kPacked) {
      return BlocksOf(tile.length);
    } else {
      WaitBarrier(MaskFull(tile.number), MaskParity(tile.number));
      return Mask(tile.number)[0] & ~kAllHidden;
    }
  }

  // The blocks of keys that a variant's producer loads for a tile.
  __device__ __forceinline__ KeyRange WaitForBlocks(const Tile& tile) const {
    if constexpr (Config::kPacked) {
      return BlocksInWindow(tile, tile.first_query, Config::kQueries);
    } else {
      const int blocks = this->WaitForMask(tile);
      return {blocks >> kBeginBit, blocks & ((1 << kBeginBit) - 1)};
    }
  }
  // Those that some of a tile's queries see, from `first` on.
  __device__ __forceinline__ KeyRange BlocksInWindow(const Tile& tile, int first, int queries) const {
    const int length = Length(tile);
    return attention_sm90::BlocksOf<kKeys>(Window(p_, first, min(first + queries, length) - 1, length));
  }

  const Parameters& p_;
  char* shared_;
  TileScheduler<Config> scheduler_;
  uint64_t* barriers_;
  int mask_words_;
  uint32_t* mask_;
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_PIPELINE_CUH_
