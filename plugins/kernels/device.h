// Facts about a device, and which one is current.
#ifndef BERTFUSE_KERNELS_DEVICE_H_
#define BERTFUSE_KERNELS_DEVICE_H_

#include <cuda_runtime_api.h>

namespace bertfuse::kernels {

constexpr int kMaxDevices = 64;
constexpr int kReservedShared = 1024;  // bytes of shared memory of each block, by the driver

struct Device {
  int id = -1;
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  int shared_bytes = 0;  // most dynamic shared memory of one block
  // What a cost model takes. Where the driver does not say, an estimate from the facts above.
  int shared_bytes_per_multiprocessor = 0;
  int l2_bytes = 0;
  double clock_mhz = 0;    // of the multiprocessors, the highest one
  double memory_gb_s = 0;  // of device memory, 1e9 bytes per second
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
