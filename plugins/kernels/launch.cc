#include "kernels/launch.h"

#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <utility>

namespace bertfuse::kernels {
namespace {

// What a launch needs to know of a kernel on a device; asked once, because the driver takes its lock to answer.
struct KernelFacts {
  cudaError_t error = cudaSuccess;
  // Code that was compiled for an older architecture does not wait for the kernel before it.
  bool programmatic_launch = false;
};

KernelFacts Prepare(const LaunchConfig& config, const void* kernel) {
  KernelFacts facts;
  cudaFuncAttributes attributes;
  facts.error = cudaFuncGetAttributes(&attributes, kernel);
  if (facts.error != cudaSuccess) return facts;
  facts.programmatic_launch = config.device->compute_capability >= 90 && attributes.ptxVersion >= 90;
  const int dynamic_bytes = config.device->shared_bytes - static_cast<int>(attributes.sharedSizeBytes);
  facts.error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes);
  return facts;
}

KernelFacts GetKernelFacts(const LaunchConfig& config, const void* kernel) {
  static std::shared_mutex mutex;
  static std::map<std::pair<const void*, int>, KernelFacts> known;
  const std::pair<const void*, int> key(kernel, config.device->id);
  {
    std::shared_lock<std::shared_mutex> lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  const KernelFacts facts = Prepare(config, kernel);
  if (facts.error == cudaSuccess) {
    std::unique_lock<std::shared_mutex> lock(mutex);
    known[key] = facts;
  }
  return facts;
}

// `attributes` holds two.
cudaLaunchConfig_t Describe(const LaunchConfig& config, bool programmatic_launch, cudaLaunchAttribute* attributes) {
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = config.stream;
  launch.attrs = attributes;
  if (programmatic_launch) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[launch.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster > 1) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[launch.numAttrs].val.clusterDim.x = config.cluster;
    attributes[launch.numAttrs].val.clusterDim.y = 1;
    attributes[launch.numAttrs++].val.clusterDim.z = 1;
  }
  return launch;
}

}  // namespace

cudaError_t ResidentClusters(const LaunchConfig& config, const void* kernel, int* clusters) {
  static std::shared_mutex mutex;
  static std::map<std::tuple<const void*, int, unsigned, unsigned, size_t>, int> known;
  const auto key = std::make_tuple(kernel, config.device->id, config.cluster, config.block.x, config.shared_bytes);
  {
    std::shared_lock<std::shared_mutex> lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) {
      *clusters = found->second;
      return cudaSuccess;
    }
  }
  const KernelFacts facts = GetKernelFacts(config, kernel);
  if (facts.error != cudaSuccess) return facts.error;
  cudaError_t error;
  if (config.cluster == 1) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(clusters, kernel, static_cast<int>(config.block.x),
                                                          config.shared_bytes);
    *clusters *= config.device->multiprocessors;
  } else {
    cudaLaunchAttribute attributes[2];
    LaunchConfig filled = config;
    filled.grid = dim3(config.device->multiprocessors / config.cluster * config.cluster);
    const cudaLaunchConfig_t launch = Describe(filled, false, attributes);
    error = cudaOccupancyMaxActiveClusters(clusters, kernel, &launch);
  }
  if (error != cudaSuccess) return error;
  std::unique_lock<std::shared_mutex> lock(mutex);
  known[key] = *clusters;
  return cudaSuccess;
}

cudaError_t Launch(const LaunchConfig& config, const void* kernel, void** arguments) {
  const KernelFacts facts = GetKernelFacts(config, kernel);
  if (facts.error != cudaSuccess) return facts.error;
  cudaLaunchAttribute attributes[2];
  const cudaLaunchConfig_t launch = Describe(config, facts.programmatic_launch, attributes);
  return cudaLaunchKernelExC(&launch, kernel, arguments);
}

}  // namespace bertfuse::kernels
