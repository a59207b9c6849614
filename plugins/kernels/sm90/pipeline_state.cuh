#ifndef BERTFUSE_KERNELS_SM90_PIPELINE_STATE_CUH_
#define BERTFUSE_KERNELS_SM90_PIPELINE_STATE_CUH_

#include <cstdint>

namespace bertfuse::kernels {

// A position in a ring of stages: the stage, and the parity to wait for at its barriers.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void Advance(int count) {
    stage += count;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

// The same, of a ring whose length the launch decides.
struct TrimmedPipelineState {
  int stage = 0;
  uint32_t parity = 0;
  int stages = 0;
  __device__ __forceinline__ void Advance() { Advance(1); }
  __device__ __forceinline__ void Advance(int count) {  // at most the ring's length
    stage += count;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PIPELINE_STATE_CUH_
