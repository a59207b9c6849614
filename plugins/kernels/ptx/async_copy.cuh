// cp.async: global to shared memory without registers on the way (compute capability 8.0 and later). Before, on 7.5,
// the same functions copy at once.
#ifndef BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
#define BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_

#include <cstdint>
#include <type_traits>

namespace bertfuse::kernels {

// Whether copies go on behind the instruction. Where they do not, a loop may keep what it has read in registers until
// it is wanted: see mma/gemm/mainloop.cuh.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define BERTFUSE_HAS_ASYNC_COPIES 1
#else
#define BERTFUSE_HAS_ASYNC_COPIES 0
#endif
inline constexpr bool kHasAsyncCopies = BERTFUSE_HAS_ASYNC_COPIES != 0;

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies kBytes (4 or 16), or writes zeros where `inside` is false.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool inside) {
#if !BERTFUSE_HAS_ASYNC_COPIES
  using Word = std::conditional_t<kBytes == 16, uint4, uint32_t>;
  *static_cast<Word*>(shared) = inside ? __ldg(static_cast<const Word*>(global)) : Word{};
#else
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
#endif
}

// The same for 16 bytes at a shared address. What is behind them in their 128 bytes of global memory is read into the
// L2 cache, too.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool inside) {
#if !BERTFUSE_HAS_ASYNC_COPIES
  CopyAsync<16>(__cvta_shared_to_generic(shared), global, inside);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(inside ? 16 : 0)
               : "memory");
#endif
}

__device__ __forceinline__ void CommitCopies() {
#if BERTFUSE_HAS_ASYNC_COPIES
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's latest groups are under way.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
#if BERTFUSE_HAS_ASYNC_COPIES
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
