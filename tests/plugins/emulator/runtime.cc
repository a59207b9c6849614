// The part of the CUDA runtime that launches need, on the emulator.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <utility>

#include "emulator/hopper.h"

namespace {

// Of a kernel on a device with so much shared memory.
std::map<std::pair<const void*, int>, int>& SharedLimits() {
  static auto& limits = *new std::map<std::pair<const void*, int>, int>;
  return limits;
}

constexpr int kDefaultShared = 48 << 10;
constexpr unsigned kMaxCluster = 8;

}  // namespace

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = emulator::TheSettings().compute_capability;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > emulator::TheSettings().shared_bytes) {
    return cudaErrorInvalidValue;
  }
  SharedLimits()[{kernel, emulator::TheSettings().shared_bytes}] = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = emulator::TheSettings().blocks_per_multiprocessor;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  int cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[i].val.clusterDim.x;
  }
  const emulator::Settings& settings = emulator::TheSettings();
  *clusters = settings.multiprocessors * settings.blocks_per_multiprocessor / cluster;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
  const decltype(&cuTensorMapEncodeTiled) encode = emulator::EncodeTiled;
  *function = reinterpret_cast<void*>(encode);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaErrorInvalidConfiguration;
  if (grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  const auto limit = SharedLimits().find({kernel, emulator::TheSettings().shared_bytes});
  const int most = limit == SharedLimits().end() ? kDefaultShared : limit->second;
  if (config->dynamicSmemBytes > static_cast<size_t>(most)) return cudaErrorInvalidValue;
  unsigned cluster = 1;
  bool overlaps = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
    } else if (attribute.id == cudaLaunchAttributeClusterDimension) {
      cluster = attribute.val.clusterDim.x;
      if (attribute.val.clusterDim.y != 1 || attribute.val.clusterDim.z != 1) return cudaErrorNotSupported;
    } else {
      return cudaErrorNotSupported;
    }
  }
  if (cluster < 1 || cluster > kMaxCluster || grid.x % cluster != 0) return cudaErrorInvalidClusterSize;
  const bool good = emulator::RunGrid(kernel, grid, block, cluster, overlaps, config->dynamicSmemBytes, arguments);
  return good ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // extern "C"
