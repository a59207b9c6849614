// plugins/kernels/ptx/async_copy.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
#define BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_

#include "emulator/machine.h"

namespace bertfuse::kernels {

// The machine code that is emulated: of 7.5 for one of the programs, else of 8.0 and later.
#ifndef BERTFUSE_EMULATED_CAPABILITY
#define BERTFUSE_EMULATED_CAPABILITY 80
#endif
inline constexpr bool kHasAsyncCopies = BERTFUSE_EMULATED_CAPABILITY >= 80;

inline uint32_t SharedAddress(const void* pointer) { return emulator::SharedAddress(pointer); }

template <int kBytes>
inline void CopyAsync(void* shared, const void* global, bool inside) {
  static_assert(kBytes == 4 || kBytes == 16);
  emulator::CopyAsync(shared, global, kBytes, inside);
  if constexpr (!kHasAsyncCopies) {
    emulator::CommitCopies();
    emulator::WaitCopies(0);
  }
}

inline void CopyAsync16(uint32_t shared, const void* global, bool inside) {
  CopyAsync<16>(emulator::SharedPointer(shared, 16, "cp.async"), global, inside);
}

inline void CommitCopies() {
  if constexpr (kHasAsyncCopies) emulator::CommitCopies();
}

template <int kPending>
inline void WaitCopies() {
  if constexpr (kHasAsyncCopies) emulator::WaitCopies(kPending);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_ASYNC_COPY_CUH_
