// How tiles lie in shared memory and registers: what TMA's swizzle, the descriptors of wgmma and its accumulators mean.
#ifndef BERTFUSE_KERNELS_SM90_LAYOUT_CUH_
#define BERTFUSE_KERNELS_SM90_LAYOUT_CUH_

#include <cstdint>

#include "kernels/elements.cuh"
#include "kernels/ptx/async_copy.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels {

template <class T>
inline constexpr TensorMapElement kTensorMapType = {Element<T>::kTensorMapType, sizeof(T)};

// Byte offset of an element in a tile that TMA swizzles; `pitch` is the row's 32, 64 or 128 bytes.
template <int kPitch>
__device__ __forceinline__ uint32_t Swizzled(uint32_t row, uint32_t byte) {
  constexpr uint32_t kMask = kPitch / 16 - 1;
  const uint32_t offset = row * kPitch + byte;
  return offset ^ ((offset >> 7 & kMask) << 4);
}

// Descriptor of a tile whose rows are 128 bytes, swizzled, on a 1024-byte boundary: 8 rows every 1024
// bytes.
__device__ __forceinline__ uint64_t TileDescriptor(const void* shared) {
  return static_cast<uint64_t>(SharedAddress(shared) >> 4) | static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

// A thread's elements of a warpgroup product's accumulator d: d[4 j + e] is at row (lane / 4) + 8 (e / 2) of its warp's
// 16, and column 8 j + 2 (lane % 4) + e % 2. These are where they start.
__device__ __forceinline__ int FirstRow() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int FirstColumn() { return threadIdx.x % 4 * 2; }

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_LAYOUT_CUH_
