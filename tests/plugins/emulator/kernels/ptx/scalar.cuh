// plugins/kernels/ptx/scalar.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_PTX_SCALAR_CUH_
#define BERTFUSE_KERNELS_PTX_SCALAR_CUH_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace bertfuse::kernels {

inline int32_t LoadVolatile(const int32_t* data) { return *data; }

inline float Exp2Approximate(float x) { return exp2f(x); }

inline void PrefetchL2(const void*) {}

inline float GreaterMagnitude(float magnitude, float x) {
  return std::isnan(magnitude) || std::fabs(x) <= magnitude ? magnitude : std::fabs(x);
}
inline float GreatestOfWarp(float magnitude) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    magnitude = GreaterMagnitude(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, lanes));
  }
  return magnitude;
}

inline uint32_t PackSaturated(int32_t first, int32_t second, int32_t third, int32_t fourth) {
  uint32_t all = 0;
  for (const int32_t value : {fourth, third, second, first}) {
    all = all << 8 | static_cast<uint8_t>(std::clamp<int32_t>(value, -128, 127));
  }
  return all;
}

inline int Hidden(int value) { return value; }
template <class T>
T* Hidden(T* pointer) {
  return pointer;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_SCALAR_CUH_
