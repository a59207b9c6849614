// Numbers in 8 bits: how they are rounded, and how a norm writes a row of them.
#ifndef BERTFUSE_KERNELS_QUANTIZED_ROW_CUH_
#define BERTFUSE_KERNELS_QUANTIZED_ROW_CUH_

#include <type_traits>

#include "kernels/elements.cuh"
#include "kernels/ptx/scalar.cuh"
#include "kernels/quantized_result.h"

namespace bertfuse::kernels {

constexpr float kLeastMagnitude = 1e-30f;  // of a row, so that its scale has an inverse
template <class Quantized>
constexpr float kLargestQuantized = std::is_same_v<Quantized, int8_t> ? 127.0f : 448.0f;

// Numbers in 8 bits on their way to memory, by words where they fill some: what is returned as bytes the compiler takes
// apart and puts together again, ten instructions for four.
template <class Quantized, int kVector>
using QuantizedPack = std::conditional_t<kVector % 4 == 0, Pack<uint32_t, kVector / 4>, Pack<Quantized, kVector>>;

// `zero`: what 0 becomes of integers. NaN becomes the least of them.
template <class Quantized, int kVector>
__device__ __forceinline__ QuantizedPack<Quantized, kVector> Rounded(const float (&values)[kVector], int zero = 0) {
  constexpr bool kWords = kVector % 4 == 0;
  QuantizedPack<Quantized, kVector> pack;
  if constexpr (std::is_same_v<Quantized, int8_t>) {
    // The bits of x + 1.5 * 2^23 are the integer above those of 1.5 * 2^23: conversions take four times as long as
    // additions. Beyond 2^22 they are another number, but still grow with x while the sum is positive, and saturate.
    int32_t integers[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float sum = fmaxf(values[i], -4194304.0f) + 12582912.0f;
      integers[i] = reinterpret_cast<const int32_t&>(sum) - 0x4B400000 + zero;
    }
#pragma unroll
    for (int i = 0; i < kVector; i += kWords ? 4 : 1) {
      if constexpr (kWords) {
        pack.value[i / 4] = PackSaturated(integers[i], integers[i + 1], integers[i + 2], integers[i + 3]);
      } else {
        pack.value[i] = static_cast<int8_t>(min(max(integers[i], -128), 127));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVector; i += kWords ? 4 : 1) {
      if constexpr (kWords) {
        pack.value[i / 4] = __nv_fp8x4_e4m3(make_float4(values[i], values[i + 1], values[i + 2], values[i + 3])).__x;
      } else {
        pack.value[i] = FromFloat<Quantized>(values[i]);
      }
    }
  }
  return pack;
}

// The bytes that are lowest in these words.
template <int kVector>
__device__ __forceinline__ QuantizedPack<int8_t, kVector> LowestBytes(const uint32_t (&words)[kVector]) {
  static_assert(kVector % 4 == 0);
  QuantizedPack<int8_t, kVector> pack;
#pragma unroll
  for (int i = 0; i < kVector; i += 4) {
    const uint32_t low = __byte_perm(words[i], words[i + 1], 0x0040),
                   high = __byte_perm(words[i + 2], words[i + 3], 0x0040);
    pack.value[i / 4] = __byte_perm(low, high, 0x5410);
  }
  return pack;
}

// Integers of magnitudes below 127.5, as a row has them over its own scale; NaN becomes any of them. The lowest byte of
// x + 1.5 * 2^23 is the integer.
template <int kVector>
__device__ __forceinline__ QuantizedPack<int8_t, kVector> RoundedByOwnScale(const float (&values)[kVector]) {
  if constexpr (kVector % 4 != 0) {
    return Rounded<int8_t>(values);
  } else {
    uint32_t bits[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) bits[i] = __float_as_uint(values[i] + 12582912.0f);
    return LowestBytes(bits);
  }
}

// Integers from their shares, 0 to 1, of the way from -128 to 127. What computes a share clamps it by the same
// instruction (fma.sat, of NaN 0), so that a number takes three and not Rounded()'s five; within 5e-5 of the middle
// between two integers, either of them may come out.
template <int kVector>
__device__ __forceinline__ QuantizedPack<int8_t, kVector> RoundedShares(const float (&shares)[kVector]) {
  uint32_t bits[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) bits[i] = __float_as_uint(fmaf(shares[i], 255.0f, 12582912.0f - 128.0f));
  return LowestBytes(bits);
}

// Integers as floats: the bytes of 2^23 + 128 + x. A conversion takes the time of four of these instructions.
__device__ __forceinline__ void FloatsOfIntegers(uint32_t word, float (&values)[4]) {
  const uint32_t from_zero = word ^ 0x80808080u;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    values[i] = __uint_as_float(__byte_perm(from_zero, 0x4B000000u, 0x7440u | i)) - (8388608.0f + 128.0f);
  }
}
template <int kVector>
__device__ __forceinline__ void FloatsOfIntegers(const Pack<int8_t, kVector>& pack, float (&values)[kVector]) {
  if constexpr (kVector == 4) {
    FloatsOfIntegers(reinterpret_cast<const uint32_t&>(pack), values);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = ToFloat(pack.value[i]);
  }
}

// 1 / x as it is rounded, where that is neither tiny nor huge. A division has a call for the rest: beside it the
// compiler orders the instructions of a whole kernel otherwise.
__device__ __forceinline__ float InverseOfScale(float x) {
  const float about = __fdividef(1.0f, x);
  return fabsf(about) == INFINITY ? about : fmaf(about, fmaf(-x, about, 1.0f), about);
}

// What 0 becomes beside a QuantizedResult's one scale.
__device__ __forceinline__ int ZeroOf(const QuantizedResult& to) { return to.zero == nullptr ? 0 : *to.zero; }

// Fetches a QuantizedResult's scale and zero point long before an epilogue waits for them: they are alone in their
// lines of memory, which nothing else fetches.
__device__ __forceinline__ void PrefetchScale(const QuantizedResult& to) {
  if (to.scale != nullptr) PrefetchL2(to.scale);
  if (to.zero != nullptr) PrefetchL2(to.zero);
}

// Stores numbers in 8 bits of a QuantizedResult; `at` is the first one's place among all rows'.
template <class Numbers>
__device__ __forceinline__ void StorePack(const QuantizedResult& to, int64_t at, const Numbers& numbers) {
  *reinterpret_cast<Numbers*>(static_cast<char*>(to.rows) + at) = numbers;
}

// Rounds and stores kVector numbers in multiples of their scale.
template <int kVector>
__device__ __forceinline__ void StoreRounded(const QuantizedResult& to, int64_t at, const float (&scaled)[kVector],
                                             int zero = 0) {
  if (to.floats) {
    StorePack(to, at, Rounded<__nv_fp8_e4m3>(scaled));
  } else {
    StorePack(to, at, Rounded<int8_t>(scaled, zero));
  }
}

// What a row of that greatest magnitude is divided by; NaN where one of its numbers is not finite.
__device__ __forceinline__ float ScaleOfRow(float greatest, float most) {
  return fmaxf(greatest, kLeastMagnitude) / most + (greatest - greatest);
}

// A QuantizedResult's one scale, loaded before rows are stored: behind a row's stores, which might have changed it for
// all that the compiler knows, every row would wait for it.
class GivenScale {
 public:
  __device__ __forceinline__ explicit GivenScale(const QuantizedResult& to)
      : scale_(to.scale == nullptr ? 1.0f : *to.scale) {}
  // What columns are multiplied with beside their factors; 1 where rows have scales of their own.
  __device__ __forceinline__ float Inverse() const { return InverseOfScale(scale_); }
  __device__ __forceinline__ float scale() const { return scale_; }

 private:
  float scale_;
};

// One row of a QuantizedResult, from its numbers' greatest magnitude on: over its own scale, or over the one of all
// rows, by whose inverse they are multiplied already.
class QuantizedRow {
 public:
  __device__ __forceinline__ QuantizedRow(const QuantizedResult& to, float greatest, const GivenScale& given)
      : to_(to), greatest_(greatest), given_(given) {
    most_ = to.floats ? kLargestQuantized<__nv_fp8_e4m3> : kLargestQuantized<int8_t>;
  }
  __device__ __forceinline__ float scale() const {
    return to_.scale == nullptr ? ScaleOfRow(greatest_, most_) : given_.scale();
  }
  // Parts of the row, `step` columns apart; none from `columns` behind the first one on. That one's place among all
  // rows' numbers is `at`.
  template <int kParts, int kVector>
  __device__ __forceinline__ void Store(int64_t at, int step, int columns, float (&values)[kParts][kVector]) const {
    if (to_.scale == nullptr) {
      const float inverse = most_ / fmaxf(greatest_, kLeastMagnitude);
#pragma unroll
      for (auto& part : values) {
#pragma unroll
        for (float& value : part) value *= inverse;
      }
    }
    const auto store = [&](auto&& rounded) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const auto numbers = rounded(values[i]);
        if (i * step < columns) StorePack(to_, at + i * step, numbers);
      }
    };
    if (to_.floats) {
      store([](const float (&part)[kVector]) { return Rounded<__nv_fp8_e4m3>(part); });
    } else if (to_.scale != nullptr) {
      const int zero = ZeroOf(to_);
      store([&](const float (&part)[kVector]) { return Rounded<int8_t>(part, zero); });
    } else {
      store([](const float (&part)[kVector]) { return RoundedByOwnScale(part); });
    }
  }

 private:
  const QuantizedResult& to_;
  float greatest_, most_;
  GivenScale given_;
};

// value = element, as it was rounded to T, times its column's factor, where there are any, and with
// `inverse`. Returns the greatest of their magnitudes and `greatest`.
template <class T, int kVector>
__device__ __forceinline__ float Smoothed(const Pack<T, kVector>& row, bool has_factors,
                                          const Pack<float, kVector>& factors, float inverse, float greatest,
                                          float (&value)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    value[i] = ToFloat(row.value[i]) * (has_factors ? factors.value[i] * inverse : inverse);
    greatest = GreaterMagnitude(greatest, value[i]);
  }
  return greatest;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_QUANTIZED_ROW_CUH_
