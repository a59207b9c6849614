// Shared memory by its 32-bit addresses, which take half the registers and arithmetic of pointers.
#ifndef BERTFUSE_KERNELS_PTX_SHARED_CUH_
#define BERTFUSE_KERNELS_PTX_SHARED_CUH_

#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {

// The launch's dynamic shared memory, aligned to what TMA swizzles by address bits.
#define BERTFUSE_DYNAMIC_SHARED(NAME) extern __shared__ __align__(1024) char NAME[]
__device__ __forceinline__ char* DynamicShared() {
  BERTFUSE_DYNAMIC_SHARED(dynamic_shared);
  return dynamic_shared;
}

// Two or four words at a multiple of their size.
__device__ __forceinline__ void StoreShared(uint32_t address, const uint32_t (&words)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(words[0]), "r"(words[1]) : "memory");
}
__device__ __forceinline__ void StoreShared(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void LoadShared(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadShared(uint32_t (&words)[2], uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void StoreShared(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_SHARED_CUH_
