// Barriers of Hopper: mbarriers in shared memory (with transaction counts), named barriers, and the registers that
// warpgroups hand each other.
#ifndef BERTFUSE_KERNELS_SM90_PTX_BARRIER_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_BARRIER_CUH_

#include <cstdint>

#include "kernels/ptx/async_copy.cuh"
#include "kernels/ptx/named_barrier.cuh"

namespace bertfuse::kernels {

// ---- mbarriers ----

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster. (Elsewhere too no access to a barrier says
// .cluster: acquire and release at that scope compile to fences of the whole device, half a microsecond for each
// stage.)
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ArriveExpectTx(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// Arrives at a barrier anywhere in the cluster, given its DsmemAddress (cluster.cuh).
__device__ __forceinline__ void ArriveRemote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "WAIT:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra DONE;\n\t"
      "bra WAIT;\n"
      "DONE:\n\t}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// The same, asleep between looks at the barrier: a thread that polls takes issue slots from its scheduler's other
// warps.
template <int kNanoseconds>
__device__ __forceinline__ void WaitBarrierAsleep(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "WAIT:\n\t"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra DONE;\n\t"
      "nanosleep.u32 %2;\n\t"
      "bra WAIT;\n"
      "DONE:\n\t}" ::"r"(SharedAddress(barrier)),
      "r"(parity), "n"(kNanoseconds)
      : "memory");
}

// ---- named barriers (SyncNamed() waits) ----

// Comes to barrier `id` without waiting.
template <int kThreads>
__device__ __forceinline__ void ArriveNamed(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// Synchronises a warpgroup.
__device__ __forceinline__ void SyncWarpgroup(int id) { SyncNamed<128>(id); }

// ---- registers ----

template <int kRegisters>
__device__ __forceinline__ void AllocateRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void DeallocateRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_BARRIER_CUH_
