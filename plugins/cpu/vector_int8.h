// Products of 8-bit integers, summed in 32 bits, exactly: rows of x that are quantised here, and a weight that is
// packed once. Tiles are as in vector_gemm.h, but vectors run along the weight's rows, so that sums need no adding up
// of lanes.
#ifndef BERTFUSE_CPU_VECTOR_INT8_H_
#define BERTFUSE_CPU_VECTOR_INT8_H_

#include "cpu/vector.h"
#include "cpu/vector_gemm.h"
#include "cpu/vector_int8_rows.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace bertfuse::cpu {
namespace {

// A group of one row of x, in one register; a vector of groups, one for each of kLanes rows of the weight.
constexpr int64_t kVectorBytes = kLanes * 4;
typedef uint16_t VecPairs __attribute__((vector_size(kLanes * 4)));
typedef int32_t UnalignedVecInt __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline VecInt LoadInt(const void* p) { return *static_cast<const UnalignedVecInt*>(p); }

inline int32_t LoadGroup(const void* p) {
  int32_t group;
  __builtin_memcpy(&group, p, sizeof(group));
  return group;
}

// sums + the products of each lane's two numbers of 16 bits with x's.
inline VecInt DotPairs(VecInt sums, VecInt weight, int32_t x) {
#if defined(__AVX512BW__)
  return sums + reinterpret_cast<VecInt>(_mm512_madd_epi16(reinterpret_cast<__m512i>(weight), _mm512_set1_epi32(x)));
#elif defined(__AVX2__)
  return sums + reinterpret_cast<VecInt>(_mm256_madd_epi16(reinterpret_cast<__m256i>(weight), _mm256_set1_epi32(x)));
#elif defined(__SSE2__)
  return sums + reinterpret_cast<VecInt>(_mm_madd_epi16(reinterpret_cast<__m128i>(weight), _mm_set1_epi32(x)));
#else
  int16_t pair[2], pairs[2 * kLanes];
  __builtin_memcpy(pair, &x, sizeof(pair));
  __builtin_memcpy(pairs, &weight, sizeof(pairs));
  for (int i = 0; i < kLanes; ++i) sums[i] += pairs[2 * i] * pair[0] + pairs[2 * i + 1] * pair[1];
  return sums;
#endif
}

// sums + the products of each lane's groups of the weight with x's. Of groups of four the weight's numbers have 128
// added.
inline VecInt Dot(VecInt sums, const VecInt (&weight)[kSummed], const int32_t (&x)[kSummed]) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<VecInt>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums),
                                                      reinterpret_cast<__m512i>(weight[0]), _mm512_set1_epi32(x[0])));
#elif defined(__AVX512BW__)
  const __m512i first = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(weight[0]), _mm512_set1_epi32(x[0]));
  const __m512i second = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(weight[1]), _mm512_set1_epi32(x[1]));
  return sums + reinterpret_cast<VecInt>(_mm512_madd_epi16(_mm512_add_epi16(first, second), _mm512_set1_epi16(1)));
#elif defined(__AVX2__)
  const __m256i first = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(weight[0]), _mm256_set1_epi32(x[0]));
  const __m256i second = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(weight[1]), _mm256_set1_epi32(x[1]));
  return sums + reinterpret_cast<VecInt>(_mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1)));
#else
  return DotPairs(sums, weight[0], x[0]);
#endif
}

// A tile is kInt8Rows of x by kInt8Columns vectors of the weight's rows: of 32 registers, or 16. (With AVX-512, 6 by 4
// takes 1.09 times as long, 12 by 2 1.1 times.)
constexpr int kInt8Rows = kTileRows == 6 ? 8 : 4, kInt8Columns = kHasOutliers && kTileRows < 6 ? 2 : 3;

// The weight as [vector of kLanes rows][group of k][row][number of the group], zeros behind its ends; then the sum of
// each row, with zeros up to whole tiles (where rows of x are without their zero, zeros alone).
int64_t PackedWeightBytes(int64_t n, int64_t k) { return (n + kLanes - 1) / kLanes * Groups(k) * kVectorBytes; }

constexpr int64_t kSumsStep = kInt8Columns * kLanes;

int64_t PackedBytes(int64_t n, int64_t k) {
  return PackedWeightBytes(n, k) + (n + kSumsStep - 1) / kSumsStep * kSumsStep * 4;
}

const int32_t* WeightSums(const void* packed, int64_t n, int64_t k) {
  return reinterpret_cast<const int32_t*>(static_cast<const char*>(packed) + PackedWeightBytes(n, k));
}

void PackInt8(const int8_t* weight, int64_t n, int64_t k, void* packed) {
  auto* to = static_cast<RowElement*>(packed);
  for (int64_t first = 0; first < n; first += kLanes) {
    for (int64_t group = 0; group < Groups(k); ++group) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        for (int64_t i = 0; i < kGroup; ++i) {
          const int64_t row = first + lane, at = group * kGroup + i;
          const int value = row < n && at < k ? weight[row * k + at] : 0;
          *to++ = static_cast<RowElement>(kGroup == 4 ? value + 128 : value);
        }
      }
    }
  }
  auto* const sums = const_cast<int32_t*>(WeightSums(packed, n, k));
  for (int64_t row = 0; row < (n + kSumsStep - 1) / kSumsStep * kSumsStep; ++row) {
    int32_t sum = 0;
    for (int64_t at = 0; !kHasOutliers && row < n && at < k; ++at) sum += weight[row * k + at];
    sums[row] = sum;
  }
}

// Adds the products of a row's outliers to its sums.
template <int kColumns>
inline void AddOutliers(const char* row, int64_t k, const char* weight, int64_t vector_stride,
                        VecInt (&sums)[kColumns]) {
  const auto* const count = reinterpret_cast<const int32_t*>(row + OutliersAt(k));
  const auto* const outliers = reinterpret_cast<const Outlier*>(count + 1);
  for (int32_t i = 0; i < *count; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const VecInt w = LoadInt(weight + c * vector_stride + outliers[i].group * kVectorBytes);
      sums[c] = DotPairs(DotPairs(sums[c], w & 0x00ff00ff, outliers[i].even),
                         reinterpret_cast<VecInt>(reinterpret_cast<VecPairs>(w) >> 8), outliers[i].odd);
    }
  }
}

// What the sums of a row of x and a vector of the weight's rows begin with.
inline VecInt FirstSums(const Int8Rows& x, int64_t row, const int32_t* weight_sums) {
  return x.offsets[row] - (x.zero == 0 ? VecInt{} : LoadInt(weight_sums) * x.zero);
}

// A vector of sums as floats, of which `columns` or all are stored.
inline void StoreScaled(VecInt sums, float row_scale, const float* scales, float* to, int64_t columns) {
  const Vec sum = __builtin_convertvector(sums, Vec) * row_scale;
  if (columns >= kLanes) {
    Store(to, sum * Load(scales));
  } else {
    for (int64_t i = 0; i < columns; ++i) to[i] = sum[i] * scales[i];
  }
}

// kRows rows of x by kColumns vectors of the weight's rows, all of k.
template <int kRows, int kColumns>
inline void Int8Tile(const Int8Rows& x, int64_t first, const char* weight, const int32_t* weight_sums, int64_t columns,
                     const float* weight_scale, float* y, int64_t y_stride) {
  const int64_t groups = Groups(x.k), vector_stride = groups * kVectorBytes;
  const char* rows = static_cast<const char*>(x.rows) + first * x.stride;
  VecInt sums[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = FirstSums(x, first + r, weight_sums + c * kLanes);
    }
  }
  for (int64_t group = 0; group < groups; group += kSummed) {
    VecInt w[kColumns][kSummed];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      for (int g = 0; g < kSummed; ++g) w[c][g] = LoadInt(weight + c * vector_stride + (group + g) * kVectorBytes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t values[kSummed];
      for (int g = 0; g < kSummed; ++g) values[g] = LoadGroup(rows + r * x.stride + (group + g) * 4);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sums[r][c] = Dot(sums[r][c], w[c], values);
    }
  }
  if constexpr (kHasOutliers) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) AddOutliers(rows + r * x.stride, x.k, weight, vector_stride, sums[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      StoreScaled(sums[r][c], x.scales[first + r], weight_scale + c * kLanes, y + r * y_stride + c * kLanes,
                  columns - c * kLanes);
    }
  }
}

template <int kRows, int kColumns>
inline void Int8TileRows(const Int8Rows& x, int64_t first, int64_t rows, const char* weight, const int32_t* weight_sums,
                         int64_t columns, const float* weight_scale, float* y, int64_t y_stride) {
  if constexpr (kRows > 0) {
    for (; rows >= kRows; rows -= kRows, first += kRows, y += kRows * y_stride) {
      Int8Tile<kRows, kColumns>(x, first, weight, weight_sums, columns, weight_scale, y, y_stride);
    }
    Int8TileRows<kRows - 1, kColumns>(x, first, rows, weight, weight_sums, columns, weight_scale, y, y_stride);
  }
}

void GemmInt8(const Int8Rows& x, int64_t first, int64_t rows, const void* packed, const float* weight_scale,
              int64_t column, int64_t columns, float* y, int64_t y_stride) {
  const int64_t vector_stride = Groups(x.k) * kVectorBytes;
  const char* weight = static_cast<const char*>(packed) + column / kLanes * vector_stride;
  const float* scales = weight_scale + column;
  const auto tile = [&](auto width, int64_t j) {
    Int8TileRows<kInt8Rows, width()>(x, first, rows, weight + j / kLanes * vector_stride, x.sums + column + j,
                                     columns - j, scales + j, y + j, y_stride);
  };
  int64_t j = 0;
  for (; columns - j > (kInt8Columns - 1) * kLanes; j += kInt8Columns * kLanes) {
    tile(std::integral_constant<int, kInt8Columns>(), j);
  }
  if (columns - j > kLanes) {
    tile(std::integral_constant<int, 2>(), j);
  } else if (columns > j) {
    tile(std::integral_constant<int, 1>(), j);
  }
}

void Int8ToFloat(const int8_t* x, float scale, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]) * scale;
}

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_INT8_H_
