// How a consumer of the Hopper attention kernel stores its results: through shared memory, where its queries were, by
// TMA, or by its threads in 8 bits and where a packed sequence ends.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_RESULTS_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_RESULTS_CUH_

#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/scalar.cuh"
#include "kernels/quantized_row.cuh"
#include "kernels/sm90/attention/pipeline.cuh"
#include "kernels/sm90/ptx/tma.cuh"

namespace bertfuse::kernels::attention_sm90 {

// Of a warpgroup with 64 queries of each of its pipeline's tiles.
template <class Config>
class Results : protected Pipeline<Config> {
  using Base = Pipeline<Config>;
  using T = typename Config::T;
  static constexpr int kHeadSize = Config::kHeadSize;

 protected:
  using typename Base::Tile;
  // `index`: of the warpgroup among the block's consumers.
  __device__ __forceinline__ Results(const Parameters& parameters, char* shared, int index)
      : Base(parameters, shared, index / Config::kWarpgroups),
        group_(index % Config::kWarpgroups),
        barrier_(kWarpgroup + index),
        leader_(threadIdx.x % 128 == 0) {}

  // threadIdx.x, from which the compiler would otherwise keep values in registers, of which there are none to spare.
  __device__ __forceinline__ static int ThreadNow() { return Hidden(threadIdx.x); }

  // The address, for LoadMatrices, of the thread's row of the 16 x 16 elements at column 16 i of the warp's queries.
  __device__ __forceinline__ static uint32_t QueryAddress(const char* queries, int thread, int i) {
    const int row = thread % 128 / 32 * 16 + thread % 16;
    const int column = 16 * i % Config::kTileColumns + thread % 32 / 16 * 8;
    return SharedAddress(queries) + 16 * i / Config::kTileColumns * Config::kQueryTileBytes +
           Swizzled<Config::kPitch>(row, column * static_cast<int>(sizeof(T)));
  }

  // How many queries the warpgroup has in a packed tile; more than 64 means all 64.
  __device__ __forceinline__ int OwnQueries(const Tile& tile) const {
    return tile.length - tile.first_query - 64 * group_;
  }

  __device__ __forceinline__ void Store(const float (&out)[kHeadSize / 2], const float (&inverse)[2],
                                        const uint32_t (&bias)[kHeadSize / 8], const Tile& tile) const {
    char* staging = this->Queries(tile.number, group_);
    const int thread = ThreadNow();
    const bool quantizes = this->p_.quantized.rows != nullptr;
    EightColumns eight;
    if (quantizes) eight = FactorsOf(tile);
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
    FenceAsyncProxy();
    SyncWarpgroup(barrier_);
    if (quantizes) return StoreQuantized(staging, tile, eight);
    if constexpr (Config::kPacked) {
      if (OwnQueries(tile) < 64) return StoreRows(staging, tile);
    }
    if (leader_) {
#pragma unroll
      for (int i = 0; i < Config::kTiles; ++i) {
        const char* from = staging + i * Config::kQueryTileBytes;
        const int column = tile.head * kHeadSize + i * 64, row = tile.first_query + 64 * group_;
        if constexpr (Config::kPacked) {
          TmaStore2d(&this->p_.y_map, from, column, tile.first_row + row);
        } else {
          TmaStore3d(&this->p_.y_map, from, column, row, tile.batch);
        }
      }
      TmaCommitStores();
    }
  }

  // Named barriers: one per consumer warpgroup from kWarpgroup on.
  enum NamedBarrier : int { kWarpgroup = 1 };

  int group_;
  int barrier_;
  bool leader_;

 private:
  // Stores a tile that ends with its sequence: the rows behind it are a neighbour's.
  __device__ __forceinline__ void StoreRows(const char* staging, const Tile& tile) const {
    constexpr int kChunks = kHeadSize / 8, kTileChunks = Config::kTileColumns / 8, kRowsAtOnce = 128 / kChunks;
    const int64_t pitch = this->p_.heads * kHeadSize;
    const int thread = ThreadNow() % 128, chunk = thread % kChunks, queries = OwnQueries(tile);
    const char* from = staging + chunk / kTileChunks * Config::kQueryTileBytes;
    T* to = static_cast<T*>(this->p_.y) + (tile.first_row + tile.first_query + 64 * group_) * pitch +
            tile.head * kHeadSize + chunk * 8;
#pragma unroll 1
    for (int row = thread / kChunks; row < queries; row += kRowsAtOnce) {
      *reinterpret_cast<uint4*>(to + row * pitch) =
          *reinterpret_cast<const uint4*>(from + Swizzled<Config::kPitch>(row, chunk % kTileChunks * 16));
    }
    __syncwarp();
    SyncWarpgroup(barrier_);  // before the leader releases the queries
  }

  // Of a thread that stores eight columns of some rows in 8 bits: what they are multiplied with, and their scale and
  // zero point. Loaded before the results are staged, so that this hides the way from memory.
  struct EightColumns {
    float scale;
    int zero;
    float factors[8];
  };
  // Of a warpgroup's threads, which lie on so many rows; a row's next ones are swizzled alike.
  static constexpr int kChunks = kHeadSize / 8, kRowsAtOnce = 128 / kChunks;
  static_assert(kRowsAtOnce % 8 == 0);
  __device__ __forceinline__ static unsigned Chunk(unsigned thread) { return thread % kChunks; }

  __device__ __forceinline__ EightColumns FactorsOf(const Tile& tile) const {
    const QuantizedResult& to = this->p_.quantized;
    EightColumns eight = {*to.scale, ZeroOf(to), {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}};
    if (to.smooth != nullptr) {
      const float* const from = to.smooth + tile.head * kHeadSize + Chunk(ThreadNow()) * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 four = reinterpret_cast<const float4*>(from)[half];
        float* const factors = &eight.factors[4 * half];
        factors[0] = four.x, factors[1] = four.y, factors[2] = four.z, factors[3] = four.w;
      }
    }
    const float inverse = InverseOfScale(eight.scale);
#pragma unroll
    for (float& factor : eight.factors) factor *= inverse;
    return eight;
  }

  // Stores staged results in 8 bits; the first head's tiles write the rows' scales.
  __device__ __forceinline__ void StoreQuantized(const char* staging, const Tile& tile,
                                                 const EightColumns& eight) const {
    if (this->p_.quantized.floats) {
      StoreQuantized(staging, tile, eight, [](const float (&v)[8]) { return Rounded<__nv_fp8_e4m3>(v); });
    } else {
      StoreQuantized(staging, tile, eight, [&](const float (&v)[8]) { return Rounded<int8_t>(v, eight.zero); });
    }
    __syncwarp();
    SyncWarpgroup(barrier_);  // before the leader releases the queries
  }
  // Two warps share a scheduler, and so little is hidden: that a row's address is a constant away from the last one's,
  // and its type no branch, took 64 queries and 128 keys from 5,300 to 4,900 cycles; in 16 bits they take 4,500.
  template <class Round>
  __device__ __forceinline__ void StoreQuantized(const char* staging, const Tile& tile, const EightColumns& eight,
                                                 Round&& round) const {
    constexpr int kTileChunks = Config::kTileColumns / 8, kRows = 64 / kRowsAtOnce, kAtOnce = kRows < 4 ? kRows : 4;
    const QuantizedResult& to = this->p_.quantized;
    const unsigned thread = ThreadNow() % 128u, chunk = Chunk(thread), first = thread / kChunks;
    const int queries = this->Length(tile) - tile.first_query - 64 * group_ - static_cast<int>(first);
    const int64_t row = this->FirstRowOf(tile) + tile.first_query + 64 * group_ + first;
    const int column = tile.head * kHeadSize + static_cast<int>(chunk) * 8, pitch = this->p_.heads * kHeadSize;
    const char* from = staging + chunk / kTileChunks * Config::kQueryTileBytes +
                       Swizzled<Config::kPitch>(first, chunk % kTileChunks * 16);
    char* numbers = static_cast<char*>(to.rows) + row * pitch + column;
#pragma unroll 1
    for (int done = 0; done < kRows; done += kAtOnce) {
      kernels::Pack<T, 8> staged[kAtOnce];  // behind the last of them there are queries, or other results
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        staged[i] = *reinterpret_cast<const kernels::Pack<T, 8>*>(from + (done + i) * kRowsAtOnce * Config::kPitch);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = ToFloat(staged[i].value[j]) * eight.factors[j];
        const auto pack = round(values);
        if ((done + i) * kRowsAtOnce < queries) *reinterpret_cast<decltype(round(values))*>(numbers) = pack;
        numbers += kRowsAtOnce * pitch;
      }
    }
    if (column != 0) return;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      if (i * kRowsAtOnce < queries) to.scales[row + i * kRowsAtOnce] = eight.scale;
    }
  }
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_RESULTS_CUH_
