// plugins/kernels/ptx/shared.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_PTX_SHARED_CUH_
#define BERTFUSE_KERNELS_PTX_SHARED_CUH_

#include <cstring>

#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {

#define BERTFUSE_DYNAMIC_SHARED(NAME) char* const NAME = ::emulator::DynamicShared()
inline char* DynamicShared() { return emulator::DynamicShared(); }

template <int kWords>
inline void StoreShared(uint32_t address, const uint32_t (&words)[kWords]) {
  static_assert(kWords == 2 || kWords == 4);
  std::memcpy(emulator::SharedPointer(address, sizeof(words), "st.shared"), words, sizeof(words));
  emulator::NoteSharedAccess(address, sizeof(words), emulator::SharedAccess::kStore);
}
inline void StoreShared(uint32_t address, uint32_t word) {
  std::memcpy(emulator::SharedPointer(address, sizeof(word), "st.shared"), &word, sizeof(word));
  emulator::NoteSharedAccess(address, sizeof(word), emulator::SharedAccess::kStore);
}
template <int kWords>
inline void LoadShared(uint32_t (&words)[kWords], uint32_t address) {
  static_assert(kWords == 2 || kWords == 4);
  std::memcpy(words, emulator::SharedPointer(address, sizeof(words), "ld.shared"), sizeof(words));
  emulator::NoteSharedAccess(address, sizeof(words), emulator::SharedAccess::kLoad);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_SHARED_CUH_
