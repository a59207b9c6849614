// A block's tile of queries, from loading it to storing its results.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_MAINLOOP_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_MAINLOOP_CUH_

#include <type_traits>

#include "kernels/mma/attention/key_tiles.cuh"
#include "kernels/mma/attention/positions.cuh"
#include "kernels/mma/attention/softmax.cuh"
#include "kernels/mma/attention/tiles.cuh"
#include "kernels/mma/attention/variant.cuh"

namespace bertfuse::kernels::attention_mma {

template <class Config>
class Mainloop {
 public:
  using T = typename Config::T;
  using Sums = Results<Config>;

  // `shared` has what SharedLayout says, `mask_words` a bit for each of KeyTiles' mask, `v_bias` room for a head's.
  __device__ __forceinline__ Mainloop(const Parameters<T>& p, const Tile& tile, char* shared, uint32_t* mask_words,
                                      T* v_bias)
      : p_(p),
        tile_(tile),
        shared_(shared),
        v_bias_(v_bias),
        rows_(tile),
        key_tiles_(p, tile, mask_words),
        positions_(p, tile, shared + p.position_offset) {
    if (Config::kVariants && p.packed.token_index != nullptr) places_ = Places(p.packed, tile.first_row, tile.length);
  }

  __device__ __forceinline__ void Compute() {
    // All that is waited for is asked for first, tiles of keys and values whatever the mask will say.
    const auto mask = key_tiles_.LoadMask();
    const QueryTile<Config> loaded = LoadQueries();
    const int first_key = key_tiles_.begin();
    int fetched = first_key;
    LoadKeys(first_key, 0);
    CommitCopies();
    LoadValues(first_key, 0);
    LoadValueBias();
    CommitCopies();
    if constexpr (Config::kStages == 2) {
      const int second = first_key + Config::kKeys;
      if (p_.queries_apart && key_tiles_.Has(second)) LoadTile(fetched = second, 1);
      if constexpr (Config::kPositions) positions_.Load(places_, first_key);
      CommitCopies();
    }
    const bool all_shown = key_tiles_.StoreMask(mask);
    loaded.Store(shared_ + p_.query_offset);
    key_tiles_.SetShown(all_shown);  // queries have arrived, too
    const KeyTile<Config> keys = key_tiles_.At(first_key);
    const Queries<Config> queries(OwnRows());
    OnlineSoftmax<Config> softmax;
    Sums out = {};
    if constexpr (Config::kStages == 2) {
      MultiplyInTwoStages(out, softmax, queries, keys, fetched);
    } else {
      MultiplyInOneStage(out, softmax, queries);
    }
    if (key_tiles_.MayBlind()) AverageForBlind(out, softmax);
    WaitCopies<0>();  // of a tile that the mask hides
    __syncthreads();  // all warps are done with keys and values
    Store(out, softmax);
  }

 private:
  // A tile of keys and values arrives while another one is multiplied. `fetched`: a tile that was fetched before it was
  // known to be wanted.
  __device__ __forceinline__ void MultiplyInTwoStages(Sums& out, OnlineSoftmax<Config>& softmax,
                                                      const Queries<Config>& queries, KeyTile<Config> keys,
                                                      int fetched) {
    const int first_key = keys.first_key;
    int stage = 0;
    bool is_first = true;
#pragma unroll 1
    while (key_tiles_.Has(keys.first_key)) {
      is_first && !Config::kPositions ? WaitCopies<2>() : WaitCopies<0>();
      __syncthreads();  // the keys have arrived, and all warps are done with the tile before
      const KeyTile<Config> next = key_tiles_.FirstVisible(keys.first_key + Config::kKeys);
      if (key_tiles_.Has(next.first_key) && next.first_key != fetched) {
        if (is_first && fetched != first_key) WaitCopies<0>();  // of the tile whose place it takes
        LoadTile(next.first_key, stage ^ 1);
        CommitCopies();
      }
      if constexpr (Config::kPositions) {
        positions_.Multiply(queries, SharedAddress(Stage(stage)), KvColumn(), places_, keys.first_key);
        if (key_tiles_.Has(next.first_key)) positions_.Load(places_, next.first_key);
        CommitCopies();
      }
      const bool sees_any = MaySeeAny(p_, rows_, keys.first_key);
      Scores<Config> score;
      float scale = 1.0f;
      if (sees_any) {
        MultiplyKeys(score, queries, SharedAddress(Stage(stage)), LaneNow());
        scale = AddKeys(out, score, softmax, queries, keys);
      }
      if (is_first && !Config::kPositions) {
        WaitCopies<1>();
        __syncthreads();  // the values, too
      }
      is_first = false;
      if (sees_any) AddValues(out, score, softmax, scale, Stage(stage));
      keys = next;
      stage ^= 1;
    }
  }

  // A tile's values arrive while its keys are multiplied, and then the next tile's keys: half the shared memory, and
  // larger tiles, each with two barriers.
  __device__ __forceinline__ void MultiplyInOneStage(Sums& out, OnlineSoftmax<Config>& softmax,
                                                     const Queries<Config>& queries) {
    bool is_first = true;
    int first_key = key_tiles_.begin();
#pragma unroll 1
    while (key_tiles_.Has(first_key)) {
      WaitCopies<1>();
      __syncthreads();  // the keys have arrived, and all warps are done with the values before
      if (!is_first) LoadValues(first_key, 0);
      CommitCopies();
      const bool sees_any = MaySeeAny(p_, rows_, first_key);
      Scores<Config> score;
      if (sees_any) MultiplyKeys(score, queries, SharedAddress(Stage(0)), LaneNow());
      const KeyTile<Config> keys = key_tiles_.At(first_key);
      first_key = key_tiles_.FirstVisible(first_key + Config::kKeys).first_key;
      WaitCopies<0>();
      __syncthreads();  // the values have arrived, and all warps are done with the keys
      if (key_tiles_.Has(first_key)) LoadKeys(first_key, 0);
      CommitCopies();
      CommitCopies();  // in the first tile's place for values: WaitCopies<1>() is for keys alone
      if (sees_any) {
        const float scale = AddKeys(out, score, softmax, queries, keys);
        AddValues(out, score, softmax, scale, Stage(0));
      }
      is_first = false;
    }
  }

  __device__ __forceinline__ char* Stage(int stage) const { return shared_ + stage * Config::kStageBytes; }

  // The warp's rows of the queries, later of the results.
  __device__ __forceinline__ char* OwnRows() const {
    return shared_ + p_.query_offset + threadIdx.x / 32 % Config::kRowWarps * (Config::kRows * Config::kRowBytes);
  }

  __device__ __forceinline__ int Chunks() const { return p_.head_size / Config::kPerChunk; }

  // Of the tile's head in K, in V and in their biases.
  __device__ __forceinline__ int KvColumn() const {
    return static_cast<int>((static_cast<float>(tile_.head) + 0.5f) * p_.kv_heads_per_head) * p_.head_size;
  }

  __device__ __forceinline__ void LoadKeys(int first_key, int stage) const {
    LoadKeyTile<Config>(Stage(stage), KeyRow(first_key), p_.pitch, tile_.length - first_key, Chunks());
  }

  __device__ __forceinline__ void LoadValues(int first_key, int stage) const {
    LoadKeyTile<Config>(Stage(stage) + Config::kKeyTileBytes, KeyRow(first_key) + p_.value_offset, p_.pitch,
                        tile_.length - first_key, Chunks());
  }

  // Zeros where there is none. By whole warps.
  __device__ __forceinline__ void LoadValueBias() const {
    const T* bias = p_.v_bias == nullptr ? nullptr : p_.v_bias + KvColumn();
#pragma unroll
    for (int first = 0; first < Config::kBiasWords; first += Config::kThreads) {
      const int word = first + static_cast<int>(ThreadNow()), column = word * Config::kPerWord;
      if (word >= Config::kBiasWords) continue;
      CopyAsync<4>(v_bias_ + column, bias + column, bias != nullptr && column < p_.head_size);
    }
  }

  __device__ __forceinline__ void LoadTile(int first_key, int stage) const {
    LoadKeys(first_key, stage);
    LoadValues(first_key, stage);
  }

  // Found anew for each tile: kept, the address of the sequence's first key would want two registers.
  __device__ __forceinline__ const T* KeyRow(int key) const {
    return Hidden(RowOf(p_.k, Hidden(tile_.first_row) + key, p_.pitch) + KvColumn());
  }

  __device__ __forceinline__ QueryTile<Config> LoadQueries() const {
    const int64_t column = static_cast<int64_t>(tile_.head) * p_.head_size;
    const T* q = RowOf(p_.q, tile_.first_row + tile_.first_query, p_.pitch) + column;
    const T* bias = p_.q_bias == nullptr ? nullptr : p_.q_bias + column;
    return {q, p_.pitch, bias, tile_.length - tile_.first_query, Chunks()};
  }

  // What the warp's scores of one more tile of keys change in sums so far. Returns what scores are to be multiplied by.
  __device__ __forceinline__ float AddKeys(Sums& out, Scores<Config>& score, OnlineSoftmax<Config>& softmax,
                                           const Queries<Config>& queries, const KeyTile<Config>& keys) const {
    if constexpr (Config::kPositions) positions_.AddTo(score);
    const float scale = TransformScores(score, queries, keys);
    const bool by_places = places_.HaveGaps() && min(WindowLeft<Config>(p_), WindowRight<Config>(p_)) < kNoEnd;
    if (by_places || !SeesAll(p_, rows_, keys)) HideKeys(score, p_, rows_, keys, places_);
    if constexpr (Config::kPositions) {
      if (p_.hidden_alike) HideFromHidden(score);
    }
    float correction[Config::kRowGroups];
    if (softmax.Advance(score, scale, correction)) {
#pragma unroll
      for (int i = 0; i < Config::kRowTiles * Config::kResultTiles * 4; ++i) {
        const int m = i / (Config::kResultTiles * 4);
        out[m][i / 4 % Config::kResultTiles][i % 4] *= correction[2 * m + i % 4 / 2];
      }
    }
    return scale;
  }

  // Makes all scores of queries -inf that the mask hides.
  __device__ __forceinline__ void HideFromHidden(Scores<Config>& score) const {
    constexpr uint32_t kNone[Config::kKeys / 32] = {};
    const int lane = LaneNow();
#pragma unroll
    for (int group = 0; group < Config::kRowGroups; ++group) {
      const int query = min(rows_.Own(group, lane), tile_.length - 1);
      if (!key_tiles_.Shows(query)) HideKeys<Config>(score, group, lane, kNone);
    }
  }

  __device__ __forceinline__ void AddValues(Sums& out, Scores<Config>& score, OnlineSoftmax<Config>& softmax,
                                            float scale, const char* stage) const {
    // As operands, which take half the registers that their float32 scores do.
    Weights<Config> weights;
    softmax.TakeWeights(weights, score, scale);
    const uint32_t values = SharedAddress(stage) + Config::kKeyTileBytes;
    if constexpr (!Config::kRollsLoops) {
      MultiplyValues<Config, Config::kKeySteps>(
          out, [&](RowOperands<Config>& operands, int step) { SetAll<Config>(operands, weights[step]); }, values, 0,
          LaneNow());
    } else {
#pragma unroll 1
      for (int step = 0; step < Config::kKeySteps; ++step) {
        MultiplyValues<Config, 1>(
            out, [&](RowOperands<Config>& operands, int) { SetAll<Config>(operands, weights[0]); }, values, step,
            LaneNow());
        MoveUp(weights);
      }
    }
  }

  // The first step's weights leave, and all others take the place of those before them: registers have fixed numbers.
  __device__ __forceinline__ static void MoveUp(Weights<Config>& weights) {
    constexpr int kWords = Config::kRowTiles * 4;
#pragma unroll
    for (int i = kWords; i < Config::kKeySteps * kWords; ++i) {
      weights[i / kWords - 1][i / 4 % Config::kRowTiles][i % 4] = weights[i / kWords][i / 4 % Config::kRowTiles][i % 4];
    }
  }

  // Returns what scores are then to be multiplied by.
  __device__ __forceinline__ float TransformScores(Scores<Config>& score, const Queries<Config>& queries,
                                                   const KeyTile<Config>& keys) const {
    const bool capped = Config::kVariants && !Config::kPositions && p_.soft_cap > 0.0f;
    const bool biased = Config::kVariants && p_.distance_bias != nullptr;
    if (!capped && !biased) return p_.scale_log2;
    if (capped) {
      CapScores<Config>(score, p_, queries, KvColumn());
    } else {
#pragma unroll
      for (int i = 0; i < Config::kRowTiles * Config::kKeys / 2; ++i) {
        score[i / (Config::kKeys / 2)][i / 4 % (Config::kKeys / 8)][i % 4] *= p_.scale_log2;
      }
    }
    if (biased) AddDistanceBias<Config>(score, p_, rows_, keys.first_key, tile_.head, places_);
    return 1.0f;
  }

  // Rows to which no key is visible attend to all alike.
  __device__ __forceinline__ void AverageForBlind(Sums& out, OnlineSoftmax<Config>& softmax) const {
    uint32_t weight[Config::kRowTiles][4];
    bool any = false;
#pragma unroll
    for (int group = 0; group < Config::kRowGroups; ++group) {
      const bool blind = softmax.HasSeenNone(group) && rows_.Own(group, LaneNow()) < tile_.length;
      if (blind) softmax.SetSum(group, tile_.length);
      any |= blind;
      weight[group / 2][group % 2] = weight[group / 2][2 + group % 2] = blind ? WordOfOnes<T>() : 0;
    }
    if (!__syncthreads_or(any)) return;
    WaitCopies<0>();  // of a tile that the mask hides
#pragma unroll 1
    for (int first_key = 0; first_key < tile_.length; first_key += Config::kKeys) {
      LoadKeyTileAndZeros<Config>(Stage(0) + Config::kKeyTileBytes, KeyRow(first_key) + p_.value_offset, p_.pitch,
                                  tile_.length - first_key, Chunks());
      CommitCopies();
      WaitCopies<0>();
      __syncthreads();
#pragma unroll 1
      for (int step = 0; step < Config::kKeySteps; ++step) {
        MultiplyValues<Config, 1>(
            out, [&](RowOperands<Config>& weights, int) { SetAll<Config>(weights, weight); },
            SharedAddress(Stage(0)) + Config::kKeyTileBytes, step, LaneNow());
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ T* ResultRow(int row) const {
    const int column = Hidden(tile_.head) * p_.head_size;  // not kept from when the queries were loaded
    return RowOf(p_.y, Hidden(tile_.first_row) + rows_.first + row, p_.y_pitch) + column;
  }

  __device__ __forceinline__ void Store(const Sums& out, const OnlineSoftmax<Config>& softmax) const {
    float inverse[Config::kRowGroups];
#pragma unroll
    for (int group = 0; group < Config::kRowGroups; ++group) inverse[group] = softmax.InverseSum(group);
    if constexpr (sizeof(T) == 2) {
      StorePairs(out, inverse);
    } else {
      StoreChunks(out, inverse);
    }
  }

  // A thread has pairs, which go through shared memory, so that rows leave in 16-byte chunks.
  __device__ __forceinline__ void StorePairs(const Sums& out, const float (&inverse)[Config::kRowGroups]) const {
    const int lane = LaneNow();
    char* staging = OwnRows();
    uint32_t bias[Config::kChunks];  // loaded ahead of stores that, for all the compiler knows, might change it
#pragma unroll
    for (int j = 0; j < Config::kChunks; ++j) {
      bias[j] = *reinterpret_cast<const uint32_t*>(v_bias_ + ResultColumn<Config>(j, 0, lane));
    }
#pragma unroll
    for (int j = 0; j < Config::kChunks; ++j) {
      const float2 add = UnpackPair<T>(bias[j]);
#pragma unroll
      for (int group = 0; group < Config::kRowGroups; ++group) {
        const float* x = &out[group / 2][j][group % 2 * 2];
        const int at = ChunkOffset<Config::kChunks>(lane / 4 + 8 * group, j) + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(staging + at) =
            PackPair<T>(fmaf(x[0], inverse[group], add.x), fmaf(x[1], inverse[group], add.y));
      }
    }
    __syncwarp();
    constexpr int kLanes = RowLoader<Config>::kLanes, kRowsAtOnce = 32 / kLanes;
    const int first = lane / kLanes, rows = rows_.length - rows_.first;
#pragma unroll
    for (int i = 0; i < Config::kChunks; i += kLanes) {
      const int chunk = i + lane % kLanes;
      if (chunk >= Chunks()) continue;
      uint32_t result[Config::kRows / kRowsAtOnce][4];
#pragma unroll
      for (int row = 0; row < Config::kRows; row += kRowsAtOnce) {
        LoadShared(result[row / kRowsAtOnce],
                   SharedAddress(staging) + ChunkOffset<Config::kChunks>(first + row, chunk));
      }
      T* y = ResultRow(first) + 8 * chunk;
#pragma unroll
      for (int row = 0; row < Config::kRows; row += kRowsAtOnce) {
        const uint32_t (&x)[4] = result[row / kRowsAtOnce];
        // By a plain assignment these are four stores of four bytes.
        if (first + row < rows) __stcg(reinterpret_cast<uint4*>(y), uint4{x[0], x[1], x[2], x[3]});
        y = RowOf(y, kRowsAtOnce, p_.y_pitch);
      }
    }
  }

  // A thread has chunks: four tiles' results of one column each.
  __device__ __forceinline__ void StoreChunks(const Sums& out, const float (&inverse)[Config::kRowGroups]) const {
    const int lane = LaneNow(), rows = rows_.length - rows_.first;
#pragma unroll
    for (int j = 0; j < Config::kResultTiles; j += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = ResultColumn<Config>(j, e, lane);
        if (column >= p_.head_size) continue;
        const auto add = *reinterpret_cast<const Pack<uint32_t, 4>*>(v_bias_ + column);
#pragma unroll
        for (int group = 0; group < Config::kRowGroups; ++group) {
          const int row = lane / 4 + 8 * group;
          if (row >= rows) continue;
          Pack<T, 4> y;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float x = out[group / 2][j + i][group % 2 * 2 + e];
            y.value[i] = FromFloat<T>(fmaf(x, inverse[group], __uint_as_float(add.value[i])));
          }
          *reinterpret_cast<Pack<T, 4>*>(ResultRow(row) + column) = y;
        }
      }
    }
  }

  const Parameters<T>& p_;
  const Tile& tile_;
  char* shared_;
  T* v_bias_;
  WarpRows<Config> rows_;
  KeyTiles<Config> key_tiles_;
  Places places_;
  std::conditional_t<Config::kPositions, PositionTiles<Config>, NoPositions> positions_;
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_MAINLOOP_CUH_
