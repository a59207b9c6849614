// Facts about a device, and which one is current.
#ifndef BERTFUSE_KERNELS_DEVICE_H_
#define BERTFUSE_KERNELS_DEVICE_H_

#include <cuda_runtime_api.h>

namespace bertfuse::kernels {

#ifdef BERTFUSE_WITH_SM90
inline constexpr bool kHopperIsBuilt = true;
#else
inline constexpr bool kHopperIsBuilt = false;
#endif

constexpr int kMaxDevices = 64;

struct Device {
  int id = -1;
  int compute_capability = 0;  // 90 for 9.0
  bool hopper = false;         // 9.0, and its kernels are built in
  int multiprocessors = 0;
  int shared_bytes = 0;  // most dynamic shared memory of one block
};

// Facts of a device, read once per process; null if it has no such device.
const Device* GetDevice(int id);

// Makes `id` the current device for its lifetime, and the one that was current again afterwards. Where that fails,
// error() says why, and the current device is still the one before.
class DeviceScope {
 public:
  explicit DeviceScope(int id);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_ = cudaSuccess;
  int previous_ = -1;  // where it is to be made current again
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_DEVICE_H_
