// Which keys the queries of a tile see: tiles without any are not loaded.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_KEY_TILES_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_KEY_TILES_CUH_

#include "kernels/mma/attention/tiles.cuh"

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
    mask_begin_ = begin_ = max(tile.first_query - WindowLeft<Config>(p), 0) / Config::kKeys * Config::kKeys;
    end_ = min(last_query + WindowRight<Config>(p), tile.length - 1) + 1;
    shown_end_ = p.mask == nullptr ? INT32_MAX : 0;
    hides_ = sees_any_ = false;
  }

  // Entries of the mask on their way to bits in shared memory, those of kCount words for each warp.
  template <int kCount>
  struct MaskEntries {
    uint32_t low[kCount], high[kCount];  // halves of an entry, or twice the same
  };
  using FirstMaskEntries = MaskEntries<4>;  // of 512 keys: most sequences'

  // Those that StoreMask() wants first.
  template <class Entries = FirstMaskEntries>
  __device__ __forceinline__ Entries LoadMask() const {
    return LoadMask<Entries>(static_cast<int>(ThreadNow()) / 32);
  }

  // Stores the warp's words of bits, and returns whether they hide nothing. They are to be read behind SetShown().
  template <int kCount>
  __device__ __forceinline__ bool StoreMask(MaskEntries<kCount> entries) {
    if (p_.mask == nullptr) return true;
    const int tiles = (min(end_ - mask_begin_, kMaskKeys) + Config::kKeys - 1) / Config::kKeys;
    const int lane = threadIdx.x % 32, words = tiles * KeyTile<Config>::kWords;
    bool all = true;
#pragma unroll 1
    for (int word = threadIdx.x / 32;;) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int own = word + i * Config::kWarps;
        const uint32_t inside = BitsBelow(end_ - mask_begin_ - 32 * own);
        const uint32_t shown = __ballot_sync(0xffffffffu, (entries.low[i] | entries.high[i]) != 0) & inside;
        if (lane == 0 && own < words) words_[own] = shown;
        all &= shown == inside;
      }
      word += kCount * Config::kWarps;
      if (word >= words) return all;
      entries = LoadMask<MaskEntries<kCount>>(word);
    }
  }

  // Where the mask hides nothing, which is common, what follows does not look at it. A barrier of the whole block.
  __device__ __forceinline__ void SetShown(bool all) {
    const bool everywhere = __syncthreads_and(all);
    hides_ |= !everywhere;
    if (p_.mask != nullptr) shown_end_ = everywhere ? mask_begin_ + kMaskKeys : 0;
  }

  // Whether a query may see no key, the same for the whole block; known behind the last tile.
  __device__ __forceinline__ bool MayBlind() const {
    const bool windowed = min(WindowLeft<Config>(p_), WindowRight<Config>(p_)) < kNoEnd;
    return hides_ && (windowed || p_.hidden_alike || !sees_any_);
  }

  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ bool Has(int first_key) const { return first_key < end_; }

  // Called by the whole block, with the first tile or what FirstVisible() found last.
  __device__ __forceinline__ KeyTile<Config> At(int first_key) {
    KeyTile<Config> keys;
    keys.first_key = first_key;
    const int left = tile_.length - first_key;
#pragma unroll
    for (int i = 0; i < keys.kWords; ++i)
      keys.visible[i] = left >= Config::kKeys ? 0xffffffffu : BitsBelow(left - 32 * i);
    if (first_key >= shown_end_) {
#pragma unroll
      for (int i = 0; i < keys.kWords; ++i) keys.visible[i] &= words_[(first_key - mask_begin_) / 32 + i];
    }
    sees_any_ |= keys.SeesAny();
    return keys;
  }

  // The first tile from `first_key` on with a key to be seen, or one that Has() denies. Called by the whole block, with
  // keys that do not descend.
  __device__ __forceinline__ KeyTile<Config> FirstVisible(int first_key) {
#pragma unroll 1
    for (; Has(first_key); first_key += Config::kKeys) {
      if (first_key >= shown_end_ && first_key >= mask_begin_ + kMaskKeys) {
        __syncthreads();  // all are done with the bits before
        mask_begin_ = first_key;
        SetShown(StoreMask(LoadMask<MaskEntries<1>>()));  // rare, and so with the least code
      }
      const KeyTile<Config> keys = At(first_key);
      if (keys.SeesAny()) return keys;
    }
    return {first_key, {}};
  }

  // Whether the mask, which there is, shows that token.
  __device__ __forceinline__ bool Shows(int token) const {
    const auto* word =
        static_cast<const uint32_t*>(p_.mask) + ((int64_t{tile_.first_row} + token) << (p_.mask_is_int64 ? 1 : 0));
    return (word[0] | word[p_.mask_is_int64 ? 1 : 0]) != 0;
  }

 private:
  // Of words `word` + i kWarps, without a branch, so that loads do not wait for each other.
  template <class Entries>
  __device__ __forceinline__ Entries LoadMask(int word) const {
    Entries entries = {};
    if (p_.mask == nullptr) return entries;
    const int wide = p_.mask_is_int64 ? 1 : 0, lane = LaneNow();
    const auto* row = static_cast<const uint32_t*>(p_.mask) + (int64_t{tile_.first_row} << wide);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(entries.low) / sizeof(uint32_t)); ++i) {
      const int key = min(mask_begin_ + 32 * (word + i * Config::kWarps) + lane, end_ - 1);
      entries.low[i] = *RowOf(row, key, 4 << wide);
      entries.high[i] = *RowOf(row + wide, key, 4 << wide);
    }
    return entries;
  }

  const Parameters<typename Config::T>& p_;
  const Tile& tile_;
  uint32_t* words_;
  int begin_, end_, mask_begin_;
  int shown_end_;  // the mask hides no key in front of it that is not in front of mask_begin_
  bool hides_;     // the mask hides a key that was looked at
  bool sees_any_;  // a key of the tiles so far is one of the sequence that the mask shows
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_KEY_TILES_CUH_
