#include "ops/gpu.h"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "bertfuse/tools.h"
#include "core/status.h"
#include "kernels/gpu_code.h"
#include "kernels/launch.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

// An error that is answered here must not surface again in someone else's call.
cudaError_t Taken(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

std::string NameOf(int device) {
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, device), "bertfuse_describe_gpu");
  return properties.name;
}

const kernels::Device& DeviceOf(int device) {
  const kernels::Device* found = kernels::GetDevice(device);
  if (found == nullptr) Fail(BERTFUSE_RUNTIME_ERROR, "there is no CUDA device %d", device);
  return *found;
}

}  // namespace

std::string GpuIdentity(int device) {
  const kernels::Device& facts = DeviceOf(device);
  return NameOf(device) + ", " + std::to_string(facts.compute_capability / 10) + "." +
         std::to_string(facts.compute_capability % 10) + ", " + std::to_string(facts.multiprocessors) +
         " multiprocessors";
}

}  // namespace bertfuse::cuda

extern "C" const char* bertfuse_gpu_architectures(void) { return BERTFUSE_GPU_ARCHITECTURES; }

extern "C" int32_t bertfuse_gpu_count(void) {
  int count = 0;
  return bertfuse::cuda::Taken(cudaGetDeviceCount(&count)) == cudaSuccess ? count : 0;
}

extern "C" int32_t bertfuse_describe_gpu(int32_t device_id, bertfuse_gpu* gpu, bertfuse_error* error) {
  using namespace bertfuse::cuda;
  return bertfuse::Guarded(error, [&] {
    const bertfuse::kernels::Device& device = DeviceOf(device_id);
    const bertfuse::kernels::DeviceScope scope(device_id);
    *gpu = {};
    std::snprintf(gpu->name, sizeof(gpu->name), "%s", NameOf(device_id).c_str());
    std::snprintf(gpu->identity, sizeof(gpu->identity), "%s", GpuIdentity(device_id).c_str());
    gpu->compute_capability = device.compute_capability;
    gpu->multiprocessors = device.multiprocessors;
    int machine_code = 0, ptx = 0;
    const cudaError_t code = Taken(bertfuse::kernels::CodeInUse(&machine_code, &ptx));
    if (code != cudaErrorNoKernelImageForDevice) CheckCuda(code, "bertfuse_describe_gpu");
    gpu->code_architecture = machine_code;
    gpu->ptx_architecture = ptx;
    gpu->hopper_kernels = device.hopper;
  });
}
