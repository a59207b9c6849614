// Tiles in shared memory: their layout, how rows of the tensors get there, and how warps read them as operands.
#ifndef BERTFUSE_KERNELS_MMA_ATTENTION_TILES_CUH_
#define BERTFUSE_KERNELS_MMA_ATTENTION_TILES_CUH_

#include "kernels/mma/attention/math.cuh"
#include "kernels/ptx/scalar.cuh"
#include "kernels/ptx/shared.cuh"

namespace bertfuse::kernels::attention_mma {

// The byte at which a row's 16-byte chunk begins. Eight consecutive rows at the same chunk lie in different banks:
// where rows are 2^n chunks or a multiple of that, n bits of the chunk are exchanged according to the row.
template <int kChunks>
__device__ __forceinline__ int ChunkOffset(int row, int chunk) {
  constexpr int kPowerOfTwo = kChunks & -kChunks, kExchanged = kPowerOfTwo < 8 ? kPowerOfTwo : 8;
  return row * (kChunks * 16) + ((chunk ^ (row / (8 / kExchanged) & (kExchanged - 1))) << 4);
}

// The address of a row's chunk 2 `pair` + `half` for ldmatrix, whose rows are 8 i + lane % 8 for any i: where a row's
// chunks are a power of two, one operation finds each pair's.
template <int kChunks>
class ChunkAddress {
 public:
  __device__ __forceinline__ ChunkAddress(uint32_t tile, int row, int half)
      : tile_(tile), row_(row), half_(half), first_(tile + ChunkOffset<kChunks>(row, half)) {}
  // The tile begins at a multiple of a row's bytes.
  __device__ __forceinline__ uint32_t operator[](int pair) const {
    if constexpr ((kChunks & (kChunks - 1)) == 0) return first_ ^ pair << 5;
    return tile_ + ChunkOffset<kChunks>(row_, 2 * pair + half_);
  }

 private:
  uint32_t tile_;
  int row_, half_;
  uint32_t first_;
};

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

// The row of `first`, each `pitch` bytes behind the one before: by one instruction, where the compiler would multiply
// 64 bits for each row if it knew where `first` comes from.
template <class T>
__device__ __forceinline__ T* RowOf(T* first, int row, int pitch) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  const uint64_t bytes = uint64_t{static_cast<uint32_t>(row)} * static_cast<uint32_t>(pitch);
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(first) + bytes);
}

// Copies a tile of keys or values. Those behind the first `rows` become as the last, whose scores are hidden; columns
// behind the first `chunks` become zeros. One way for whole tiles and the sequence's last: a loop takes as much time as
// it has instructions, and those that it jumps over must be fetched, too. `pitch` is in bytes.
template <class Config>
__device__ __forceinline__ void LoadKeyTile(char* tile, const typename Config::T* source, int pitch, int rows,
                                            int chunks) {
  using Rows = RowLoader<Config>;
  static_assert(Rows::kRowsAtOnce % 8 == 0, "the thread's rows exchange the same bits of a chunk");
  const unsigned thread = ThreadNow();
  const int lane = static_cast<int>(thread % Rows::kLanes), first = static_cast<int>(thread / Rows::kLanes);
  const uint32_t to = SharedAddress(tile) + ChunkOffset<Config::kChunks>(first, lane);
  source = Hidden(source + lane * Config::kPerChunk);
#pragma unroll
  for (int row = 0; row < Config::kKeys; row += Rows::kRowsAtOnce) {
    const typename Config::T* from = RowOf(source, min(first + row, rows - 1), pitch);
#pragma unroll
    for (int chunk = 0; chunk < Config::kChunks; chunk += Rows::kLanes) {
      if (chunk + Rows::kLanes > Config::kChunks && chunk + lane >= Config::kChunks) continue;
      CopyAsync16(to + row * Config::kRowBytes + chunk * 16, from + chunk * Config::kPerChunk, chunk + lane < chunks);
    }
  }
}

// The same, but zeros in place of keys behind the first `rows`, for what adds up all of a tile.
template <class Config>
__device__ __forceinline__ void LoadKeyTileAndZeros(char* tile, const typename Config::T* source, int pitch, int rows,
                                                    int chunks) {
  RowLoader<Config>::template ForEach<Config::kKeys>([&](int row, int chunk) {
    CopyAsync<16>(tile + ChunkOffset<Config::kChunks>(row, chunk),
                  RowOf(source, row, pitch) + chunk * Config::kPerChunk, row < rows && chunk < chunks);
  });
}

// Elements of a vector that is aligned to four bytes; zeros where it is null.
template <class T>
__device__ __forceinline__ Pack<uint32_t, 4> LoadBias(const T* bias, int first) {
  Pack<uint32_t, 4> words = {};
  if (bias == nullptr) return words;
#pragma unroll
  for (int i = 0; i < 4; ++i) words.value[i] = reinterpret_cast<const uint32_t*>(bias + first)[i];
  return words;
}

// A block's queries on their way to shared memory: all loads are under way before the first is waited for.
template <class Config>
class QueryTile {
 public:
  using T = typename Config::T;

  // Queries behind the first `rows` are as the last, and columns behind the first `chunks` zeros. `pitch` is in bytes.
  __device__ __forceinline__ QueryTile(const T* source, int pitch, const T* bias, int rows, int chunks) {
    source = Hidden(source);
    ForEach([&](int row, int chunk, int i, int column) {
      const T* from = RowOf(source, min(row, rows - 1), pitch) + chunk * Config::kPerChunk;
      data_[column][i] = chunk < chunks ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
    });
    ForEach([&](int, int chunk, int i, int column) {
      if (i == 0) bias_[column] = LoadBias(chunk < chunks ? bias : nullptr, chunk * Config::kPerChunk);
    });
  }

  // Stores Q + bias.
  __device__ __forceinline__ void Store(char* tile) const {
    ForEach([&](int row, int chunk, int i, int column) {
      const uint4 q = data_[column][i];
      const uint32_t (&add)[4] = bias_[column].value;
      *reinterpret_cast<uint4*>(tile + ChunkOffset<Config::kChunks>(row, chunk)) = {
          AddWords<T>(q.x, add[0]), AddWords<T>(q.y, add[1]), AddWords<T>(q.z, add[2]), AddWords<T>(q.w, add[3])};
    });
  }

 private:
  using Rows = RowLoader<Config>;
  static constexpr int kColumns = (Config::kChunks + Rows::kLanes - 1) / Rows::kLanes;

  // Calls body(row, chunk, i, column) with each of the thread's chunks and where it is kept.
  template <class Body>
  __device__ __forceinline__ static void ForEach(Body&& body) {
    Rows::template ForEach<Config::kQueries>(
        [&](int row, int chunk) { body(row, chunk, row / Rows::kRowsAtOnce, chunk / Rows::kLanes); });
  }

  uint4 data_[kColumns][Config::kQueries / Rows::kRowsAtOnce];
  Pack<uint32_t, 4> bias_[kColumns];
};

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

  // Of columns kStep `step` to kStep `step` + kStep - 1.
  __device__ __forceinline__ void Get(RowOperands<Config>& q, int step, int lane) const {
    if constexpr (Config::kKeepsQueries && Config::kMath == Math::kThreeTf32) {
      // Halves of all queries would be split ahead of the loop over tiles, and take twice the registers.
      uint32_t full[Config::kRowTiles][4];
#pragma unroll
      for (int i = 0; i < 4 * Config::kRowTiles; ++i) full[i / 4][i % 4] = Hidden(kept_[step][i / 4][i % 4]);
      SetAll<Config>(q, full);
    } else if constexpr (Config::kKeepsQueries) {
      SetAll<Config>(q, kept_[step]);
    } else {
      uint32_t loaded[Config::kRowTiles][4];
      Load(loaded, step, lane);
      SetAll<Config>(q, loaded);
    }
  }

 private:
  static constexpr int kSteps = Config::kSteps;

  __device__ __forceinline__ void Load(uint32_t (&q)[Config::kRowTiles][4], int step, int lane) const {
#pragma unroll
    for (int m = 0; m < Config::kRowTiles; ++m) {
      const ChunkAddress<Config::kChunks> address(tile_ + 16 * m * Config::kRowBytes, lane % 16, lane / 16);
      LoadMatrices(q[m], address[step]);
    }
  }

  uint32_t tile_;
  uint32_t kept_[Config::kKeepsQueries ? kSteps : 1][Config::kRowTiles][4];
};

// Calls load(registers, i) and later use(i, registers), for each of kCount operands, in order. As many as kAhead are on
// their way while one is used.
template <int kAhead, int kCount, int kRegisters, class Load, class Use>
__device__ __forceinline__ void LoadAhead(Load&& load, Use&& use) {
  constexpr int kSets = kAhead + 1;
  uint32_t loaded[kSets][kRegisters];
#pragma unroll
  for (int i = 0; i < kAhead && i < kCount; ++i) load(loaded[i], i);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i + kAhead < kCount) load(loaded[(i + kAhead) % kSets], i + kAhead);
    use(i, loaded[i % kSets]);
  }
}

// score = Q Kᵀ. As mma leaves it, score[m][j][2 h + e] is row 16 m + 8 h + lane / 4, key 8 j + 2 (lane % 4) + e.
template <class Config>
__device__ __forceinline__ void MultiplyKeys(float (&score)[Config::kRowTiles][Config::kKeys / 8][4],
                                             const Queries<Config>& queries, uint32_t keys, int lane) {
  constexpr int kTiles = Config::kKeys / 16;
  const ChunkAddress<Config::kChunks> address(keys, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < Config::kRowTiles * Config::kKeys / 2; ++i) {
    score[i / (Config::kKeys / 2)][i / 4 % (Config::kKeys / 8)][i % 4] = 0.0f;
  }
  RowOperands<Config> q;
#pragma unroll 1
  for (int first = 0; first < Config::kSteps; first += Config::kStepsAtOnce) {
    LoadAhead<Config::kOperandsAhead, Config::kStepsAtOnce * kTiles, 4>(
        [&](uint32_t (&to)[4], int i) {
          LoadMatrices(to, address[first + i / kTiles] + i % kTiles * 16 * Config::kRowBytes);
        },
        [&](int i, const uint32_t (&loaded)[4]) {
          if (i % kTiles == 0) queries.Get(q, first + i / kTiles, lane);
          Operand<Config::kMath, 4> k;
          k.Set(loaded);
          MultiplyTiles<Config, 2, false>(score, 2 * (i % kTiles), q, k);
        });
  }
}

template <class Config>
using Results = float[Config::kRowTiles][Config::kResultTiles][4];

// The first of the columns that the warp has results of.
template <class Config>
__device__ __forceinline__ int FirstResultColumn() {
  return Config::kColumnWarps == 1 ? 0 : ThreadNow() / (32 * Config::kRowWarps) * Config::kResultColumns;
}

// The column of a thread's results [m][j][2 h + e], which are row 16 m + 8 h + lane / 4. In 16 bits the thread
// has two columns side by side. Of float32 it has eight in four tiles, since an instruction's columns are every fourth:
// so values are read 16 bytes at a time.
template <class Config>
__device__ __forceinline__ int ResultColumn(int j, int e, int lane) {
  if (sizeof(typename Config::T) == 2) return 8 * j + lane % 4 * 2 + e;
  return FirstResultColumn<Config>() + j / 4 * 32 + lane % 4 * 8 + 4 * e + j % 4;
}

// out += weights times values, for kCount steps of kStep keys; the first one's values begin at row kStep `first_step`
// of the tile. set_weights(to, step) gives those of a step.
template <class Config, int kCount, class SetWeights>
__device__ __forceinline__ void MultiplyValues(Results<Config>& out, SetWeights&& set_weights, uint32_t values,
                                               int first_step, int lane) {
  RowOperands<Config> weights;
  if constexpr (sizeof(typename Config::T) == 2) {
    constexpr int kTiles = Config::kResultColumns / 16, kStepBytes = 16 * Config::kRowBytes;
    const ChunkAddress<Config::kChunks> address(values + first_step * kStepBytes, lane % 16, lane / 16);
    LoadAhead<Config::kOperandsAhead, kCount * kTiles, 4>(
        [&](uint32_t (&to)[4], int i) { LoadMatricesTransposed(to, address[i % kTiles] + i / kTiles * kStepBytes); },
        [&](int i, const uint32_t (&loaded)[4]) {
          if (i % kTiles == 0) set_weights(weights, i / kTiles);
          Operand<Config::kMath, 4> v;
          v.Set(loaded);
          MultiplyTiles<Config, 2, false>(out, 2 * (i % kTiles), weights, v);
        });
  } else {
    // k of the instruction is the order of keys in which the thread has weights: 2 (lane % 4), then the one behind.
    constexpr int kTiles = Config::kResultColumns / 32;
    const int first_chunk = FirstResultColumn<Config>() / Config::kPerChunk + lane / 4;
    LoadAhead<Config::kOperandsAhead, kCount * kTiles, 8>(
        [&](uint32_t (&to)[8], int i) {
          const int key = 8 * (first_step + i / kTiles) + lane % 4 * 2, chunk = 8 * (i % kTiles) + first_chunk;
          uint32_t first[4], second[4];
          LoadShared(first, values + ChunkOffset<Config::kChunks>(key, chunk));
          LoadShared(second, values + ChunkOffset<Config::kChunks>(key + 1, chunk));
#pragma unroll
          for (int e = 0; e < 8; ++e) to[e] = e < 4 ? first[e] : second[e - 4];
        },
        [&](int i, const uint32_t (&loaded)[8]) {
          if (i % kTiles == 0) set_weights(weights, i / kTiles);
          Operand<Config::kMath, 8> v;
          v.Set(loaded);
          MultiplyTiles<Config, 4, true>(out, 4 * (i % kTiles), weights, v);
        });
  }
}

}  // namespace bertfuse::kernels::attention_mma
#endif  // BERTFUSE_KERNELS_MMA_ATTENTION_TILES_CUH_
