// Compiled once per instruction set: CMake sets BERTFUSE_LOOPS to the name of this build's table and the flags to go
// with it.
#include "cpu/vector_loops.h"

#include <cstring>

#include "cpu/vector.h"
#include "cpu/vector_gemm.h"
#include "cpu/vector_int8.h"
#if defined(__AMX_INT8__)
#include "cpu/vector_int8_amx.h"
#endif
#include "cpu/vector_panels.h"

namespace bertfuse::cpu {
namespace {

inline float Sum(Vec v) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

inline float Largest(Vec v) {
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

// Runs `body` on full vectors of a row and once on a padded copy of its tail, so that every element takes the same
// path.
template <class Body>
inline void MapRow(float* y, int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, body(Load(y + i), i));
  for (; i < n; ++i) y[i] = body(Splat(y[i]), -1 - i)[0];
}

// A full vector at i, or element -1-i in every lane: what MapRow's body reads other rows with.
inline Vec At(const float* x, int64_t i) { return i >= 0 ? Load(x + i) : Splat(x[-1 - i]); }

// e^x to 2e-7 relative; 0 below -87.3 and infinity above 88, so that the exponent built by hand never wraps. NaN comes
// out as NaN.
inline Vec Exp(Vec x) {
  const Vec clamped = Min(Max(x, Splat(-88.0f)), Splat(88.0f));
  const Vec magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const Vec shifted = clamped * 1.44269504f + magic;
  const Vec n = shifted - magic;
  const Vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const VecInt exponent = reinterpret_cast<VecInt>(shifted) - reinterpret_cast<VecInt>(magic) + 127;
  const Vec result = p * reinterpret_cast<Vec>(exponent << 23);
  return x < -87.3f ? Vec{} : x > 88.0f ? Splat(__builtin_inff()) : x == x ? result : x;
}

// erf to 1.4e-7: a polynomial in x² up to 1, 1 - e^-g(|x|) beyond, fitted at Chebyshev nodes. A quotient of polynomials
// over the whole range is a little cheaper, but no better than 3.7e-7 once rounded. From 3.925 on erf is 1 in float32.
inline Vec Erf(Vec x) {
  const Vec a = Min(x < 0.0f ? -x : x, Splat(3.925f));
  const Vec t = x * x;
  Vec p = Splat(7.875874871388078e-05f);
  p = p * t - 0.000801686430349946f;
  p = p * t + 0.005189087241888046f;
  p = p * t - 0.02685421146452427f;
  p = p * t + 0.11283594369888306f;
  p = p * t - 0.3761262595653534f;
  p = p * t + 1.1283791065216064f;
  Vec g = Splat(1.3715614841203205e-05f);
  g = g * a - 0.0003243251994717866f;
  g = g * a + 0.0034835597034543753f;
  g = g * a - 0.022795628756284714f;
  g = g * a + 0.10369326174259186f;
  g = g * a + 0.6386266350746155f;
  g = g * a + 1.126237154006958f;
  g = g * a + 0.0006713762995786965f;
  // Next to 1 the exponential's rounding must not matter: x may be large, and 1 + erf(x) is a factor of it.
  const Vec beyond = a >= 3.925f ? Splat(1.0f) : 1.0f - Exp(-g);
  const Vec result = x < -1.0f ? -beyond : x > 1.0f ? beyond : x * p;
  return x == x ? result : x;
}

template <class Policy>
struct OnCpu : Policy {};

template <>
struct OnCpu<activations::GeluErf> {
  static inline Vec Of(Vec x) { return 0.5f * x * (1.0f + Erf(x * 0.70710678118f)); }
};

template <>
struct OnCpu<activations::GeluTanh> {
  // 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x³): no cancellation where tanh is near -1.
  static inline Vec Of(Vec x) {
    const Vec u = x * (1.5957691216f + 0.0713548162726f * x * x);
    return x / (1.0f + Exp(-u));
  }
};

template <int kThousandths>
struct OnCpu<activations::ScaledSilu<kThousandths>> {
  static inline Vec Of(Vec x) { return x / (1.0f + Exp(-activations::ScaledSilu<kThousandths>::kFactor * x)); }
};

template <class Policy>
void ActivateBy(float* y, const float* bias, int64_t n) {
  if (bias == nullptr) return MapRow(y, n, [](Vec v, int64_t) { return OnCpu<Policy>::Of(v); });
  MapRow(y, n, [bias](Vec v, int64_t i) { return OnCpu<Policy>::Of(v + At(bias, i)); });
}

void Activate(float* y, const float* bias, int64_t n, Activation activation) {
  switch (activation) {
#define BERTFUSE_ACTIVATE(ENUMERATOR, NAME, POLICY) \
  case Activation::ENUMERATOR:                      \
    return ActivateBy<activations::POLICY>(y, bias, n);
    BERTFUSE_ACTIVATIONS(BERTFUSE_ACTIVATE)
#undef BERTFUSE_ACTIVATE
    case Activation::kNone:
      return ActivateBy<activations::Identity>(y, bias, n);
  }
}

// Adds what is given to the row and returns its sum.
template <bool kBias, bool kResidual>
float AddAndSum(float* y, const float* bias, const float* residual, int64_t n) {
  Vec sum = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec v = Load(y + i);
    if (kBias) v += Load(bias + i);
    if (kResidual) v += Load(residual + i);
    if (kBias || kResidual) Store(y + i, v);
    sum += v;
  }
  float tail = 0;
  for (; i < n; ++i) {
    if (kBias) y[i] += bias[i];
    if (kResidual) y[i] += residual[i];
    tail += y[i];
  }
  return Sum(sum) + tail;
}

// Sum of (y - mean)² over the row.
float SquaresAround(const float* y, float mean, int64_t n) {
  Vec squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = Load(y + i) - mean;
    squares += v * v;
  }
  float tail = 0;
  for (; i < n; ++i) tail += (y[i] - mean) * (y[i] - mean);
  return Sum(squares) + tail;
}

float InverseDeviation(const float* y, float mean, int64_t n, float epsilon) {
  return 1.0f / __builtin_sqrtf(SquaresAround(y, mean, n) / static_cast<float>(n) + epsilon);
}

void Norm(const NormRow& row) {
  float* const y = row.y;
  const float *bias = row.bias, *residual = row.residual, *gamma = row.gamma, *beta = row.beta;
  const int64_t n = row.n;
  if (row.product_gamma != nullptr) {
    if (bias != nullptr) AddAndSum<true, false>(y, bias, nullptr, n);
    const float inverse = InverseDeviation(y, 0.0f, n, row.epsilon);
    MapRow(y, n, [=](Vec v, int64_t at) { return v * inverse * (At(row.product_gamma, at) + row.gamma_offset); });
    bias = nullptr;
  }
  const float sum = bias != nullptr       ? residual != nullptr ? AddAndSum<true, true>(y, bias, residual, n)
                                                                : AddAndSum<true, false>(y, bias, residual, n)
                    : residual != nullptr ? AddAndSum<false, true>(y, bias, residual, n)
                                          : AddAndSum<false, false>(y, bias, residual, n);
  if (row.total != nullptr) std::memcpy(row.total, y, static_cast<size_t>(n) * sizeof(float));
  const float mean = row.rms ? 0.0f : sum / static_cast<float>(n);
  const float inverse = InverseDeviation(y, mean, n, row.epsilon);
  const float offset = row.rms ? row.gamma_offset : 0.0f;
  const auto scaled = [=](Vec v, int64_t at) { return (v - mean) * inverse * (At(gamma, at) + offset); };
  if (beta == nullptr) return MapRow(y, n, scaled);
  MapRow(y, n, [=](Vec v, int64_t at) { return scaled(v, at) + At(beta, at); });
}

void Multiply(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] * up[i];
}

void Add(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

// c[kRows, 2 vectors] (+)= a[kRows, k] b[k, 2 vectors]: two vectors of b and kRows broadcasts feed 2 kRows
// multiply-adds.
template <int kRows, bool kAccumulate>
inline void GemmTile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t k) {
  Vec left[kRows], right[kRows];
  for (int r = 0; r < kRows; ++r) {
    left[r] = kAccumulate ? Load(c + r * ldc) : Vec{};
    right[r] = kAccumulate ? Load(c + r * ldc + kLanes) : Vec{};
  }
  for (int64_t i = 0; i < k; ++i) {
    const Vec b0 = Load(b + i * ldb), b1 = Load(b + i * ldb + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float value = a[r * lda + i];
      left[r] += value * b0;
      right[r] += value * b1;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    Store(c + r * ldc, left[r]);
    Store(c + r * ldc + kLanes, right[r]);
  }
}

// c[m, n] (+)= a[m, k] b[k, n].
template <bool kAccumulate>
void SmallGemm(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n,
               int64_t k) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) GemmTile<4, kAccumulate>(a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, k);
    for (; i < m; ++i) GemmTile<1, kAccumulate>(a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, k);
  }
  if (j == n) return;
  for (int64_t i = 0; i < m; ++i) {
    if (!kAccumulate) {
      for (int64_t at = j; at < n; ++at) c[i * ldc + at] = 0;
    }
    for (int64_t p = 0; p < k; ++p) {
      const float value = a[i * lda + p];
      for (int64_t at = j; at < n; ++at) c[i * ldc + at] += value * b[p * ldb + at];
    }
  }
}

// Scales and masks one row of scores in place; returns the largest. The padding behind num_keys is set to vanish, after
// scaling: the scale may be 0.
float ScaleAndMask(float* scores, const float* mask, const float* by_distance, int64_t num_keys, int64_t padded,
                   float scale) {
  Vec largest = Splat(-__builtin_inff());
  for (int64_t i = 0; i < padded; i += kLanes) {
    Vec v = Load(scores + i) * scale;
    if (mask != nullptr) v += Load(mask + i);
    if (by_distance != nullptr) v += Load(by_distance + i);
    Store(scores + i, v);
    if (i + kLanes > num_keys) {
      for (int64_t at = i < num_keys ? num_keys : i; at < i + kLanes; ++at) scores[at] = -__builtin_inff();
      v = Load(scores + i);
    }
    largest = Max(v, largest);
  }
  return Largest(largest);
}

// Adds to the scores of keys from `first` on what queries and keys make of the vectors of their distance. Distances of
// kQueryBlock rows and as many keys are few: both are multiplied with all of them.
void AddPositions(const AttentionRows& block, int64_t first, int64_t padded, float* scores) {
  constexpr int64_t kMost = 2 * kQueryBlock - 1;
  float of_queries[kMost * kQueryBlock], of_keys[kMost * kQueryBlock];
  const int64_t size = block.head_size, last = block.positions - 1;
  for (int64_t j0 = 0; j0 < padded; j0 += kQueryBlock) {
    const int64_t keys = padded - j0 < kQueryBlock ? padded - j0 : kQueryBlock;
    const int64_t at = block.position_at + first + j0;
    const auto row_of = [&](int64_t t) { return t < 0 ? 0 : t > last ? last : t; };
    const int64_t low = row_of(at - (block.rows - 1)), count = row_of(at + keys - 1) - low + 1;
    SmallGemm<false>(block.q_positions + low * size, size, block.qt, block.kt_stride, of_queries, kQueryBlock, count,
                     kQueryBlock, size);
    SmallGemm<false>(block.k_positions + low * size, size, block.kt + first + j0, block.kt_stride, of_keys, kQueryBlock,
                     count, keys, size);
    for (int64_t r = 0; r < block.rows; ++r) {
      float* const row = scores + r * kKeyBlock + j0;
      for (int64_t j = 0; j < keys; ++j) {
        const int64_t t = row_of(at + j - r) - low;
        row[j] += of_queries[t * kQueryBlock + r] + of_keys[t * kQueryBlock + j];
      }
    }
  }
}

void Attention(const AttentionRows& block) {
  float scores[kQueryBlock * kKeyBlock];
  float running_max[kQueryBlock], running_sum[kQueryBlock];
  for (int64_t r = 0; r < block.rows; ++r) {
    running_max[r] = -__builtin_inff();
    running_sum[r] = 0;
    for (int64_t d = 0; d < block.head_size; ++d) block.y[r * block.y_stride + d] = 0;
  }
  for (int64_t first = 0; first < block.num_keys; first += kKeyBlock) {
    const int64_t keys = block.num_keys - first < kKeyBlock ? block.num_keys - first : kKeyBlock;
    const int64_t padded = (keys + kKeyPadding - 1) / kKeyPadding * kKeyPadding;
    SmallGemm<false>(block.q, block.head_size, block.kt + first, block.kt_stride, scores, kKeyBlock, block.rows, padded,
                     block.head_size);
    if (block.q_positions != nullptr) AddPositions(block, first, padded, scores);
    for (int64_t r = 0; r < block.rows; ++r) {
      float* row = scores + r * kKeyBlock;
      const float* mask = block.mask == nullptr ? nullptr : block.mask + first;
      const float* by_distance = block.by_distance == nullptr ? nullptr : block.by_distance + first - r;
      const float block_max = ScaleAndMask(row, mask, by_distance, keys, padded, block.scale);
      const float new_max = block_max > running_max[r] ? block_max : running_max[r];
      Vec sum = {};
      for (int64_t i = 0; i < padded; i += kLanes) {
        const Vec e = Exp(Load(row + i) - new_max);
        Store(row + i, e);
        sum += e;
      }
      // The first block has nothing to rescale, and -inf minus itself would be NaN.
      if (first > 0 && new_max != running_max[r]) {
        const float factor = Exp(Splat(running_max[r] - new_max))[0];
        running_sum[r] *= factor;
        float* y = block.y + r * block.y_stride;
        for (int64_t d = 0; d < block.head_size; ++d) y[d] *= factor;
      }
      running_max[r] = new_max;
      running_sum[r] += Sum(sum);
    }
    SmallGemm<true>(scores, kKeyBlock, block.v + first * block.head_size, block.head_size, block.y, block.y_stride,
                    block.rows, block.head_size, keys);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    const float inverse = 1.0f / running_sum[r];
    float* y = block.y + r * block.y_stride;
    for (int64_t d = 0; d < block.head_size; ++d) y[d] *= inverse;
  }
}

inline uint32_t Bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FromBits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return FromBits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Moves the bits into place and lets a multiplication by 2^112 mend the exponent: right for subnormals too.
  return FromBits(sign | Bits(FromBits(magnitude << 13) * FromBits(0x77800000)));
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 puts the half's last place at the float's, so the addition rounds to nearest even.
    return static_cast<uint16_t>(sign | (Bits(FromBits(magnitude) + 0.5f) - Bits(0.5f)));
  }
  const uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

void Float16ToFloat(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  }
#endif
  for (; i < n; ++i) y[i] = HalfToFloat(x[i]);
}

void FloatToFloat16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < n; ++i) y[i] = FloatToHalf(x[i]);
}

void Bfloat16ToFloat(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = FromBits(static_cast<uint32_t>(x[i]) << 16);
}

void FloatToBfloat16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = Bits(x[i]);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    // NaN: rounding could carry its last bits away and leave infinity.
    y[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
  }
}

}  // namespace

#define BERTFUSE_STRING_OF(x) #x
#define BERTFUSE_STRING(x) BERTFUSE_STRING_OF(x)

#if defined(__AMX_INT8__)
constexpr int64_t kTileOfRows = 2 * kAmxRows;
constexpr auto* kGemmInt8 = GemmInt8Amx;
#else
constexpr int64_t kTileOfRows = kInt8Rows;
constexpr auto* kGemmInt8 = GemmInt8;
#endif

extern const VectorLoops BERTFUSE_LOOPS;
const VectorLoops BERTFUSE_LOOPS = {BERTFUSE_STRING(BERTFUSE_LOOPS), Activate, Norm, Multiply, Add, Gemm,
                                    // Four lanes, SSE's: 43 GFLOP/s by panels, 45 without.
                                    kLanes > 4 ? PanelGemm : Gemm, Attention, Float16ToFloat, FloatToFloat16,
                                    Bfloat16ToFloat, FloatToBfloat16, Int8ToFloat, kTileOfRows, kInt8Columns * kLanes,
                                    PackedBytes, PackInt8, WeightSums, QuantizedStride, QuantizeRow, kGemmInt8};

}  // namespace bertfuse::cpu
