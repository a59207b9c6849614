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
template <class Config>
class PositionTiles {
 public:
  using T = typename Config::T;
  static constexpr int kBand = Config::kQueries + Config::kKeys;  // one more than there are
  static constexpr int kPitch = PositionPitch(Config::kShape);

  __device__ __forceinline__ PositionTiles(const Parameters<T>& p, const Tile& tile, char* shared)
      : p_(p), tile_(tile), vectors_(shared), sums_(reinterpret_cast<float*>(shared + 2 * kBand * Config::kRowBytes)) {}

  // Begins to copy the band of the tile of keys.
  __device__ __forceinline__ void Load(int first_key) const {
    const int least = first_key - (tile_.first_query + Config::kQueries - 1) + p_.position_left;
    const int64_t table = (int64_t{p_.position_last} + 1) * p_.head_size;
    const T* source = p_.positions + tile_.head * table;
    const int chunks = p_.head_size / Config::kPerChunk;
#pragma unroll 1
    for (int of_keys = 0; of_keys < 2; ++of_keys) {
      char* vectors = vectors_ + of_keys * (kBand * Config::kRowBytes);
      RowLoader<Config>::template ForEach<kBand>([&](int row, int chunk) {
        const int at = min(max(least + row, 0), p_.position_last);
        CopyAsync<16>(vectors + ChunkOffset<Config::kChunks>(row, chunk),
                      source + int64_t{at} * p_.head_size + chunk * Config::kPerChunk, chunk < chunks);
      });
      source += p_.heads * table;
    }
  }

  // Multiplies; called by the whole block when the band and the tile of `keys` have arrived. Behind it the band's place
  // is free.
  __device__ __forceinline__ void Multiply(const Queries<Config>& queries, uint32_t keys, int kv_column) const {
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

  // Calls body(row, n, product) with the thread's products of 16 rows and vectors `first` to `first` + 15 of the band.
  template <class Rows, class Body>
  __device__ __forceinline__ void ForVectors(uint32_t band, int first, const Rows& rows, Body&& body) const {
    const int lane = LaneNow(), row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
    Products product = {};
#pragma unroll
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

  // Of the warp's 16 queries: key j is n - (kQueries - 1) + query in the tiles.
  __device__ __forceinline__ void MultiplyQueries(const Queries<Config>& queries) const {
    const int first_query = static_cast<int>(threadIdx.x) / 32 * 16;
    const auto rows = [&](RowOperands<Config>& q, int step, int lane) { queries.Get(q, step, lane); };
#pragma unroll 1
    for (int i = 0; i <= Config::kKeys; i += 16) {
      ForVectors(SharedAddress(vectors_), Config::kQueries - 16 - first_query + i, rows,
                 [&](int row, int n, float product) {
                   const int query = first_query + row, key = n - (Config::kQueries - 1) + query;
                   if (key >= 0 && key < Config::kKeys) sums_[query * kPitch + key] = product;
                 });
    }
  }

  // Of 16 keys, with their bias: unlike in q·k it does not cancel.
  __device__ __forceinline__ void MultiplyKeyRows(uint32_t keys, int kv_column) const {
    const int first_key = static_cast<int>(threadIdx.x) / 32 * 16;
    const T* bias = p_.position_k_bias == nullptr ? nullptr : p_.position_k_bias + kv_column;
    const auto rows = [&](RowOperands<Config>& k, int step, int lane) {
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
#pragma unroll 1
    for (int i = 0; i <= Config::kQueries; i += 16) {
      ForVectors(SharedAddress(vectors_ + kBand * Config::kRowBytes), first_key + i, rows,
                 [&](int row, int n, float product) {
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
