// Rows of x as 8-bit integers, as the products in vector_int8.h take them.
//
// Groups of neighbours along k are multiplied at once: four bytes, or on the baseline two numbers of 16 bits. Without
// VNNI four bytes take VPMADDUBSW, whose sums of two products saturate at 16 bits. x's integers are mostly so small
// that even the sum of two such sums fits. The few groups whose sums might not are outliers: 0 in their row, and
// multiplied apart, as 16-bit numbers.
#ifndef BERTFUSE_CPU_VECTOR_INT8_ROWS_H_
#define BERTFUSE_CPU_VECTOR_INT8_ROWS_H_

#include "cpu/vector.h"
#include "cpu/vector_gemm.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace bertfuse::cpu {
namespace {

#if defined(__AVX512VNNI__)
constexpr int kGroup = 4, kSummed = 1;  // groups whose products are summed in 16 bits
typedef int8_t RowElement;
#elif defined(__AVX2__)
constexpr int kGroup = 4, kSummed = 2;
typedef int8_t RowElement;
#else
constexpr int kGroup = 2, kSummed = 1;
typedef int16_t RowElement;
#endif
constexpr bool kHasOutliers = kSummed > 1;
#if defined(__AMX_INT8__)
constexpr int kGroupsStep = 16;  // of a tile
#else
constexpr int kGroupsStep = kSummed;
#endif

constexpr int64_t Groups(int64_t k) { return (k + kGroup * kGroupsStep - 1) / (kGroup * kGroupsStep) * kGroupsStep; }

// A group that is multiplied apart: its place, its numbers 0 and 2, and 1 and 3. (Of MiniLM's 1 to 11% are, as often as
// two groups together do not fit.)
struct Outlier {
  int32_t group, even, odd;
};

// Behind a row's integers: how many outliers it has, and these.
int64_t OutliersAt(int64_t k) { return (Groups(k) * kGroup * static_cast<int64_t>(sizeof(RowElement)) + 63) / 64 * 64; }

// Bytes from one quantised row of x to the next, 64 of which keep rows of 4096 out of the same cache lines.
int64_t QuantizedStride(int64_t k) {
  const int64_t outliers = kHasOutliers ? Groups(k) * static_cast<int64_t>(sizeof(Outlier)) : 0;
  return (OutliersAt(k) + outliers + 127) / 64 * 64;
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

// Where a row's integers go.
struct RowWriter {
  RowElement* to;
  int32_t* num_outliers;
  Outlier* outliers;

  explicit RowWriter(void* row, int64_t k) : to(static_cast<RowElement*>(row)) {
    num_outliers = reinterpret_cast<int32_t*>(static_cast<char*>(row) + OutliersAt(k));
    outliers = reinterpret_cast<Outlier*>(num_outliers + 1);
    *num_outliers = 0;
  }

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  // Whether sums of products in 16 bits fit: those of the weight's numbers up to 255 with x's of one sign. (128 would
  // fit as well, but is no int8.)
  static bool Fits(__m128i v) {
    const __m128i positive = _mm_max_epi16(v, _mm_setzero_si128());
    const auto sums = [](__m128i parts) {
      const __m128i pairs = _mm_madd_epi16(parts, _mm_set1_epi16(1));
      return _mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, _MM_SHUFFLE(1, 0, 3, 2)));
    };
    const __m128i largest = _mm_max_epi16(sums(positive), sums(_mm_sub_epi16(positive, v)));
    return _mm_movemask_epi8(_mm_cmpgt_epi32(largest, _mm_set1_epi32(127))) == 0;
  }

  void Append(int64_t group, __m128i v) {
    const uint64_t bits = static_cast<uint64_t>(_mm_cvtsi128_si64(v));
    const uint64_t even = (bits & 0xffff) | (bits >> 16 & 0xffff0000),
                   odd = (bits >> 16 & 0xffff) | (bits >> 32 & 0xffff0000);
    outliers[(*num_outliers)++] = {static_cast<int32_t>(group), static_cast<int32_t>(even), static_cast<int32_t>(odd)};
  }

  // Two groups, whose products are summed in 16 bits, from element i on.
  void StoreGroups(__m128i v, int64_t i) {
    if (!Fits(v)) {
      const __m128i first = _mm_move_epi64(v), second = _mm_srli_si128(v, 8);
      const bool keep_first = Fits(first), keep_second = !keep_first && Fits(second);
      if (!keep_first) Append(i / kGroup, first);
      if (!keep_second) Append(i / kGroup + 1, second);
      v = keep_first ? first : keep_second ? _mm_slli_si128(second, 8) : _mm_setzero_si128();
    }
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), _mm_packs_epi16(v, v));
  }
#endif

  void Store(VecInt v, int64_t i) {
#if defined(__AVX512VNNI__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm512_cvtsepi32_epi8(reinterpret_cast<__m512i>(v)));
#elif defined(__AVX512F__)
    const __m256i all = _mm512_cvtsepi32_epi16(reinterpret_cast<__m512i>(v));
    StoreGroups(_mm256_castsi256_si128(all), i);
    StoreGroups(_mm256_extracti128_si256(all, 1), i + kSummed * kGroup);
#elif defined(__AVX2__)
    const __m256i all = reinterpret_cast<__m256i>(v);
    StoreGroups(_mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)), i);
#elif defined(__SSE2__)
    const __m128i all = reinterpret_cast<__m128i>(v);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), _mm_packs_epi32(all, all));
#else
    for (int lane = 0; lane < kLanes; ++lane) to[i + lane] = static_cast<RowElement>(v[lane]);
#endif
  }
};

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

// One row by its own scale (`scale` null), or by a given one and `zero` as QuantizeLinear does it: then infinities
// become the ends, and NaN 0. Returns the scale; `offset` is what the sums of its products begin with.
template <class Row>
float Quantize(const Row& row, int64_t k, const float* scale, int32_t zero, RowWriter to, int32_t* offset) {
  const float magnitude = LargestMagnitude(row, k);
  const float bounded = magnitude < kSmallestMagnitude ? kSmallestMagnitude : magnitude;
  const float made = scale == nullptr ? bounded / 127.0f : *scale, inverse = 127.0f / bounded;
  const int32_t kept_zero = kHasOutliers ? 0 : zero;  // integers without it are smaller: fewer outliers
  const auto quantize = [&](Vec v) {
    Vec scaled = scale == nullptr ? v * inverse : v / made;
    scaled = scaled == scaled ? scaled : Splat(0.0f);
    const float low = -128.0f - static_cast<float>(zero), high = 127.0f - static_cast<float>(zero);
    return RoundToInt(Min(Max(scaled, Splat(low)), Splat(high))) + kept_zero;
  };
  VecInt sum = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    const VecInt v = quantize(row.At(i));
    to.Store(v, i);
    sum += v;
  }
  if (i < k) {
    VecInt v = quantize(row.Part(i, k - i));
    for (int64_t lane = k - i; lane < kLanes; ++lane) v[lane] = 0;
    to.Store(v, i);
    sum += v;
    i += kLanes;
  }
  for (; i < Groups(k) * kGroup; ++i) to.to[i] = 0;
  int64_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  *offset = kGroup == 4 ? static_cast<int32_t>(-128 * total) : 0;
  return scale != nullptr || magnitude == magnitude ? made : kNoScale;
}

float QuantizeRow(const float* x, const float* smooth, int64_t k, const float* scale, int32_t zero, void* row,
                  int32_t* offset) {
  const RowWriter to(row, k);
  if (smooth == nullptr) return Quantize(SmoothRow<false>{x, smooth}, k, scale, zero, to, offset);
  return Quantize(SmoothRow<true>{x, smooth}, k, scale, zero, to, offset);
}

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_INT8_ROWS_H_
