// Products of queries and keys with vectors by distance, which are added to a tile's scores (disentangled attention).
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_POSITIONS_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_POSITIONS_CUH_

#include "kernels/mma/attention/tiles.cuh"
#include "kernels/mma/attention/variant.cuh"

namespace bertfuse::kernels::attention_mma {

// A tile of queries and one of keys are kQueries + kKeys - 1 distances apart at most: the band. Its vectors lie in
// shared memory, the one of the least distance first, those for queries and then those for keys. A warp multiplies 16
// queries with the distances to all keys of the tile, and 16 keys with those to all queries; each product is stored as
// the float of its query and key, where the scores' owner finds the sum.
//
// Two tiles of which one has a gap between its tokens have no band. All distances from the least to the largest are
// then multiplied, kAtOnce at a time, in the band's place, and each query and key look up their own among the products.
template <class Config>
class PositionTiles {
 public:
  using T = typename Config::T;
  static constexpr int kBand = Config::kQueries + Config::kKeys;  // one more than there are
  static constexpr int kPitch = PositionPitch(Config::kShape);
  static constexpr int kAtOnce = Config::kChunks < 8 ? 32 : 48;  // vectors of each side, between gaps

  __device__ __forceinline__ PositionTiles(const Parameters<T>& p, const Tile& tile, char* shared)
      : p_(p), tile_(tile), vectors_(shared), sums_(reinterpret_cast<float*>(shared + 2 * kBand * Config::kRowBytes)) {}

  // Begins to copy the band of the tile of keys, if there is one.
  __device__ __forceinline__ void Load(const Places& places, int first_key) const {
    int distance = first_key - tile_.first_query;
    if (places.HaveGaps()) {
      if (IsTorn(places, first_key)) return;
      distance = places.At(first_key) - places.At(tile_.first_query);
    }
    LoadVectors<kBand>(distance - (Config::kQueries - 1) + p_.position_left);
  }

  // Multiplies; called by the whole block when the band and the tile of `keys` have arrived. Behind it the band's place
  // is free.
  __device__ __forceinline__ void Multiply(const Queries<Config>& queries, uint32_t keys, int kv_column,
                                           const Places& places, int first_key) const {
    if (places.HaveGaps() && IsTorn(places, first_key)) {
      return MultiplyTorn(queries, keys, kv_column, places, first_key);
    }
    MultiplyQueries(queries);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) / 32 < Config::kKeys / 16) MultiplyKeyRows(keys, kv_column);
    __syncthreads();
  }

  // Adds the sums of the warp's queries to its scores.
  __device__ __forceinline__ void AddTo(Scores<Config>& score) const {
    const int lane = LaneNow(), first = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < Config::kKeys / 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 sum = *reinterpret_cast<const float2*>(sums_ + (first + 8 * h) * kPitch + 8 * j + lane % 4 * 2);
        score[0][j][2 * h] += sum.x;
        score[0][j][2 * h + 1] += sum.y;
      }
    }
  }

 private:
  static_assert(Config::kRowTiles == 1);
  using Products = float[1][2][4];

  // What lies in the band's place where tiles have gaps: vectors, each warp's products, places of queries and keys.
  static constexpr int kTornPitch = kAtOnce + 8;
  static constexpr int kVectorBytes = 2 * kAtOnce * Config::kRowBytes;
  static constexpr int kProductBytes = Config::kWarps * 16 * kTornPitch * 4;
  static_assert(kVectorBytes + kProductBytes + (kBand + Config::kWarps) * 4 <= 2 * kBand * Config::kRowBytes);
  static_assert(kBand <= Config::kThreads);

  __device__ __forceinline__ int LastQuery() const {
    return min(tile_.first_query + Config::kQueries, tile_.length) - 1;
  }
  __device__ __forceinline__ int LastKey(int first_key) const {
    return min(first_key + Config::kKeys, tile_.length) - 1;
  }

  // Whether there is a gap between the tile's queries or between its keys.
  __device__ __forceinline__ bool IsTorn(const Places& places, int first_key) const {
    const auto is_torn = [&](int first, int last) { return places.At(last) - places.At(first) != last - first; };
    return is_torn(tile_.first_query, LastQuery()) || is_torn(first_key, LastKey(first_key));
  }

  // Begins to copy kCount vectors for queries and as many for keys, those of the table's rows from `first` on.
  template <int kCount>
  __device__ __forceinline__ void LoadVectors(int first) const {
    const int64_t table = (int64_t{p_.position_last} + 1) * p_.head_size;
    const T* source = p_.positions + tile_.head * table;
    const int chunks = p_.head_size / Config::kPerChunk;
#pragma unroll 1
    for (int of_keys = 0; of_keys < 2; ++of_keys) {
      char* vectors = vectors_ + of_keys * (kCount * Config::kRowBytes);
      RowLoader<Config>::template ForEach<kCount>([&](int row, int chunk) {
        const int at = min(max(first + row, 0), p_.position_last);
        CopyAsync<16>(vectors + ChunkOffset<Config::kChunks>(row, chunk),
                      source + int64_t{at} * p_.head_size + chunk * Config::kPerChunk, chunk < chunks);
      });
      source += p_.heads * table;
    }
  }

  // Multiply() where there is no band. Each query and key find one product of each side, whatever token_index holds.
  __device__ __forceinline__ void MultiplyTorn(const Queries<Config>& queries, uint32_t keys, int kv_column,
                                               const Places& places, int first_key) const {
    const int thread = static_cast<int>(threadIdx.x), last_query = LastQuery(), last_key = LastKey(first_key);
    int* place = reinterpret_cast<int*>(vectors_ + kVectorBytes + kProductBytes);
    int* next = place + kBand;  // of each warp
    if (thread < kBand) {
      place[thread] = places.At(thread < Config::kQueries ? min(tile_.first_query + thread, last_query)
                                                          : min(first_key + thread - Config::kQueries, last_key));
    }
    const int first = TableRow(places.At(first_key) - places.At(last_query));
    const int last = max(TableRow(places.At(last_key) - places.At(tile_.first_query)), first);
#pragma unroll 1
    for (int from = first;;) {
      LoadVectors<kAtOnce>(from);
      CommitCopies();
      WaitCopies<0>();
      __syncthreads();
      const auto at = [&](int query, int key) {
        return min(max(TableRow(place[Config::kQueries + key] - place[query]), first), last) - from;
      };
      next[thread / 32] = MultiplyTornQueries(queries, at);
      __syncthreads();
      if (thread / 32 < Config::kKeys / 16) MultiplyTornKeyRows(keys, kv_column, at);
      const int ahead = min(min(next[0], next[1]), min(next[2], next[3]));
      __syncthreads();
      if (ahead == INT32_MAX) break;
      from += ahead;
    }
  }

  __device__ __forceinline__ int TableRow(int distance) const {
    return min(max(distance + p_.position_left, 0), p_.position_last);
  }

  // The warp's products, [16][kTornPitch].
  __device__ __forceinline__ float* TornProducts() const {
    return reinterpret_cast<float*>(vectors_ + kVectorBytes) + threadIdx.x / 32 * (16 * kTornPitch);
  }

  // Of the warp's 16 queries; at(query, key): which of the products it is. Returns the first that comes later, or
  // INT32_MAX.
  template <class At>
  __device__ __forceinline__ int MultiplyTornQueries(const Queries<Config>& queries, const At& at) const {
    float* products = TornProducts();
#pragma unroll 1
    for (int i = 0; i < kAtOnce; i += 16) {
      ForVectors(SharedAddress(vectors_), i, QueryRows(queries),
                 [&](int row, int n, float product) { products[row * kTornPitch + n] = product; });
    }
    __syncwarp();
    const int first_query = static_cast<int>(threadIdx.x) / 32 * 16;
    int next = INT32_MAX;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < 16 * Config::kKeys; i += 32) {
      const int row = i / Config::kKeys, key = i % Config::kKeys, n = at(first_query + row, key);
      if (n >= kAtOnce) next = min(next, n);
      if (n >= 0 && n < kAtOnce) sums_[(first_query + row) * kPitch + key] = products[row * kTornPitch + n];
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) next = min(next, __shfl_xor_sync(0xffffffffu, next, lanes));
    return next;
  }

  // Of the warp's 16 keys.
  template <class At>
  __device__ __forceinline__ void MultiplyTornKeyRows(uint32_t keys, int kv_column, const At& at) const {
    float* products = TornProducts();
    const int first_key = static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll 1
    for (int i = 0; i < kAtOnce; i += 16) {
      ForVectors(SharedAddress(vectors_ + kAtOnce * Config::kRowBytes), i, KeyRows(keys, first_key, kv_column),
                 [&](int row, int n, float product) { products[row * kTornPitch + n] = product; });
    }
    __syncwarp();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < 16 * Config::kQueries; i += 32) {
      const int row = i % 16, query = i / 16, n = at(query, first_key + row);
      if (n >= 0 && n < kAtOnce) sums_[query * kPitch + first_key + row] += products[row * kTornPitch + n];
    }
  }

  // Calls body(row, n, product) with the thread's products of 16 rows and vectors `first` to `first` + 15 of the band.
  template <class Rows, class Body>
  __device__ __forceinline__ void ForVectors(uint32_t band, int first, const Rows& rows, Body&& body) const {
    const int lane = LaneNow(), row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
    Products product = {};
#pragma unroll(Config::kStepsAtOnce)
    for (int step = 0; step < Config::kSteps; ++step) {
      RowOperands<Config> a;
      rows(a, step, lane);
      uint32_t loaded[4];
      LoadMatrices(loaded, band + ChunkOffset<Config::kChunks>(first + row, 2 * step + chunk));
      Operand<Config::kMath, 4> b;
      b.Set(loaded);
      MultiplyTiles<Config, 2, false>(product, 0, a, b);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      body(i / 2 % 2 * 8 + lane / 4, first + i / 4 * 8 + lane % 4 * 2 + i % 2, product[0][i / 4][i % 4]);
    }
  }

  // Rows for ForVectors(): the warp's queries.
  __device__ __forceinline__ static auto QueryRows(const Queries<Config>& queries) {
    return [&queries](RowOperands<Config>& q, int step, int lane) { queries.Get(q, step, lane); };
  }

  // 16 keys from `first_key` on, with their bias: unlike in q·k it does not cancel.
  __device__ __forceinline__ auto KeyRows(uint32_t keys, int first_key, int kv_column) const {
    const T* bias = p_.position_k_bias == nullptr ? nullptr : p_.position_k_bias + kv_column;
    return [this, keys, first_key, bias](RowOperands<Config>& k, int step, int lane) {
      uint32_t loaded[1][4];
      LoadMatrices(loaded[0], keys + ChunkOffset<Config::kChunks>(first_key + lane % 16, 2 * step + lane / 16));
      if (bias != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = Config::kStep * step + Config::kPerChunk * (i / 2) + lane % 4 * Config::kPerWord;
          if (column >= p_.head_size) continue;
          loaded[0][i] = AddWords<T>(loaded[0][i], *reinterpret_cast<const uint32_t*>(bias + column));
        }
      }
      SetAll<Config>(k, loaded);
    };
  }

  // Of the warp's 16 queries: key j is n - (kQueries - 1) + query in the tiles.
  __device__ __forceinline__ void MultiplyQueries(const Queries<Config>& queries) const {
    const int first_query = static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll 1
    for (int i = 0; i <= Config::kKeys; i += 16) {
      ForVectors(SharedAddress(vectors_), Config::kQueries - 16 - first_query + i, QueryRows(queries),
                 [&](int row, int n, float product) {
                   const int query = first_query + row, key = n - (Config::kQueries - 1) + query;
                   if (key >= 0 && key < Config::kKeys) sums_[query * kPitch + key] = product;
                 });
    }
  }

  // Of 16 keys.
  __device__ __forceinline__ void MultiplyKeyRows(uint32_t keys, int kv_column) const {
    const int first_key = static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll 1
    for (int i = 0; i <= Config::kQueries; i += 16) {
      ForVectors(SharedAddress(vectors_ + kBand * Config::kRowBytes), first_key + i,
                 KeyRows(keys, first_key, kv_column), [&](int row, int n, float product) {
                   const int key = first_key + row, query = Config::kQueries - 1 + key - n;
                   if (query >= 0 && query < Config::kQueries) sums_[query * kPitch + key] += product;
                 });
    }
  }

  const Parameters<T>& p_;
  const Tile& tile_;
  char* vectors_;
  float* sums_;
};

struct NoPositions {
  template <class... Arguments>
  __device__ __forceinline__ explicit NoPositions(const Arguments&...) {}
};

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_POSITIONS_CUH_
