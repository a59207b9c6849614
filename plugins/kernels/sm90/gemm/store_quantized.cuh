// Results in 8 bits, with one scale for all rows, stored from registers.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_STORE_QUANTIZED_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_STORE_QUANTIZED_CUH_

#include "kernels/quantized_row.cuh"
#include "kernels/sm90/gemm/epilogue.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// A QuantizedResult's one scale and zero point, loaded before the main loop: behind it their way from memory would be
// waited for, and, since the stores could change them, again at every part of the tile. They count among
// Parameters::weights_are_constant. Of an epilogue that stores 16 bits: none.
template <class Config>
class ResultScale {
 public:
  __device__ __forceinline__ void Load(const Parameters& p) {
    if constexpr (Config::Epilogue::kQuantizes) {
      scale_ = *p.quantized.scale;
      if constexpr (kIntegers) zero_ = ZeroOf(p.quantized);
    }
  }
  // Of a row; the tiles of the first columns write it.
  __device__ __forceinline__ void Store(int row, int tile_column, const Parameters& p) const {
    if (tile_column == 0 && threadIdx.x % 4 == 0 && row < p.m) p.quantized.scales[row] = scale_;
  }
  // What y is multiplied by: the inverse, and of integers that of their range, too.
  __device__ __forceinline__ float Factor() const {
    if constexpr (Config::Epilogue::kQuantizes) return InverseOfScale(scale_) * (kIntegers ? 1.0f / 255.0f : 1.0f);
    return 1.0f;
  }
  // The share of integers' range (RoundedShares()) that 0 becomes.
  __device__ __forceinline__ float ZeroShare() const {
    if constexpr (kIntegers && Config::Epilogue::kQuantizes) return static_cast<float>(zero_ + 128) * (1.0f / 255.0f);
    return 0.0f;
  }

 private:
  static constexpr bool kIntegers = std::is_same_v<typename Config::X, int8_t>;
  float scale_;
  int zero_;
};

// Numbers as Quantize leaves them.
template <class Quantized, int kCount>
__device__ __forceinline__ QuantizedPack<Quantized, kCount> RoundedNumbers(const float (&numbers)[kCount]) {
  if constexpr (std::is_same_v<Quantized, int8_t>) {
    return RoundedShares(numbers);
  } else {
    return Rounded<Quantized>(numbers);
  }
}

// Four neighbouring lanes have two bytes each of 8 columns, of four such groups: lane i gets all of group i.
__device__ __forceinline__ uint2 TransposePairs(uint2 pairs) {
  const uint32_t lane = threadIdx.x % 4;
  const bool odd = lane & 1, upper = lane & 2;
  const uint32_t half = __shfl_xor_sync(0xffffffffu, upper ? pairs.x : pairs.y, 2);
  // Both groups of the lane's half of them, of lanes 0 or 1, and of 2 or 3.
  const uint32_t low = upper ? half : pairs.x, high = upper ? pairs.y : half;
  const uint32_t even_group = __byte_perm(low, high, 0x5410), odd_group = __byte_perm(low, high, 0x7632);
  const uint32_t own = odd ? odd_group : even_group;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? even_group : odd_group, 1);
  const uint32_t first = odd ? other : own, second = odd ? own : other;
  return {__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632)};
}

// Stores one of a thread's two rows of the one-tile kernel's tile.
template <class Quantized, int kCount>
__device__ __forceinline__ void StoreQuantizedRow(const float (&values)[kCount], int half, int row, int tile_column,
                                                  const Parameters& p) {
  static_assert(kCount % 16 == 0);
  const int first_column = tile_column + static_cast<int>(threadIdx.x) % 4 * 8;
  Quantized* const y = static_cast<Quantized*>(p.quantized.rows) + static_cast<int64_t>(row) * p.n + first_column;
#pragma unroll
  for (int i = 0; i < kCount / 16; ++i) {
    float eight[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) eight[e] = values[16 * i + e / 2 * 4 + 2 * half + e % 2];
    const QuantizedPack<Quantized, 8> pairs = RoundedNumbers<Quantized>(eight);
    const uint2 columns = TransposePairs({pairs.value[0], pairs.value[1]});
    if (row < p.m && first_column + 32 * i < p.n) *reinterpret_cast<uint2*>(y + 32 * i) = columns;
  }
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_STORE_QUANTIZED_CUH_
