#include "ops/gpu.h"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "bertfuse/tools.h"
#include "core/status.h"
#include "kernels/backend.h"
#include "kernels/cublaslt/library.h"
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

// The first driver release for a CUDA version, "" where it is not known; it serves every minor version, too.
constexpr const char* kFirstDriver = CUDART_VERSION / 1000 == 12   ? ", release 525 or newer"
                                     : CUDART_VERSION / 1000 == 13 ? ", release 580 or newer"
                                                                   : "";

// Says why the device cannot be asked, and what helps.
[[noreturn]] void FailWithout(int device) {
  int count = 0, driver = 0;
  const cudaError_t error = Taken(cudaGetDeviceCount(&count));
  if (error == cudaErrorInsufficientDriver && Taken(cudaDriverGetVersion(&driver)) == cudaSuccess) {
    if (driver == 0) {
      Fail(BERTFUSE_RUNTIME_ERROR,
           "the CUDA driver's libcuda.so.1 does not load (a container needs the driver's 'compute' capability)");
    }
    Fail(BERTFUSE_RUNTIME_ERROR, "the driver is too old, it serves CUDA %d.%d: install one for CUDA %d%s",
         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, kFirstDriver);
  }
  if (error == cudaErrorNoDevice) {
    Fail(BERTFUSE_RUNTIME_ERROR, "the CUDA driver offers no GPU; see whether CUDA_VISIBLE_DEVICES hides it");
  }
  if (error != cudaSuccess) Fail(BERTFUSE_RUNTIME_ERROR, "the CUDA driver fails: %s", cudaGetErrorString(error));
  if (device >= 0 && device < count) Fail(BERTFUSE_RUNTIME_ERROR, "CUDA device %d gives no answer", device);
  Fail(BERTFUSE_RUNTIME_ERROR, "there is no CUDA device %d", device);
}

const kernels::Device& DeviceOf(int device) {
  const kernels::Device* found = kernels::GetDevice(device);
  if (found == nullptr) FailWithout(device);
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
    CheckCuda(Taken(scope.error()), "bertfuse_describe_gpu");
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
    std::string backends;
    for (const bertfuse::kernels::BackendFacts& facts : bertfuse::kernels::kBackends) {
      if (facts.backend == bertfuse::kernels::Backend::kCublasLt &&
          bertfuse::kernels::cublaslt::FindLibrary() == nullptr)
        continue;
      if (RunsOn(facts.backend, device)) backends += (backends.empty() ? "" : " ") + std::string(facts.name);
    }
    std::snprintf(gpu->backends, sizeof(gpu->backends), "%s", backends.c_str());
  });
}
