// plugins/kernels/ptx/scalar.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_PTX_SCALAR_CUH_
#define BERTFUSE_KERNELS_PTX_SCALAR_CUH_

#include <cmath>
#include <cstdint>

namespace bertfuse::kernels {

inline int32_t LoadVolatile(const int32_t* data) { return *data; }

inline float Exp2Approximate(float x) { return exp2f(x); }

inline void PrefetchL2(const void*) {}

inline int Hidden(int value) { return value; }
template <class T>
T* Hidden(T* pointer) {
  return pointer;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_SCALAR_CUH_
