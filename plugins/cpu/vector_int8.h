// Products of 8-bit integers, summed in 32 bits, exactly: rows of x that are quantised here, and a weight that is
// packed once. Tiles are as in vector_gemm.h, but vectors run along the weight's rows, so that sums need no adding up
// of lanes.
//
// One instruction multiplies kGroup neighbours along k: four bytes where there is VNNI, else two numbers of 16 bits
// (VPMADDUBSW, four bytes without VNNI, saturates at 16 bits).
#ifndef BERTFUSE_CPU_VECTOR_INT8_H_
#define BERTFUSE_CPU_VECTOR_INT8_H_

#include "cpu/vector.h"
#include "cpu/vector_gemm.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace bertfuse::cpu {
namespace {

#if defined(__AVX512VNNI__)
constexpr int kGroup = 4;
typedef int8_t RowElement;
#else
constexpr int kGroup = 2;
typedef int16_t RowElement;
#endif
// A group of one row of x, in one register; a vector of groups, one for each of kLanes rows of the weight.
constexpr int64_t kVectorBytes = kLanes * 4;
typedef int32_t UnalignedVecInt __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline VecInt LoadInt(const void* p) { return *static_cast<const UnalignedVecInt*>(p); }

inline int32_t LoadGroup(const void* p) {
  int32_t group;
  __builtin_memcpy(&group, p, sizeof(group));
  return group;
}

// sums + the products of each lane's group of the weight with x's. With VNNI the weight's numbers have 128 added.
inline VecInt Dot(VecInt sums, VecInt weight, int32_t x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<VecInt>(
      _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(weight), _mm512_set1_epi32(x)));
#elif defined(__AVX512BW__)
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

// A tile is kInt8Rows of x by kInt8Columns vectors of the weight's rows: of 32 registers, or 16. (With AVX-512, 6 by 4
// takes 1.09 times as long, 12 by 2 1.1 times.)
constexpr int kInt8Rows = kTileRows == 6 ? 8 : 4, kInt8Columns = 3;

constexpr int64_t Groups(int64_t k) { return (k + kGroup - 1) / kGroup; }

// The weight as [vector of kLanes rows][group of k][row][number of the group], zeros behind its ends; then the sum of
// each row, with zeros up to whole tiles.
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
    for (int64_t at = 0; row < n && at < k; ++at) sum += weight[row * k + at];
    sums[row] = sum;
  }
}

// Bytes from one quantised row of x to the next: the row, and 64 that keep rows of 4096 out of the same cache lines.
int64_t QuantizedStride(int64_t k) {
  return (Groups(k) * kGroup * static_cast<int64_t>(sizeof(RowElement)) + 127) / 64 * 64;
}

inline VecInt RoundToInt(Vec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecInt>(_mm512_cvtps_epi32(v));
#elif defined(__AVX2__)
  return reinterpret_cast<VecInt>(_mm256_cvtps_epi32(v));
#elif defined(__SSE2__)
  return reinterpret_cast<VecInt>(_mm_cvtps_epi32(v));
#else
  VecInt rounded;
  for (int i = 0; i < kLanes; ++i) rounded[i] = v[i] == v[i] ? static_cast<int32_t>(__builtin_rintf(v[i])) : 0;
  return rounded;
#endif
}

// Integers of 8 bits as the elements of a quantised row.
inline void StoreElements(VecInt v, RowElement* to) {
#if defined(__AVX512VNNI__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(reinterpret_cast<__m512i>(v)));
#elif defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(reinterpret_cast<__m512i>(v)));
#elif defined(__AVX2__)
  const __m256i all = reinterpret_cast<__m256i>(v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#elif defined(__SSE2__)
  const __m128i all = reinterpret_cast<__m128i>(v);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(all, all));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<RowElement>(v[i]);
#endif
}

// Of a row whose magnitudes have no finite sum (NaN, infinities) there is no scale: all of its products are NaN.
constexpr float kNoScale = __builtin_nanf("");
// Below it a row's magnitudes are nothing: its scale stays a normal number, and so does the scale's inverse.
constexpr float kSmallestMagnitude = 1e-30f;

// A row of x, each element times its factor of `smooth`.
template <bool kSmooth>
struct SmoothRow {
  const float *x, *smooth;
  Vec At(int64_t i) const { return kSmooth ? Load(x + i) * Load(smooth + i) : Load(x + i); }
  Vec Part(int64_t i, int64_t count) const {
    return kSmooth ? LoadPart(x + i, count) * LoadPart(smooth + i, count) : LoadPart(x + i, count);
  }
};

// The largest magnitude of a row, NaN where their sum is not finite.
template <class Row>
inline float LargestMagnitude(const Row& row, int64_t k) {
  constexpr int kChains = 4;  // so that no sum waits for the one before
  Vec largest[kChains] = {}, total[kChains] = {};
  int64_t i = 0;
  const auto add = [&](Vec v, int chain) {
    const Vec magnitude = v < 0.0f ? -v : v;
    largest[chain] = Max(magnitude, largest[chain]);
    total[chain] += magnitude;
  };
  for (; i + kChains * kLanes <= k; i += kChains * kLanes) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) add(row.At(i + chain * kLanes), chain);
  }
  for (; i + kLanes <= k; i += kLanes) add(row.At(i), 0);
  if (i < k) add(row.Part(i, k - i), 0);
  const Vec larger = Max(Max(largest[0], largest[1]), Max(largest[2], largest[3]));
  const Vec totals = (total[0] + total[1]) + (total[2] + total[3]);
  float magnitude = 0, sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    magnitude = larger[lane] > magnitude ? larger[lane] : magnitude;
    sum += totals[lane];
  }
  return sum - sum == 0 ? magnitude : kNoScale;
}

// One row by its own scale (`scale` null), or by a given one and `zero` as QuantizeLinear does it. Returns the scale;
// `offset` is what the sums of its products begin with.
template <class Row>
float Quantize(const Row& row, int64_t k, const float* scale, int32_t zero, RowElement* to, int32_t* offset) {
  const float magnitude = LargestMagnitude(row, k);
  const float bounded = magnitude < kSmallestMagnitude ? kSmallestMagnitude : magnitude;
  const float made = scale == nullptr ? bounded / 127.0f : *scale, inverse = 127.0f / bounded;
  const auto quantize = [&](Vec v) {
    const Vec scaled = scale == nullptr ? v * inverse : v / made;
    const float low = -128.0f - static_cast<float>(zero), high = 127.0f - static_cast<float>(zero);
    return RoundToInt(Min(Max(scaled, Splat(low)), Splat(high))) + zero;
  };
  VecInt sum = {};
  int64_t total = 0, i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    const VecInt v = quantize(row.At(i));
    StoreElements(v, to + i);
    sum += v;
  }
  if (i < k) {
    const VecInt v = quantize(row.Part(i, k - i));
    for (int64_t lane = 0; i + lane < k; ++lane) to[i + lane] = static_cast<RowElement>(v[lane]), total += v[lane];
  }
  for (int64_t at = k; at < Groups(k) * kGroup; ++at) to[at] = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  *offset = kGroup == 4 ? static_cast<int32_t>(-128 * total) : 0;
  return magnitude == magnitude ? made : kNoScale;
}

float QuantizeRow(const float* x, const float* smooth, int64_t k, const float* scale, int32_t zero, void* row,
                  int32_t* offset) {
  auto* to = static_cast<RowElement*>(row);
  if (smooth == nullptr) return Quantize(SmoothRow<false>{x, smooth}, k, scale, zero, to, offset);
  return Quantize(SmoothRow<true>{x, smooth}, k, scale, zero, to, offset);
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
      sums[r][c] = x.offsets[first + r] - (x.zero == 0 ? VecInt{} : LoadInt(weight_sums + c * kLanes) * x.zero);
    }
  }
  for (int64_t group = 0; group < groups; ++group) {
    VecInt w[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) w[c] = LoadInt(weight + c * vector_stride + group * kVectorBytes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int32_t value = LoadGroup(rows + r * x.stride + group * 4);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sums[r][c] = Dot(sums[r][c], w[c], value);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const float scale = x.scales[first + r];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* to = y + r * y_stride + c * kLanes;
      const float* scales = weight_scale + c * kLanes;
      const Vec sum = __builtin_convertvector(sums[r][c], Vec) * scale;
      if ((c + 1) * kLanes <= columns) {
        Store(to, sum * Load(scales));
      } else {
        for (int64_t i = 0; c * kLanes + i < columns; ++i) to[i] = sum[i] * scales[i];
      }
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
  for (; columns - j > 2 * kLanes; j += kInt8Columns * kLanes) tile(std::integral_constant<int, kInt8Columns>(), j);
  if (columns - j > kLanes)
    tile(std::integral_constant<int, 2>(), j);
  else if (columns > j)
    tile(std::integral_constant<int, 1>(), j);
}

void Int8ToFloat(const int8_t* x, float scale, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]) * scale;
}

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_INT8_H_
