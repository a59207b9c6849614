// Packed rows on the device.
#ifndef BERTFUSE_KERNELS_PACKED_ROWS_CUH_
#define BERTFUSE_KERNELS_PACKED_ROWS_CUH_

#include "kernels/dependent_launch.cuh"
#include "kernels/packed_rows.h"
#include "kernels/ptx/scalar.cuh"

namespace bertfuse::kernels {

__device__ __forceinline__ int LoadRowCount(const int32_t* row_count) { return LoadVolatile(row_count); }

// How many of `rows` are real: row_count, clamped to their range.
__device__ __forceinline__ int64_t RealRows(int row_count, int64_t rows) {
  return min(max(static_cast<int64_t>(row_count), int64_t{0}), rows);
}

__device__ __forceinline__ int64_t RealRows(const PackedRows& packed, int64_t rows) {
  return packed.row_count == nullptr ? rows : RealRows(LoadRowCount(packed.row_count), rows);
}

// Called by each block of the kernel right after the one that writes row_count and cu_seqlens. All later kernels then
// begin after these have been written, and may read them at once, without waiting for the kernels before them. (With
// LaunchDependents() first, a later kernel could begin while they are being written.)
__device__ __forceinline__ void WaitThenLaunchDependents() {
  WaitForDependencies();
  LaunchDependents();
}

// Called by a block that has no work, before it exits. The first block waits nevertheless: if a kernel ended before the
// one that precedes it, the next one could start too early.
__device__ __forceinline__ void LeaveEarly(bool first) {
  if (first) WaitForDependencies();
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKED_ROWS_CUH_
