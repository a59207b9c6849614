#ifndef BERTFUSE_KERNELS_PREFETCH_CUH_
#define BERTFUSE_KERNELS_PREFETCH_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/prefetch.h"
#include "kernels/ptx/scalar.cuh"

namespace bertfuse::kernels {

// Each thread of the grid its lines. Where launches overlap, a product fetches its weight itself while the kernel in
// front of it still runs.
__device__ __forceinline__ void PrefetchByGrid(const Prefetch& next) {
  if constexpr (!kHasDependentLaunch) {
    const int block = static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    const int threads = static_cast<int>(gridDim.x * gridDim.y * gridDim.z * blockDim.x);
#pragma unroll 1
    for (int line = block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); line < next.lines;
         line += threads) {
      PrefetchL2(next.data + static_cast<size_t>(line) * Prefetch::kLineBytes);
    }
  }
}

// Each block of the grid a share of an array's lines, by one thread. The array may be null.
__device__ __forceinline__ void PrefetchByBlocks(const void* data, int bytes) {
  if (data == nullptr) return;
  const int step = static_cast<int>(gridDim.x) * Prefetch::kLineBytes;
#pragma unroll 1
  for (int at = static_cast<int>(blockIdx.x) * Prefetch::kLineBytes; at < bytes; at += step) {
    PrefetchL2(static_cast<const char*>(data) + at);
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PREFETCH_CUH_
