#include "kernels/device.h"

#include <mutex>

namespace bertfuse::kernels {
namespace {

struct Slot {
  std::once_flag once;
  Device device;
  bool valid = false;
};

}  // namespace

const Device* GetDevice(int id) {
  static Slot slots[kMaxDevices];
  if (id < 0 || id >= kMaxDevices) return nullptr;
  Slot& slot = slots[id];
  std::call_once(slot.once, [&] {
    int major = 0, minor = 0;
    Device& device = slot.device;
    device.id = id;
    slot.valid =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id) == cudaSuccess &&
        cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, id) == cudaSuccess &&
        cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id) == cudaSuccess;
    device.compute_capability = 10 * major + minor;
    device.hopper = kHopperIsBuilt && device.compute_capability == 90;
    if (!slot.valid) cudaGetLastError();
  });
  return slot.valid ? &slot.device : nullptr;
}

DeviceScope::DeviceScope(int id) {
  int current = -1;
  error_ = cudaGetDevice(&current);
  if (error_ != cudaSuccess || current == id) return;
  error_ = cudaSetDevice(id);
  if (error_ == cudaSuccess) previous_ = current;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace bertfuse::kernels
