// Which GPUs there are, for tools.
#ifndef BERTFUSE_OPS_GPU_H_
#define BERTFUSE_OPS_GPU_H_

#include <string>

namespace bertfuse::cuda {

// What measurements hold for: "NVIDIA H200, 9.0, 132 multiprocessors". A part of a GPU (MIG) differs from the whole.
std::string GpuIdentity(int device);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GPU_H_
