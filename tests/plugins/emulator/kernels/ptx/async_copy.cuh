// plugins/kernels/ptx/async_copy.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
#define BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_

#include "emulator/machine.h"

namespace bertfuse::kernels {

inline uint32_t SharedAddress(const void* pointer) { return emulator::SharedAddress(pointer); }

template <int kBytes>
inline void CopyAsync(void* shared, const void* global, bool inside) {
  static_assert(kBytes == 4 || kBytes == 16);
  emulator::CopyAsync(shared, global, kBytes, inside);
}

inline void CopyAsync16(uint32_t shared, const void* global, bool inside) {
  emulator::CopyAsync(emulator::SharedPointer(shared, 16, "cp.async"), global, 16, inside);
}

inline void CommitCopies() { emulator::CommitCopies(); }

template <int kPending>
inline void WaitCopies() {
  emulator::WaitCopies(kPending);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
