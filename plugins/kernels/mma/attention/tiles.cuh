// Tiles in shared memory: their layout, how rows of the tensors get there, and how warps read them as operands.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_TILES_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_TILES_CUH_

#include "kernels/mma/attention/config.cuh"
#include "kernels/ptx/mma.cuh"

namespace bertfuse::kernels::attention_mma {

// The byte at which a row's 16-byte chunk begins. Eight consecutive rows at the same chunk lie in different banks:
// where rows are 2^n chunks or a multiple of that, n bits of the chunk are exchanged according to the row.
template <int kChunks>
__device__ __forceinline__ int ChunkOffset(int row, int chunk) {
  constexpr int kPowerOfTwo = kChunks & -kChunks, kExchanged = kPowerOfTwo < 8 ? kPowerOfTwo : 8;
  return row * (kChunks * 16) + ((chunk ^ (row / (8 / kExchanged) & (kExchanged - 1))) << 4);
}

// The thread's number, hidden from the compiler, which would otherwise work out all addresses of a tile ahead of the
// loop over tiles and keep them in registers, of which there are none to spare.
__device__ __forceinline__ unsigned ThreadNow() {
  unsigned thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}
__device__ __forceinline__ int LaneNow() { return static_cast<int>(ThreadNow() % 32); }

// How a block's threads share the chunks of a tile's rows: kLanes side by side, kRowsAtOnce rows at a time.
template <class Config>
struct RowLoader {
  static constexpr int kChunks = Config::kChunks;
  static constexpr int kLanes = kChunks == 2 || kChunks == 4 ? kChunks : 8;
  static constexpr int kRowsAtOnce = Config::kThreads / kLanes;

  // Calls copy(row, chunk) with each of the thread's chunks.
  template <int kRows, class Copy>
  __device__ __forceinline__ static void ForEach(Copy&& copy) {
    static_assert(kRows % kRowsAtOnce == 0);
    const unsigned thread = ThreadNow();
    const int lane = static_cast<int>(thread % kLanes), first = static_cast<int>(thread / kLanes % kRowsAtOnce);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += kLanes) {
      if (chunk + kLanes > kChunks && chunk + lane >= kChunks) continue;
#pragma unroll
      for (int row = 0; row < kRows; row += kRowsAtOnce) copy(first + row, lane + chunk);
    }
  }
};

// Copies a tile of keys or values. Those behind the first `rows`, and columns behind the first `chunks`, become zeros.
template <class Config>
__device__ __forceinline__ void LoadKeyTile(char* tile, const typename Config::T* source, int64_t pitch, int rows,
                                            int chunks) {
  RowLoader<Config>::template ForEach<Config::kKeys>([&](int row, int chunk) {
    CopyAsync<16>(tile + ChunkOffset<Config::kChunks>(row, chunk), source + row * pitch + chunk * 8,
                  row < rows && chunk < chunks);
  });
}

// Eight elements of a vector that is aligned to four bytes, as pairs; zeros where it is null.
template <class T>
__device__ __forceinline__ Pack<uint32_t, 4> LoadBias(const T* bias, int first) {
  Pack<uint32_t, 4> pairs = {};
  if (bias == nullptr) return pairs;
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs.value[i] = *reinterpret_cast<const uint32_t*>(bias + first + 2 * i);
  return pairs;
}

// Stores Q + bias of a tile's queries, zeros behind the last of them.
template <class Config>
__device__ __forceinline__ void LoadQueryTile(char* tile, const typename Config::T* source, int64_t pitch,
                                              const typename Config::T* bias, int rows, int chunks) {
  using T = typename Config::T;
  RowLoader<Config>::template ForEach<Config::kQueries>([&](int row, int chunk) {
    Pack<uint32_t, 4> x = {};
    if (row < rows && chunk < chunks) {
      x = *reinterpret_cast<const Pack<uint32_t, 4>*>(source + row * pitch + chunk * 8);
      const Pack<uint32_t, 4> b = LoadBias(bias, chunk * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.value[i] = AddPairs<T>(x.value[i], b.value[i]);
    }
    *reinterpret_cast<Pack<uint32_t, 4>*>(tile + ChunkOffset<Config::kChunks>(row, chunk)) = x;
  });
}

// A warp's queries as operands: in registers, or read from shared memory whenever they are needed.
template <class Config>
class Queries {
 public:
  // `tile` holds the warp's rows.
  __device__ __forceinline__ explicit Queries(const char* tile) : tile_(SharedAddress(tile)) {
    if constexpr (Config::kKeepsQueries) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) Load(kept_[step], step, threadIdx.x % 32);
    }
  }

  // Of columns 16 `step` to 16 `step` + 15.
  __device__ __forceinline__ void Get(uint32_t (&q)[Config::kRowTiles][4], int step, int lane) const {
    if constexpr (Config::kKeepsQueries) {
#pragma unroll
      for (int i = 0; i < 4 * Config::kRowTiles; ++i) q[i / 4][i % 4] = kept_[step][i / 4][i % 4];
    } else {
      Load(q, step, lane);
    }
  }

 private:
  static constexpr int kSteps = Config::kHeadSize / 16;

  __device__ __forceinline__ void Load(uint32_t (&q)[Config::kRowTiles][4], int step, int lane) const {
#pragma unroll
    for (int m = 0; m < Config::kRowTiles; ++m) {
      LoadMatrices(q[m], tile_ + ChunkOffset<Config::kChunks>(16 * m + lane % 16, 2 * step + lane / 16));
    }
  }

  uint32_t tile_;
  uint32_t kept_[Config::kKeepsQueries ? kSteps : 1][Config::kRowTiles][4];
};

// score = Q Kᵀ. As mma leaves it, score[m][j][2 h + e] is row 16 m + 8 h + lane / 4, key 8 j + 2 (lane % 4) + e.
template <class Config>
__device__ __forceinline__ void MultiplyKeys(float (&score)[Config::kRowTiles][Config::kKeys / 8][4],
                                             const Queries<Config>& queries, uint32_t keys, int lane) {
  const int row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
#pragma unroll
  for (int i = 0; i < Config::kRowTiles * Config::kKeys / 2; ++i) {
    score[i / (Config::kKeys / 2)][i / 4 % (Config::kKeys / 8)][i % 4] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < Config::kHeadSize / 16; ++step) {
    uint32_t q[Config::kRowTiles][4];
    queries.Get(q, step, lane);
#pragma unroll
    for (int j = 0; j < Config::kKeys / 16; ++j) {
      uint32_t k[4];
      LoadMatrices(k, keys + ChunkOffset<Config::kChunks>(16 * j + row, 2 * step + chunk));
#pragma unroll
      for (int m = 0; m < Config::kRowTiles; ++m) {
        Mma<typename Config::T>(score[m][2 * j], q[m], k[0], k[1]);
        Mma<typename Config::T>(score[m][2 * j + 1], q[m], k[2], k[3]);
      }
    }
  }
}

// out += weights of 16 keys times their values, which begin at row 16 `step` of the tile.
template <class Config>
__device__ __forceinline__ void MultiplyValues(float (&out)[Config::kRowTiles][Config::kChunks][4],
                                               const uint32_t (&weight)[Config::kRowTiles][4], uint32_t values,
                                               int step, int lane) {
#pragma unroll
  for (int j = 0; j < Config::kHeadSize / 16; ++j) {
    uint32_t v[4];
    LoadMatricesTransposed(v, values + ChunkOffset<Config::kChunks>(16 * step + lane % 16, 2 * j + lane / 16));
#pragma unroll
    for (int m = 0; m < Config::kRowTiles; ++m) {
      Mma<typename Config::T>(out[m][2 * j], weight[m], v[0], v[1]);
      Mma<typename Config::T>(out[m][2 * j + 1], weight[m], v[2], v[3]);
    }
  }
}

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_TILES_CUH_
