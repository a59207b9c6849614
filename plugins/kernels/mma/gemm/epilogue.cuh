// The epilogue: bias and activation on a warp's accumulators, then 16 rows at a time through shared memory, so that
// every thread stores 16 bytes and a warp whole rows of its tile.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_EPILOGUE_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_EPILOGUE_CUH_

#include "kernels/activation.cuh"
#include "kernels/mma/gemm/config.cuh"
#include "kernels/mma/gemm/tile_scheduler.cuh"
#include "kernels/ptx/shared.cuh"

namespace bertfuse::kernels::gemm_mma {

// 16 rows x kColumns of a warp. Each thread stores pairs of columns, lane 4i + j those of row i; both these stores and
// the loads of whole rows fall into different banks.
template <class Y, int kColumns>
class StagedRows {
 public:
  static constexpr int kRowBytes = kColumns * static_cast<int>(sizeof(Y));
  static constexpr int kBytes = 16 * kRowBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes, kPerChunk = kChunkBytes / static_cast<int>(sizeof(Y));

  __device__ __forceinline__ explicit StagedRows(uint32_t address) : address_(address) {}

  __device__ __forceinline__ void Store(int row, int column, float a, float b) const {
    const int byte = column * static_cast<int>(sizeof(Y));
    const uint32_t at = Chunk(row, byte / kChunkBytes) + byte % kChunkBytes;
    if constexpr (sizeof(Y) == 4) {
      StoreShared(at, {__float_as_uint(a), __float_as_uint(b)});
    } else {
      StoreShared(at, PackPair<Y>(a, b));
    }
  }
  __device__ __forceinline__ void Load(uint32_t (&words)[4], int row, int chunk) const {
    LoadShared(words, Chunk(row, chunk));
  }

 private:
  // Of pairs of 4 bytes, 8 rows are stored at a time; of 8 bytes, which are in one of two neighbouring chunks, 4 rows.
  __device__ __forceinline__ uint32_t Chunk(int row, int chunk) const {
    static_assert(kRowBytes == 64 || kRowBytes == 128 || kRowBytes == 256);
    const int swizzle = kRowBytes == 64 ? row >> 1 & 3 : sizeof(Y) == 4 ? (row & 3) << 1 | (row >> 2 & 1) : row & 7;
    return address_ + row * kRowBytes + ((chunk ^ swizzle) << 4);
  }
  uint32_t address_;
};

// Stores 16 rows of a warp from `first_row` and `first_column` on, those below `rows` and `columns`.
template <class Y, int kColumns>
__device__ __forceinline__ void StoreRows(const StagedRows<Y, kColumns>& staged, int lane, Y* y, int first_row,
                                          int rows, int first_column, int columns, bool vectorised) {
  using Staged = StagedRows<Y, kColumns>;
#pragma unroll
  for (int i = lane; i < 16 * Staged::kChunks; i += 32) {
    const int row = i / Staged::kChunks, chunk = i % Staged::kChunks;
    Pack<uint32_t, 4> pack;
    staged.Load(pack.value, row, chunk);
    const int at_row = first_row + row, column = first_column + chunk * Staged::kPerChunk;
    if (at_row >= rows || column >= columns) continue;
    Y* const to = y + static_cast<int64_t>(at_row) * columns + column;
    if (vectorised) {
      *reinterpret_cast<Pack<uint32_t, 4>*>(to) = pack;
    } else {
#pragma unroll
      for (int e = 0; e < Staged::kPerChunk; ++e) {
        if (column + e < columns) to[e] = reinterpret_cast<const Y*>(pack.value)[e];
      }
    }
  }
}

// The scales of 8-bit operands: of the warp's columns in shared memory, and of all rows.
struct Scales {
  const float* of_columns;
  const float* of_rows;
};

// 16 rows of a warp's accumulators as numbers: times their row's and their column's scale. Rows from `rows` on have
// none.
template <class Config>
__device__ __forceinline__ void ScaleRows(float (&v)[4 * Config::kJ],
                                          const typename Config::Accumulator (&sum)[Config::kJ][4],
                                          const Scales& scales, int lane, int first_row, int rows) {
  const int row = first_row + lane / 4;
  const float low = row < rows ? scales.of_rows[row] : 0.0f, high = row + 8 < rows ? scales.of_rows[row + 8] : 0.0f;
#pragma unroll
  for (int j = 0; j < Config::kJ; ++j) {
    const float2 column = *reinterpret_cast<const float2*>(scales.of_columns + j * 8 + lane % 4 * 2);
    v[4 * j] = static_cast<float>(sum[j][0]) * low * column.x;
    v[4 * j + 1] = static_cast<float>(sum[j][1]) * low * column.y;
    v[4 * j + 2] = static_cast<float>(sum[j][2]) * high * column.x;
    v[4 * j + 3] = static_cast<float>(sum[j][3]) * high * column.y;
  }
}

// y or a split's partial sums, as type Y, from a warp's accumulators. `bias`: float32 in shared memory, of the warp's
// columns; null for partial sums. `staging`: the warp's own memory.
template <class Y, class Config>
__device__ __forceinline__ void StoreTile(typename Config::Accumulator (&sum)[Config::kI][Config::kJ][4],
                                          const Scales& scales, const float* bias, Activation activation,
                                          uint32_t staging, Y* y, int first_row, int rows, int first_column,
                                          int columns, bool vectorised) {
  int lane = static_cast<int>(threadIdx.x) % 32;
  asm volatile("" : "+r"(lane));  // else the compiler computes addresses before the main loop, and spills them
  const StagedRows<Y, Config::kWarpN> staged(staging);
#pragma unroll
  for (int i = 0; i < Config::kI; ++i) {
    constexpr bool kScaled = IsQuantized(Config::kMath);
    float scaled[kScaled ? 4 * Config::kJ : 1];
    float* v = scaled;
    if constexpr (kScaled) {
      ScaleRows<Config>(scaled, sum[i], scales, lane, first_row + i * 16, rows);
    } else {
      v = &sum[i][0][0];
    }
    if (bias != nullptr) {
#pragma unroll
      for (int j = 0; j < Config::kJ; ++j) {
        const float2 add = *reinterpret_cast<const float2*>(bias + j * 8 + lane % 4 * 2);
        v[4 * j] += add.x, v[4 * j + 1] += add.y, v[4 * j + 2] += add.x, v[4 * j + 3] += add.y;
      }
      if constexpr (sizeof(Y) == 2) {
        // All at once would take more registers than there are.
#pragma unroll
        for (int e = 0; e < 4 * Config::kJ; e += 16) Activations::For16Bits<16>(v + e, activation);
      } else {
#pragma unroll
        for (int e = 0; e < 4 * Config::kJ; e += 4) Activations::Exact<4>(v + e, activation);
      }
    }
#pragma unroll
    for (int j = 0; j < Config::kJ; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        staged.Store(lane / 4 + half * 8, j * 8 + lane % 4 * 2, v[4 * j + 2 * half], v[4 * j + 2 * half + 1]);
      }
    }
    __syncwarp();
    StoreRows(staged, lane, y, first_row + i * 16, rows, first_column, columns, vectorised);
    __syncwarp();
  }
}

// The sums of a tile's slices in shared memory, float32. Pairs of columns are stored, lane 4i + j those of row i, and
// 16 bytes loaded; both fall into different banks.
template <class Config>
class SliceSums {
 public:
  static constexpr int kColumns = 4;  // that are loaded at a time

  __device__ __forceinline__ explicit SliceSums(uint32_t address) : address_(address) {}

  // A warp's accumulators. The swizzle exchanges eights of columns within groups of kGroup, by rows as they lie among
  // eight, so that all that differs from store to store but for the place in the group is a constant.
  __device__ __forceinline__ void Store(const float (&sum)[Config::kI][Config::kJ][4], int slice, int warp_m,
                                        int warp_n, int lane) const {
    const int row = warp_m + lane / 4, swizzle = SwizzleOf(row);
    const uint32_t first = address_ + ((slice * Config::kM + row) * Config::kN + warp_n + lane % 4 * 2) * 4;
    uint32_t place[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) place[i] = first + (i ^ swizzle) * kEightBytes;
#pragma unroll
    for (int i = 0; i < Config::kI; ++i) {
#pragma unroll
      for (int j = 0; j < Config::kJ; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int constant = (i * 16 + half * 8) * Config::kN * 4 + j / kGroup * kGroup * kEightBytes;
          StoreShared(place[j % kGroup] + constant,
                      {__float_as_uint(sum[i][j][2 * half]), __float_as_uint(sum[i][j][2 * half + 1])});
        }
      }
    }
  }
  // Added up, slice by slice.
  __device__ __forceinline__ void Load(float* v, int row, int column) const {
    const int eight = column / 8 ^ SwizzleOf(row);
    const uint32_t first = address_ + (row * Config::kN + eight * 8 + column % 8) * 4;
#pragma unroll
    for (int slice = 0; slice < Config::kSlices; ++slice) {
      uint32_t words[kColumns];
      LoadShared(words, first + slice * Config::kM * Config::kN * 4);
#pragma unroll
      for (int e = 0; e < kColumns; ++e)
        v[e] = slice == 0 ? __uint_as_float(words[e]) : v[e] + __uint_as_float(words[e]);
    }
  }

 private:
  static constexpr int kEightBytes = 8 * sizeof(float), kGroup = Config::kN % 32 == 0 ? 4 : 2;
  static_assert(Config::kN % 16 == 0 && Config::kWarpN % (8 * kGroup) == 0);
  // 4 rows are stored at a time, of 32 bytes each.
  __device__ __forceinline__ static int SwizzleOf(int row) { return kGroup == 4 ? row & 3 : row >> 1 & 1; }
  uint32_t address_;
};

// StoreTile() where a tile has slices: all threads store parts of it. `bias`: of the tile's columns.
template <class Y, class Config>
__device__ __forceinline__ void StoreSlices(const float (&sum)[Config::kI][Config::kJ][4], int slice, int warp_m,
                                            int warp_n, const float* bias, Activation activation, uint32_t ring, Y* y,
                                            int first_row, int rows, int first_column, int columns, bool vectorised) {
  using Sums = SliceSums<Config>;
  constexpr int kAtOnce = Sums::kColumns, kPerRow = Config::kN / kAtOnce;
  constexpr int kParts = Config::kM * kPerRow / Config::kThreads;  // of a thread
  static_assert(Config::kM * kPerRow % Config::kThreads == 0);
  const Sums sums(ring);
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));  // as in StoreTile()
  sums.Store(sum, slice, warp_m, warp_n, thread % 32);
  __syncthreads();
  // All parts' loads before the first one's branches.
  float v[kParts * kAtOnce];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = part * Config::kThreads + thread;
    sums.Load(v + part * kAtOnce, at / kPerRow, at % kPerRow * kAtOnce);
  }
  if (bias != nullptr) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = part * Config::kThreads + thread;
      const float4 add = *reinterpret_cast<const float4*>(bias + at % kPerRow * kAtOnce);
      float* const of_part = v + part * kAtOnce;
      of_part[0] += add.x, of_part[1] += add.y, of_part[2] += add.z, of_part[3] += add.w;
    }
    if constexpr (sizeof(Y) == 2) {
      Activations::For16Bits<kParts * kAtOnce>(v, activation);
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) Activations::Exact<kAtOnce>(v + part * kAtOnce, activation);
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = part * Config::kThreads + thread;
    const int at_row = first_row + at / kPerRow, at_column = first_column + at % kPerRow * kAtOnce;
    if (at_row >= rows || at_column >= columns) continue;
    const float* const of_part = v + part * kAtOnce;
    Y* const to = y + static_cast<int64_t>(at_row) * columns + at_column;
    if (vectorised) {
      Pack<Y, kAtOnce> pack;
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) pack.value[e] = FromFloat<Y>(of_part[e]);
      *reinterpret_cast<Pack<Y, kAtOnce>*>(to) = pack;
    } else {
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        if (at_column + e < columns) to[e] = FromFloat<Y>(of_part[e]);
      }
    }
  }
}

}  // namespace bertfuse::kernels::gemm_mma
#endif  // BERTFUSE_KERNELS_MMA_GEMM_EPILOGUE_CUH_
