#include "tensorrt/device.h"

#ifdef BERTFUSE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace bertfuse::tensorrt {

int CurrentDevice() noexcept {
#ifdef BERTFUSE_WITH_CUDA
  int device = -1;
  if (cudaGetDevice(&device) == cudaSuccess) return device;
  cudaGetLastError();  // or the next launch would report it
#endif
  return -1;
}

}  // namespace bertfuse::tensorrt
