// plugins/kernels/sm90/ptx/barrier.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_SM90_PTX_BARRIER_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_BARRIER_CUH_

#include "emulator/hopper.h"
#include "kernels/ptx/async_copy.cuh"
#include "kernels/ptx/named_barrier.cuh"

namespace bertfuse::kernels {

inline void InitBarrier(uint64_t* barrier, int arrivals) { emulator::InitBarrier(barrier, arrivals); }
inline void FenceBarrierInit() {}
inline void ArriveExpectTx(uint64_t* barrier, uint32_t bytes) { emulator::ArriveExpectTx(barrier, bytes); }
inline void Arrive(uint64_t* barrier) { emulator::Arrive(barrier); }
inline void ArriveRemote(uint32_t barrier) { emulator::ArriveRemote(barrier); }
inline void WaitBarrier(uint64_t* barrier, uint32_t parity) { emulator::WaitBarrier(barrier, parity); }
template <int kNanoseconds>
inline void WaitBarrierAsleep(uint64_t* barrier, uint32_t parity) {
  emulator::WaitBarrier(barrier, parity);
}

template <int kThreads>
inline void ArriveNamed(int id) {
  emulator::ArriveNamed(id, kThreads);
}
inline void SyncWarpgroup(int id) { SyncNamed<128>(id); }

// Registers are not modelled.
template <int kRegisters>
inline void AllocateRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
inline void DeallocateRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_BARRIER_CUH_
