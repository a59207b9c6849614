// Launching: programmatic dependent launch and clusters. What a launch needs to know of a kernel is asked once and then
// read under a shared lock.
#ifndef BERTFUSE_KERNELS_LAUNCH_H_
#define BERTFUSE_KERNELS_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device.h"

namespace bertfuse::kernels {

// What the CUDA runtime knows a kernel by. (The emulator of tests/plugins/emulator has another one, which also tells it
// the kernel's parameters.)
#ifndef BERTFUSE_KERNEL_HANDLE
#define BERTFUSE_KERNEL_HANDLE(kernel) reinterpret_cast<const void*>(kernel)
#endif

struct LaunchConfig {
  dim3 grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks along x
  cudaStream_t stream = nullptr;
  const Device* device = nullptr;
};

// Launches `kernel`, raising its limit on shared memory to the device's. From compute capability 9.0 on the launch may
// overlap the end of the preceding kernel in the stream: every kernel launched this way calls WaitForDependencies()
// before it touches what an earlier kernel may have written.
cudaError_t Launch(const LaunchConfig& config, const void* kernel, void** arguments);

// How many clusters (blocks, where cluster is 1) of this configuration the whole device runs at a time. The grid need
// not be set. A cluster's blocks must be on one GPC, so clusters may leave multiprocessors idle.
cudaError_t ResidentClusters(const LaunchConfig& config, const void* kernel, int* clusters);

// Zeros between a value's members. What the host's stack held there would go to the device, and two launches of the
// same kernel with the same arguments would differ.
template <class T>
void ClearPadding([[maybe_unused]] T* value) {
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(value);
#endif
#endif
}

template <class... Parameters, class... Arguments>
cudaError_t Launch(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  // Converted to the parameters' own types: the runtime copies each by the size that the kernel declares.
  return [&](Parameters... values) {
    (ClearPadding(&values), ...);
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    return Launch(config, BERTFUSE_KERNEL_HANDLE(kernel), pointers);
  }(static_cast<Arguments&&>(arguments)...);
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Launches a persistent kernel whose blocks take `at_once` tiles at a time: as many blocks as can be resident, or as
// the tiles need.
template <class Parameters>
cudaError_t LaunchResident(LaunchConfig config, void (*kernel)(Parameters), int64_t tiles, int at_once,
                           const Parameters& parameters) {
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  int blocks = 0;
  const cudaError_t error = ResidentClusters(config, BERTFUSE_KERNEL_HANDLE(kernel), &blocks);
  if (error != cudaSuccess) return error;
  config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, CeilDiv(tiles, at_once))));
  return Launch(config, kernel, parameters);
}

inline bool IsAligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAUNCH_H_
