// RoPE inside the Hopper attention kernel: queries are rotated in registers, keys where they lie in shared memory.
#ifndef BERTFUSE_KERNELS_SM90_ATTENTION_ROTARY_CUH_
#define BERTFUSE_KERNELS_SM90_ATTENTION_ROTARY_CUH_

#include "kernels/elements.cuh"
#include "kernels/packed_places.cuh"
#include "kernels/sm90/attention/config.cuh"
#include "kernels/sm90/layout.cuh"

namespace bertfuse::kernels::attention_sm90 {

// Columns i and i + kHeadSize / 2 of a head are a pair; tables of cosines and sines are [places, kHeadSize / 2].
template <class Config>
class Rotary {
  using T = typename Config::T;
  static constexpr int kHeadSize = Config::kHeadSize, kPairs = kHeadSize / 2;

 public:
  // `row` is the first of a sequence of `length`; only of packed ones is it read.
  __device__ __forceinline__ Rotary(const Parameters& p, int row, int length)
      : cos_(static_cast<const T*>(p.cos)), sin_(static_cast<const T*>(p.sin)), last_(p.places - 1), length_(length) {
    if constexpr (Config::kPacked) places_ = Places(p.packed, row, length);
  }

  // Two columns of queries and the two that they are paired with, which have a bias of their own.
  __device__ __forceinline__ void Rotate(uint32_t& first, uint32_t& second, uint32_t first_bias, uint32_t second_bias,
                                         int token, int column) const {
    const int64_t at = TableRow(token) * kPairs + column;
    const float2 cos = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(cos_ + at));
    const float2 sin = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(sin_ + at));
    const float2 x = UnpackPair<T>(first), y = UnpackPair<T>(second);
    const float2 x_bias = UnpackPair<T>(first_bias), y_bias = UnpackPair<T>(second_bias);
    float u[2] = {x.x + x_bias.x, x.y + x_bias.y}, v[2] = {y.x + y_bias.x, y.y + y_bias.y};
    Turn(u[0], v[0], cos.x, sin.x), Turn(u[1], v[1], cos.y, sin.y);
    first = PackPair<T>(u[0], u[1]), second = PackPair<T>(v[0], v[1]);
  }

  // A warpgroup's share of a block of keys, of which `first_token` is the first; `bias` of the head's keys may be null.
  // Eight lanes have the same columns of eight rows: they meet in no bank, and a warp reads whole rows of the tables.
  __device__ __forceinline__ void RotateKeys(char* keys, int first_token, const T* bias, int group) const {
    constexpr int kVector = 8, kShares = kPairs / kVector, kRowsAtOnce = 128 / kShares;
    const int thread = threadIdx.x % 128, column = thread / 8 % kShares * kVector;
    Pack<T, kVector> bias_first = {}, bias_second = {};
    if (bias != nullptr) {
      bias_first = *reinterpret_cast<const Pack<T, kVector>*>(bias + column);
      bias_second = *reinterpret_cast<const Pack<T, kVector>*>(bias + column + kPairs);
    }
#pragma unroll 1
    for (int row = group * kRowsAtOnce + thread / (8 * kShares) * 8 + thread % 8; row < Config::kKeys;
         row += Config::kWarpgroups * kRowsAtOnce) {
      const int64_t at = TableRow(first_token + row) * kPairs + column;
      const auto cos = *reinterpret_cast<const Pack<T, kVector>*>(cos_ + at);
      const auto sin = *reinterpret_cast<const Pack<T, kVector>*>(sin_ + at);
      auto& first = *reinterpret_cast<Pack<T, kVector>*>(At(keys, row, column));
      auto& second = *reinterpret_cast<Pack<T, kVector>*>(At(keys, row, column + kPairs));
      Pack<T, kVector> x = first, y = second;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float u = ToFloat(x.value[i]) + ToFloat(bias_first.value[i]);
        float v = ToFloat(y.value[i]) + ToFloat(bias_second.value[i]);
        Turn(u, v, ToFloat(cos.value[i]), ToFloat(sin.value[i]));
        x.value[i] = FromFloat<T>(u), y.value[i] = FromFloat<T>(v);
      }
      first = x, second = y;
    }
  }

 private:
  __device__ __forceinline__ static void Turn(float& u, float& v, float cos, float sin) {
    const float x = u, y = v;
    u = x * cos - y * sin, v = y * cos + x * sin;
  }

  // Rows behind the sequence's end are turned by some angle: nothing sees them.
  __device__ __forceinline__ int64_t TableRow(int token) const {
    int place = token;
    if (places_.HaveGaps()) place = places_.At(min(token, length_ - 1));
    return min(place, last_);
  }

  __device__ __forceinline__ static char* At(char* keys, int row, int column) {
    return keys + column / Config::kTileColumns * Config::kKeyTileBytes +
           Swizzled<Config::kPitch>(row, column % Config::kTileColumns * static_cast<int>(sizeof(T)));
  }

  const T *cos_, *sin_;
  int last_, length_;
  Places places_;
};

}  // namespace bertfuse::kernels::attention_sm90
#endif  // BERTFUSE_KERNELS_SM90_ATTENTION_ROTARY_CUH_
