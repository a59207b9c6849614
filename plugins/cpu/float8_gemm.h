// A matrix product of 8-bit floats (e4m3) over the host's threads, in float32: x is rounded row by row, and the weight
// converted. CPUs have no instructions for them; here it runs so that a model made for GPUs does.
#ifndef BERTFUSE_CPU_FLOAT8_GEMM_H_
#define BERTFUSE_CPU_FLOAT8_GEMM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/call.h"
#include "cpu/gemm.h"

namespace bertfuse::cpu {

inline constexpr float kLargestFloat8 = 448.0f;

// Four bits of exponent, three of mantissa, no infinities; NaN where all but the sign are set.
inline float FromFloat8(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = (bits & 127) == 127 ? std::numeric_limits<float>::quiet_NaN()
                          : exponent == 0     ? std::ldexp(static_cast<float>(mantissa), -9)
                                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 128) != 0 ? -magnitude : magnitude;
}

// To the nearest of these numbers, ties to even; what is beyond the largest becomes it, and NaN stays NaN.
inline float RoundedToFloat8(float x) {
  const float magnitude = std::fabs(x);
  float rounded;
  if (!(magnitude < kLargestFloat8)) {
    rounded = magnitude >= kLargestFloat8 ? kLargestFloat8 : magnitude;
  } else if (magnitude < 0.015625f) {  // 2^-6: multiples of 2^-9
    constexpr float kRound = 1.5f * (1 << 14);
    rounded = magnitude + kRound - kRound;
  } else {
    uint32_t bits;
    std::memcpy(&bits, &magnitude, sizeof(bits));
    bits = (bits + 0x7ffffu + (bits >> 20 & 1)) & ~0xfffffu;
    std::memcpy(&rounded, &bits, sizeof(bits));
  }
  return std::copysign(rounded, x);
}

// A row of x, times `smooth` where that is not null, in multiples of `scale`, or, where that is null, of its own
// largest magnitude / 448. Returns the scale: NaN where the row's magnitudes have no finite sum.
inline float RoundRowToFloat8(const float* x, const float* smooth, int64_t k, const float* scale, float* to) {
  float largest = 0, total = 0;
  for (int64_t i = 0; i < k; ++i) {
    to[i] = smooth == nullptr ? x[i] : x[i] * smooth[i];
    largest = std::max(largest, std::fabs(to[i])), total += std::fabs(to[i]);
  }
  const float bounded = std::max(largest, 1e-30f), inverse = kLargestFloat8 / bounded;
  for (int64_t i = 0; i < k; ++i) to[i] = RoundedToFloat8(scale == nullptr ? to[i] * inverse : to[i] / *scale);
  return scale == nullptr ? bounded / kLargestFloat8 + (total - total) : *scale;
}

inline void ConvertFloat8(const void* weight, int64_t begin, int64_t end, float* to) {
  static const auto* const kTable = [] {
    static float table[256];
    for (int i = 0; i < 256; ++i) table[i] = FromFloat8(static_cast<uint8_t>(i));
    return table;
  }();
  for (int64_t i = begin; i < end; ++i) to[i] = kTable[static_cast<const uint8_t*>(weight)[i]];
}

// Room for m rows of k, and for the weight in float32 where nobody has prepared it.
struct Float8Buffers {
  Float8Buffers(int64_t m, int64_t n, int64_t k, bool prepared, Arena& arena)
      : x(arena.Take<float>(m * k)), scales(arena.Take<float>(m)), weight(arena.Take<float>(prepared ? 0 : n * k)) {}
  float *x, *scales, *weight;
};

// y[m,n] = x[m,k] weight[n,k]ᵀ of rounded rows in `buffers` and a weight in float32. `finish` as Gemm has it.
template <class Finish>
void Float8Gemm(const bertfuse_call& call, int64_t m, int64_t n, int64_t k, const Float8Buffers& buffers,
                const float* weight, const float* weight_scale, float* y, Finish&& finish) {
  Gemm(call, m, n, k, buffers.x, {{weight, y}}, [&](int64_t row, int64_t height, int64_t column, int64_t width) {
    for (int64_t i = row; i < row + height; ++i) {
      for (int64_t j = column; j < column + width; ++j)
        y[i * n + j] = y[i * n + j] * buffers.scales[i] * weight_scale[j];
    }
    finish(row, height, column, width);
  });
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_FLOAT8_GEMM_H_
