#ifndef BERTFUSE_KERNELS_PREFETCH_H_
#define BERTFUSE_KERNELS_PREFETCH_H_

#include <cstddef>

namespace bertfuse::kernels {

// What a later kernel reads, to be brought into the L2 cache by a short one that has the device's memory for itself.
struct Prefetch {
  static constexpr int kLineBytes = 128;
  const char* data = nullptr;
  int lines = 0;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PREFETCH_H_
