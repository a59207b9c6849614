// plugins/kernels/ptx/named_barrier.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_PTX_NAMED_BARRIER_CUH_
#define BERTFUSE_KERNELS_PTX_NAMED_BARRIER_CUH_

#include "emulator/machine.h"

namespace bertfuse::kernels {

template <int kThreads>
inline void SyncNamed(int id) {
  emulator::Barrier("bar.sync", id, kThreads);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_NAMED_BARRIER_CUH_
