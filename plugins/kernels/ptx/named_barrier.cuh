// Barriers of some of a block's threads. Barrier 0 is __syncthreads()'s.
#ifndef BERTFUSE_KERNELS_PTX_NAMED_BARRIER_CUH_
#define BERTFUSE_KERNELS_PTX_NAMED_BARRIER_CUH_

namespace bertfuse::kernels {

// Waits until kThreads threads, this one among them, have come to barrier `id`.
template <int kThreads>
__device__ __forceinline__ void SyncNamed(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_NAMED_BARRIER_CUH_
