#include <mutex>

#include "kernels/gpu_code.h"

namespace bertfuse::kernels {
namespace {

__global__ void Probe() {}

}  // namespace

cudaError_t CodeInUse(int* machine_code, int* ptx) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, Probe);
  if (error != cudaSuccess) return error;
  *machine_code = attributes.binaryVersion;
  *ptx = attributes.ptxVersion;
  return cudaSuccess;
}

int PtxInUse(const Device& device) {
  static std::once_flag asked[kMaxDevices];
  static int known[kMaxDevices];
  std::call_once(asked[device.id], [&] {
    const DeviceScope scope(device.id);
    int machine_code = 0, ptx = 0;
    if (scope.error() == cudaSuccess && CodeInUse(&machine_code, &ptx) == cudaSuccess) known[device.id] = ptx;
    if (known[device.id] == 0) cudaGetLastError();  // must not surface in someone else's call
  });
  return known[device.id];
}

}  // namespace bertfuse::kernels
