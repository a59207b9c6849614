#include "kernels/device.h"

#include <mutex>

namespace bertfuse::kernels {
namespace {

struct Slot {
  std::once_flag once;
  Device device;
  bool valid = false;
};

// An attribute that not every driver answers (under MIG, or in a virtual machine, some are zero).
int Ask(cudaDeviceAttr attribute, int id, int otherwise) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, id) != cudaSuccess) cudaGetLastError();
  return value > 0 ? value : otherwise;
}

void AskForSpeed(Device* device) {
  constexpr int kL2BytesPerMultiprocessor = 1 << 18;  // estimates: no GPU since 7.5 has much less
  constexpr int kClockKilohertz = 1500000;
  constexpr double kMemoryGbsPerMultiprocessor = 8;
  device->shared_bytes_per_multiprocessor =
      Ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device->id, device->shared_bytes + kReservedShared);
  device->l2_bytes = Ask(cudaDevAttrL2CacheSize, device->id, kL2BytesPerMultiprocessor * device->multiprocessors);
  device->clock_mhz = Ask(cudaDevAttrClockRate, device->id, kClockKilohertz) / 1e3;
  const double kilohertz = Ask(cudaDevAttrMemoryClockRate, device->id, 0);
  const double bus_bytes = Ask(cudaDevAttrGlobalMemoryBusWidth, device->id, 0) / 8.0;
  device->memory_gb_s = 2 * kilohertz * bus_bytes / 1e6;  // two transfers per clock
  if (device->memory_gb_s <= 0) device->memory_gb_s = kMemoryGbsPerMultiprocessor * device->multiprocessors;
}

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
    if (slot.valid) AskForSpeed(&device);
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
