// Windows of keys, as the attention kernels of all backends count them.
#ifndef BERTFUSE_KERNELS_ATTENTION_VARIANT_CUH_
#define BERTFUSE_KERNELS_ATTENTION_VARIANT_CUH_

#include <cstdint>

namespace bertfuse::kernels {

// In place of a window's side that has no end. Sequences are shorter, so that sums and differences fit into 32 bits.
constexpr int kNoEnd = 1 << 30;

// A window's side as kernels count it.
inline __host__ __device__ int WindowSide(int64_t side) {
  return side < 0 || side > kNoEnd ? kNoEnd : static_cast<int>(side);
}

// The lowest `count` bits of a word; none where it is negative, all from 32 on.
__device__ __forceinline__ uint32_t BitsBelow(int count) {
  return count >= 32 ? 0xffffffffu : (1u << max(count, 0)) - 1;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_VARIANT_CUH_
