// The producers of the Hopper attention kernel: for each pipeline a thread that loads by TMA, and a warp that reads
// masks.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_PRODUCER_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_PRODUCER_CUH_

#include "kernels/ptx/scalar.cuh"
#include "kernels/sm90/attention/pipeline.cuh"
#include "kernels/sm90/ptx/tma.cuh"

namespace bertfuse::kernels::attention_sm90 {

template <class Config>
class Producer : Pipeline<Config> {
  using Base = Pipeline<Config>;
  using typename Base::State;
  using typename Base::Tile;
  static constexpr int kKeys = Config::kKeys;

 public:
  using Base::Base;

  // Called by one thread.
  __device__ __forceinline__ void Load() const {
    if constexpr (Config::kPacked) {
      LoadPacked();
    } else {
      LoadPadded();
    }
  }

  // Called by one warp.
  __device__ __forceinline__ void Plan() const {
    if constexpr (Config::kPacked) {
      FindTiles();
    } else {
      ReadMask();
    }
  }

 private:
  __device__ __forceinline__ void LoadPadded() const {
    const int hidden = this->p_.heads * Config::kHeadSize;
    State state;
    this->scheduler_.ForEachTile([&](const Tile& tile) {
      const int column = tile.head * Config::kHeadSize;
      WaitBarrier(this->QueriesEmpty(tile.number), this->QueriesParity(tile.number) ^ 1);
      ArriveExpectTx(this->QueriesFull(tile.number), Config::kWarpgroups * Config::kWarpgroupQueryBytes);
      for (int group = 0; group < Config::kWarpgroups; ++group) {
        LoadRows<64>(this->Queries(tile.number, group), column, tile.first_query + 64 * group, tile.batch,
                     this->QueriesFull(tile.number));
      }
      int block = 0, blocks = this->BlocksBeforeMask();
      if constexpr (Config::kVariant) {
        const KeyRange range = this->WaitForBlocks(tile);
        block = range.begin, blocks = range.end;
        Arrive(this->MaskEmpty(tile.number));
      }
#pragma unroll 1
      for (; block < blocks; ++block) {
        WaitBarrier(this->KeysEmpty(state.stage), state.parity ^ 1);
        ArriveExpectTx(this->KeysFull(state.stage), Config::kKeyBlockBytes);
        LoadRows<kKeys>(this->Keys(state.stage),
                        Config::kVariant ? this->KeyHead(tile.head) * Config::kHeadSize : hidden + column,
                        block * kKeys, tile.batch, this->KeysFull(state.stage));
        WaitBarrier(this->ValuesEmpty(state.stage), state.parity ^ 1);
        ArriveExpectTx(this->ValuesFull(state.stage), Config::kKeyBlockBytes);
        LoadRows<kKeys, true>(this->Values(state.stage),
                              Config::kVariant ? this->ValueHead(tile.head) * Config::kHeadSize : 2 * hidden + column,
                              block * kKeys, tile.batch, this->ValuesFull(state.stage));
        state.Advance();
        if (!Config::kVariant && block + 1 == this->BlocksBeforeMask()) {
          if (block + 1 < this->AllBlocks()) blocks = max(blocks, this->WaitForMask(tile));
          Arrive(this->MaskEmpty(tile.number));
        }
      }
    });
  }

  __device__ __forceinline__ void LoadPacked() const {
    const int hidden = this->p_.heads * Config::kHeadSize;
    State state;
    this->ForEachTile([&](const Tile& tile) {
      const int column = tile.head * Config::kHeadSize;
      Arrive(this->MaskEmpty(tile.number));
      WaitBarrier(this->QueriesEmpty(tile.number), this->QueriesParity(tile.number) ^ 1);
      const int queries = min(tile.length - tile.first_query, Config::kQueries);
      ArriveExpectTx(this->QueriesFull(tile.number), Bytes(queries));
      for (int group = 0; group < Config::kWarpgroups; ++group) {
        LoadPackedRows<64>(this->Queries(tile.number, group), column, tile.first_row + tile.first_query + 64 * group,
                           queries - 64 * group, this->QueriesFull(tile.number));
      }
      int key = 0, end = tile.length;
      if constexpr (Config::kVariant) {
        const KeyRange range = this->WaitForBlocks(tile);
        key = range.begin * kKeys, end = min(end, range.end * kKeys);
      }
#pragma unroll 1
      for (; key < end; key += kKeys) {
        const int keys = min(tile.length - key, kKeys);
        WaitBarrier(this->KeysEmpty(state.stage), state.parity ^ 1);
        ArriveExpectTx(this->KeysFull(state.stage), Bytes(keys));
        LoadPackedRows<kKeys>(this->Keys(state.stage),
                              Config::kVariant ? this->KeyHead(tile.head) * Config::kHeadSize : hidden + column,
                              tile.first_row + key, keys, this->KeysFull(state.stage));
        WaitBarrier(this->ValuesEmpty(state.stage), state.parity ^ 1);
        ArriveExpectTx(this->ValuesFull(state.stage), Bytes(keys));
        LoadPackedRows<kKeys, true>(
            this->Values(state.stage),
            Config::kVariant ? this->ValueHead(tile.head) * Config::kHeadSize : 2 * hidden + column,
            tile.first_row + key, keys, this->ValuesFull(state.stage));
        state.Advance();
      }
    });
  }

  // By all lanes together: the first one hands the buffer over, and a lane that looked at the barrier only after the
  // consumers had returned it would take that phase for the one before, and wait forever. (ptxas has the lanes leave
  // their wait together anyway; nothing says that it has to.)
  __device__ __forceinline__ void WaitForEmptyMask(uint32_t number) const {
    WaitBarrier(this->MaskEmpty(number), this->MaskParity(number) ^ 1);
    __syncwarp();
  }

  // Tells the other threads which tiles are the pipeline's.
  __device__ __forceinline__ void FindTiles() const {
    PackedTileCursor<Config::kQueries> tiles(this->p_.packed, this->p_.heads, this->scheduler_.first(),
                                             Config::kPipelines * gridDim.x);
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      const PackedTile tile = tiles.Next();
      WaitForEmptyMask(number);
      if (threadIdx.x % 32 == 0) {
        *this->PackedTileAt(number) = tile;
        Arrive(this->MaskFull(number));
      }
      if (tile.length == 0) return;
    }
  }

  // Writes a bit for each visible key, and the number of blocks up to the last such key.
  __device__ __forceinline__ void ReadMask() const {
    const int lane = threadIdx.x % 32;
    this->scheduler_.ForEachTile([&](const Tile& tile) {
      WaitForEmptyMask(tile.number);
      const int last = this->p_.mask == nullptr ? MarkAllVisible(tile, lane) : MarkVisible(tile, lane);
      if constexpr (Config::kVariant) {
        __syncwarp();
        const bool some_blind = this->p_.mask != nullptr && __any_sync(0xffffffffu, IsBlind(tile, lane));
        const KeyRange blocks = this->BlocksInWindow(tile, tile.first_query, Config::kQueries);
        if (lane == 0) {
          this->Mask(tile.number)[0] =
              some_blind ? this->AllBlocks() | Base::kAllHidden
                         : blocks.begin << Base::kBeginBit | min(blocks.end, (last * 32 + kKeys - 1) / kKeys);
          Arrive(this->MaskFull(tile.number));
        }
      } else if (lane == 0) {
        this->Mask(tile.number)[0] = last > 0 ? (last * 32 + kKeys - 1) / kKeys : this->AllBlocks() | Base::kAllHidden;
        Arrive(this->MaskFull(tile.number));
      }
    });
  }

  // Whether one of the lane's share of queries sees no key.
  __device__ __forceinline__ bool IsBlind(const Tile& tile, int lane) const {
    const int length = this->Length(tile), end = min(tile.first_query + Config::kQueries, length);
    bool blind = false;
#pragma unroll 1
    for (int query = tile.first_query + lane; query < end; query += 32) {
      blind |= !SeesAny(this->Mask(tile.number) + 1, Window(this->p_, query, query, length));
    }
    return blind;
  }

  // Both write a tile's bits and return the number of words up to the last bit.
  __device__ __forceinline__ int MarkAllVisible(const Tile& tile, int lane) const {
    const SequenceInfo sequence(this->p_, tile.batch);
    // By one lane, which then tells the readers: racecheck does not follow others' writes through __syncwarp to a
    // barrier.
#pragma unroll 1
    for (int word = 0; lane == 0 && word < this->mask_words_ - 1; ++word) {
      const int keys = sequence.length() - word * 32;
      this->Mask(tile.number)[1 + word] = keys >= 32 ? 0xffffffffu : keys > 0 ? (1u << keys) - 1 : 0;
    }
    return (sequence.length() + 31) / 32;
  }

  __device__ __forceinline__ int MarkVisible(const Tile& tile, int lane) const {
    constexpr int kAtOnce = 4;
    const SequenceInfo sequence(this->p_, tile.batch);
    const int words = this->mask_words_ - 1, halves = this->p_.mask_is_int64 ? 2 : 1;
    const int32_t* mask = static_cast<const int32_t*>(this->p_.mask) + sequence.first_row() * halves;
    int last = 0;
    if (tile.number == 0) {
#pragma unroll 1
      for (int line = lane * 32; line < sequence.length() * halves; line += 32 * 32) PrefetchL2(mask + line);
    }
#pragma unroll 1
    for (int word = 0; word < words; word += kAtOnce) {
      const int first = word * 32 + lane;
      int32_t value[kAtOnce];  // no branch between the loads: they would wait for each other
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t* at = mask + min(first + i * 32, sequence.length() - 1) * halves;
        value[i] = at[0] | at[halves - 1];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t visible = __ballot_sync(0xffffffffu, value[i] != 0 && first + i * 32 < sequence.length());
        if (visible != 0) last = word + i + 1;
        if (lane == 0 && word + i < words) this->Mask(tile.number)[1 + word + i] = visible;
      }
    }
    return last;
  }

  template <bool kValues>
  __device__ __forceinline__ const CUtensorMap& Map() const {
    if constexpr (Config::kVariant && kValues) return Variant().values_map;
    return this->p_.qkv_map;
  }
  template <bool kValues>
  __device__ __forceinline__ const CUtensorMap& FewRowsMap() const {
    if constexpr (Config::kVariant && kValues) return Variant().few_values_map;
    return this->p_.few_rows_map;
  }
  __device__ __forceinline__ const VariantParameters& Variant() const {
    return static_cast<const VariantParameters&>(this->p_);
  }

  // Bytes that LoadPackedRows() loads for that many rows.
  __device__ __forceinline__ static uint32_t Bytes(int rows) {
    return (rows + kFewRows - 1) / kFewRows * kFewRows * Config::kHeadSize * sizeof(typename Config::T);
  }

  // Loads the first `rows` rows of a tile of kRows, or all of it. Up to kFewRows - 1 rows of a neighbour come along.
  template <int kRows, bool kValues = false>
  __device__ __forceinline__ void LoadPackedRows(char* to, int column, int row, int rows, uint64_t* barrier) const {
#pragma unroll
    for (int i = 0; i < Config::kTiles; ++i) {
#pragma unroll 1
      for (int j = 0; j < min(rows, kRows);) {
        const bool many = rows - j > 64 - kFewRows;
        TmaLoad2d(to + (i * kRows + j) * Config::kPitch, many ? &Map<kValues>() : &FewRowsMap<kValues>(),
                  column + 64 * i, row + j, barrier);
        j += many ? 64 : kFewRows;
      }
    }
  }

  template <int kRows, bool kValues = false>
  __device__ __forceinline__ void LoadRows(char* to, int column, int row, int batch, uint64_t* barrier) const {
#pragma unroll
    for (int i = 0; i < Config::kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; j += 64) {
        TmaLoad3d(to + (i * kRows + j) * Config::kPitch, &Map<kValues>(), column + 64 * i, row + j, batch, barrier);
      }
    }
  }
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_PRODUCER_CUH_
