// The one thing asked of CUDA here: which device is current.
#ifndef BERTFUSE_TENSORRT_DEVICE_H_
#define BERTFUSE_TENSORRT_DEVICE_H_

namespace bertfuse::tensorrt {

// -1 where there is none: no GPU, no driver, or a library without the CUDA kernels.
int CurrentDevice() noexcept;

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_DEVICE_H_
