#ifndef BERTFUSE_KERNELS_AFTER_PACKING_CUH_
#define BERTFUSE_KERNELS_AFTER_PACKING_CUH_

#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels {

// How a kernel begins that may be the first to read row_count: waits for the kernels before it. With packed rows the
// ones behind it rely on that (packed_rows.h).
__device__ __forceinline__ void BeginFirst(const PackedRows& packed) {
  if (packed.row_count != nullptr) return WaitThenLaunchDependents();
  LaunchDependents();
  WaitForDependencies();
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_AFTER_PACKING_CUH_
