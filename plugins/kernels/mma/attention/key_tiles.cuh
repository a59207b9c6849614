// Which keys the queries of a tile see: tiles without any are not loaded.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_KEY_TILES_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_KEY_TILES_CUH_

#include "kernels/mma/attention/config.cuh"

namespace bertfuse::kernels::attention_mma {

// A tile of keys, with a bit for each that the mask shows and that is one of the sequence.
template <class Config>
struct KeyTile {
  static constexpr int kWords = Config::kKeys / 32;
  int first_key;
  uint32_t visible[kWords];

  __device__ __forceinline__ bool SeesAny() const {
    uint32_t any = 0;
#pragma unroll
    for (uint32_t word : visible) any |= word;
    return any != 0;
  }
  __device__ __forceinline__ bool SeesAll() const {
    uint32_t all = 0xffffffffu;
#pragma unroll
    for (uint32_t word : visible) all &= word;
    return all == 0xffffffffu;
  }
};

// The tiles of keys from `begin` to `end`, the window of a tile of queries. Where there is a mask, its bits are kept in
// shared memory, those of kMaskKeys keys at a time.
template <class Config>
class KeyTiles {
 public:
  static constexpr int kMaskKeys = 4096;

  // Of the tile's queries no key in front of `begin` and none from `end` on is in a window.
  __device__ __forceinline__ KeyTiles(const Parameters<typename Config::T>& p, const Tile& tile, uint32_t* words)
      : p_(p), tile_(tile), words_(words) {
    const int last_query = min(tile.first_query + Config::kQueries, tile.length) - 1;
    begin_ = max(tile.first_query - WindowLeft<Config>(p), 0) / Config::kKeys * Config::kKeys;
    end_ = min(last_query + WindowRight<Config>(p), tile.length - 1) + 1;
    mask_begin_ = -kMaskKeys;
    shown_end_ = p.mask == nullptr ? INT32_MAX : 0;
  }

  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ bool Has(int first_key) const { return first_key < end_; }

  // Called by the whole block, with keys that do not descend.
  __device__ __forceinline__ KeyTile<Config> At(int first_key) {
    KeyTile<Config> keys;
    keys.first_key = first_key;
    if (first_key >= shown_end_ && first_key >= mask_begin_ + kMaskKeys) ReadMask(first_key);
    const int left = tile_.length - first_key;
#pragma unroll
    for (int i = 0; i < keys.kWords; ++i)
      keys.visible[i] = left >= Config::kKeys ? 0xffffffffu : BitsBelow(left - 32 * i);
    if (first_key >= shown_end_) {
#pragma unroll
      for (int i = 0; i < keys.kWords; ++i) keys.visible[i] &= words_[(first_key - mask_begin_) / 32 + i];
    }
    return keys;
  }

  // The first tile from `first_key` on with a key to be seen, or one that Has() denies. Called by the whole block.
  __device__ __forceinline__ KeyTile<Config> FirstVisible(int first_key) {
    if (first_key < shown_end_) return At(first_key);
    KeyTile<Config> keys;
    keys.first_key = first_key;
#pragma unroll 1
    for (; Has(first_key); first_key += Config::kKeys) {
      keys = At(first_key);
      if (keys.SeesAny()) return keys;
    }
    keys.first_key = first_key;
    return keys;
  }

  // Whether the mask, which there is, shows that token.
  __device__ __forceinline__ bool Shows(int token) const {
    const auto* word =
        static_cast<const uint32_t*>(p_.mask) + ((int64_t{tile_.first_row} + token) << (p_.mask_is_int64 ? 1 : 0));
    return (word[0] | word[p_.mask_is_int64 ? 1 : 0]) != 0;
  }

 private:
  // The key's entry in the mask, its halves' bits together, without a branch, so that loads do not wait for each other.
  __device__ __forceinline__ uint32_t MaskOf(int key) const {
    const auto* word = static_cast<const uint32_t*>(p_.mask);
    word += (int64_t{tile_.first_row} + min(key, end_ - 1)) << (p_.mask_is_int64 ? 1 : 0);
    return word[0] | word[p_.mask_is_int64 ? 1 : 0];
  }

  __device__ __forceinline__ void ReadMask(int first_key) {
    if (mask_begin_ >= 0) __syncthreads();  // all are done with the bits before
    mask_begin_ = first_key;
    const int tiles = (min(end_ - first_key, kMaskKeys) + Config::kKeys - 1) / Config::kKeys;
    const int lane = threadIdx.x % 32, words = tiles * KeyTile<Config>::kWords;
    bool all = true;
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int word = threadIdx.x / 32; word < words; word += kAtOnce * Config::kWarps) {
      uint32_t entry[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) entry[i] = MaskOf(first_key + 32 * (word + i * Config::kWarps) + lane);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int own = word + i * Config::kWarps;
        const uint32_t inside = BitsBelow(end_ - first_key - 32 * own);
        const uint32_t shown = __ballot_sync(0xffffffffu, entry[i] != 0) & inside;
        if (lane == 0 && own < words) words_[own] = shown;
        all &= shown == inside;
      }
    }
    // Where the mask hides nothing, which is common, what follows does not look at it.
    shown_end_ = __syncthreads_and(all) ? first_key + kMaskKeys : 0;
  }

  const Parameters<typename Config::T>& p_;
  const Tile& tile_;
  uint32_t* words_;
  int begin_, end_, mask_begin_;
  int shown_end_;  // the mask hides no key in front of it that is not in front of mask_begin_
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_KEY_TILES_CUH_
