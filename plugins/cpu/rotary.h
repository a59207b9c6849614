// RoPE of one head.
#ifndef BERTFUSE_CPU_ROTARY_H_
#define BERTFUSE_CPU_ROTARY_H_

#include <cstdint>

namespace bertfuse::cpu {

// Rotates the first `pairs` pairs of a head's columns, by cosines and sines of one place. `neighbours`: columns 2i and
// 2i + 1 are a pair, not i and i + pairs.
inline void RotateHead(const float* cos, const float* sin, int64_t pairs, bool neighbours, float* x) {
  const int64_t step = neighbours ? 2 : 1, apart = neighbours ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    float& first = x[i * step];
    float& second = x[i * step + apart];
    const float turned = first * cos[i] - second * sin[i];
    second = second * cos[i] + first * sin[i];
    first = turned;
  }
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_ROTARY_H_
