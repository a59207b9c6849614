// cp.async: global to shared memory without registers on the way (compute capability 8.0 and later).
#ifndef BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
#define BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_

#include <cstdint>

namespace bertfuse::kernels {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies kBytes (4 or 16), or writes zeros where `inside` is false.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool inside) {
  const int source_bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
                 "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(shared)), "l"(global),
                 "r"(source_bytes)
                 : "memory");
  }
}

// The same for 16 bytes at a shared address. What is behind them in their 128 bytes of global memory is read into the
// L2 cache, too.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(inside ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's latest groups are under way.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
