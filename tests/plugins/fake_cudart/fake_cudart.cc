// The part of the CUDA runtime that bertfuse calls, for machines without a GPU: it knows several devices and the
// kernels that were linked in, refuses what a device would refuse, runs nothing, and records launches and copies as
// JSON lines.
#include "fake_cudart.h"

#include <cuda.h>
#include <cuda_occupancy.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fat_binary.h"

namespace fake_cudart {
namespace {

struct Device {
  const char* name;
  int compute_capability, multiprocessors;
  int shared_per_block, shared_per_multiprocessor;  // bytes; the former with opting in
  int threads_per_multiprocessor;
  int l2_megabytes, clock_mhz, memory_mhz, memory_bits;
};

// From NVIDIA's data sheets and the CUDA programming guide's table of compute capabilities.
constexpr Device kDevices[] = {
    {"NVIDIA H200", 90, 132, 227 << 10, 228 << 10, 2048, 50, 1980, 3201, 6144},
    {"NVIDIA A100-SXM4-80GB", 80, 108, 163 << 10, 164 << 10, 2048, 40, 1410, 1593, 5120},
    {"NVIDIA A10", 86, 72, 99 << 10, 100 << 10, 1536, 6, 1695, 6251, 384},
    {"NVIDIA L4", 89, 58, 99 << 10, 100 << 10, 1536, 48, 2040, 6251, 192},
    {"NVIDIA B200", 100, 148, 227 << 10, 228 << 10, 2048, 126, 1965, 3996, 8192},
    {"NVIDIA GeForce RTX 5090", 120, 170, 99 << 10, 100 << 10, 1536, 96, 2407, 14001, 512},
    {"Tesla T4", 75, 40, 64 << 10, 64 << 10, 1024, 4, 1590, 5001, 256},
};
constexpr int kNumDevices = static_cast<int>(std::size(kDevices));
constexpr int kRegisters = 65536, kReservedShared = 1 << 10, kDefaultShared = 48 << 10, kMaxCluster = 8;
// Multiprocessors in each GPC, whose blocks a cluster may have: 16 or 18 on an H200, of which this takes the fewer.
constexpr int kMultiprocessorsOfGpc = 16;

struct Function {
  std::string name;
  const std::vector<Image>* images;
  int dynamic_shared[kNumDevices] = {};  // the limit that was set; 0: the default one
};

struct State {
  std::mutex mutex;
  std::map<const void*, Function> functions;
  std::string log;
  int64_t allocated = 0;
};

// Registration runs before main(), and unloading after it: never destroyed.
State& TheState() {
  static State& state = *new State;
  return state;
}

thread_local int t_device = 0;
thread_local cudaError_t t_error = cudaSuccess;

bool IsDevice(int device) { return device >= 0 && device < kNumDevices; }

void Log(const std::string& line) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  TheState().log += line + "\n";
}

// A kernel on the current device, or why it cannot run there.
struct Found {
  cudaError_t error = cudaSuccess;
  Function* function = nullptr;
  const Image* image = nullptr;
  Kernel kernel;
};

Found Find(const void* symbol) {
  Found found;
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  const auto function = TheState().functions.find(symbol);
  if (function == TheState().functions.end()) return {cudaErrorInvalidDeviceFunction, nullptr, nullptr, {}};
  found.function = &function->second;
  found.image = ImageFor(*function->second.images, kDevices[t_device].compute_capability);
  if (found.image == nullptr) return {cudaErrorNoKernelImageForDevice, nullptr, nullptr, {}};
  const auto kernel = found.image->kernels.find(function->second.name);
  if (kernel != found.image->kernels.end()) found.kernel = kernel->second;
  return found;
}

struct Shape {
  dim3 cluster = {1, 1, 1};
  bool programmatic = false;
};

Shape ShapeOf(const cudaLaunchConfig_t& config) {
  Shape shape;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      shape.cluster = {attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z};
    } else if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      shape.programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  return shape;
}

int64_t Volume(dim3 size) { return int64_t{size.x} * size.y * size.z; }

// What a device says of a launch before it runs.
cudaError_t Judge(const Found& found, const cudaLaunchConfig_t& config, const Shape& shape) {
  const Device& device = kDevices[t_device];
  const int64_t threads = Volume(config.blockDim), cluster = Volume(shape.cluster);
  const dim3 grid = config.gridDim;
  if (threads == 0 || threads > 1024) return cudaErrorInvalidConfiguration;
  if (threads > found.kernel.max_threads) return cudaErrorLaunchFailure;
  if (Volume(grid) == 0 || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  const int set = found.function->dynamic_shared[t_device];
  const int64_t most = set > 0 ? set : kDefaultShared - found.kernel.static_shared;
  if (static_cast<int64_t>(config.dynamicSmemBytes) > most) return cudaErrorInvalidValue;
  const int64_t registers = (found.kernel.registers + 7) / 8 * 8 * ((threads + 31) / 32 * 32);
  if (registers > kRegisters) return cudaErrorLaunchOutOfResources;
  if ((cluster > 1 || shape.programmatic) && device.compute_capability < 90) return cudaErrorNotSupported;
  const bool divides = grid.x % shape.cluster.x == 0 && grid.y % shape.cluster.y == 0 && grid.z % shape.cluster.z == 0;
  return cluster > kMaxCluster || !divides ? cudaErrorInvalidClusterSize : cudaSuccess;
}

// Blocks that a multiprocessor of the current device holds at a time.
cudaError_t Occupancy(const Found& found, int threads, size_t dynamic_shared, int* blocks) {
  const Device& device = kDevices[t_device];
  cudaOccDeviceProp properties = {};
  properties.computeMajor = device.compute_capability / 10, properties.computeMinor = device.compute_capability % 10;
  properties.maxThreadsPerBlock = 1024, properties.maxThreadsPerMultiprocessor = device.threads_per_multiprocessor;
  properties.regsPerBlock = properties.regsPerMultiprocessor = kRegisters;
  properties.warpSize = 32, properties.numSms = device.multiprocessors;
  properties.sharedMemPerBlock = kDefaultShared;
  properties.sharedMemPerMultiprocessor = static_cast<size_t>(device.shared_per_multiprocessor);
  properties.sharedMemPerBlockOptin = static_cast<size_t>(device.shared_per_block);
  properties.reservedSharedMemPerBlock = kReservedShared;
  cudaOccFuncAttributes attributes = {};
  attributes.maxThreadsPerBlock = found.kernel.max_threads;
  attributes.numRegs = std::max(found.kernel.registers, 1);
  attributes.sharedSizeBytes = static_cast<size_t>(found.kernel.static_shared);
  attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  attributes.maxDynamicSharedSizeBytes = static_cast<size_t>(found.function->dynamic_shared[t_device]);
  const cudaOccDeviceState state = {};
  cudaOccResult result;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &state, threads, dynamic_shared) !=
      CUDA_OCC_SUCCESS) {
    return cudaErrorInvalidValue;
  }
  *blocks = result.activeBlocksPerMultiprocessor;
  return cudaSuccess;
}

std::string Hex(const void* data, int bytes) {
  std::string text;
  char digits[3];
  for (int i = 0; i < bytes; ++i) {
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<const uint8_t*>(data)[i]);
    text += digits;
  }
  return text;
}

std::string Json(dim3 size) {
  return "[" + std::to_string(size.x) + ", " + std::to_string(size.y) + ", " + std::to_string(size.z) + "]";
}

}  // namespace

cudaError_t Fail(cudaError_t error) { return t_error = error; }

}  // namespace fake_cudart

using namespace fake_cudart;

extern "C" {

// What was recorded since the last call, as JSON lines; the text stays until the thread's next call.
__attribute__((visibility("default"))) const char* fake_cudart_take() {
  thread_local std::string taken;
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  taken = std::move(TheState().log);
  TheState().log.clear();
  return taken.c_str();
}

// Each kernel of the machine code that was linked in, as JSON lines; the text stays.
__attribute__((visibility("default"))) const char* fake_cudart_kernels() {
  static std::string text;
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  text.clear();
  for (const auto& [symbol, function] : TheState().functions) {
    for (const Image& image : *function.images) {
      const auto kernel = image.kernels.find(function.name);
      if (kernel == image.kernels.end()) continue;
      text += "{\"name\": \"" + function.name + "\", \"architecture\": " + std::to_string(image.architecture) +
              ", \"registers\": " + std::to_string(kernel->second.registers) +
              ", \"frame_bytes\": " + std::to_string(kernel->second.frame_bytes) + "}\n";
    }
  }
  return text.c_str();
}

// Compute capability of a device, 90 for 9.0; 0 where there is no such device.
__attribute__((visibility("default"))) int fake_cudart_compute_capability(int device) {
  return IsDevice(device) ? kDevices[device].compute_capability : 0;
}

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(new std::vector<Image>(ReadFatBinary(wrapper)));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** images, const char* symbol, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  Function& function = TheState().functions[symbol];
  function.name = name;
  function.images = reinterpret_cast<std::vector<Image>*>(images);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kNumDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!IsDevice(device)) return Fail(cudaErrorInvalidDevice);
  t_device = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = t_error;
  t_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  thread_local std::string text;
  text = "CUDA error " + std::to_string(error);
  return text.c_str();
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!IsDevice(device)) return Fail(cudaErrorInvalidDevice);
  const Device& facts = kDevices[device];
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = facts.compute_capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = facts.compute_capability % 10;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = facts.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = facts.shared_per_block;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = facts.shared_per_multiprocessor;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = facts.l2_megabytes << 20;
      return cudaSuccess;
    case cudaDevAttrClockRate:
      *value = 1000 * facts.clock_mhz;
      return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
      *value = 1000 * facts.memory_mhz;
      return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = facts.memory_bits;
      return cudaSuccess;
    default:
      return Fail(cudaErrorInvalidValue);
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!IsDevice(device)) return Fail(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "%s", kDevices[device].name);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* symbol) {
  const Found found = Find(symbol);
  if (found.error != cudaSuccess) return Fail(found.error);
  *attributes = {};
  attributes->sharedSizeBytes = static_cast<size_t>(found.kernel.static_shared);
  attributes->maxThreadsPerBlock = found.kernel.max_threads;
  attributes->numRegs = found.kernel.registers;
  attributes->ptxVersion = found.image->architecture;
  attributes->binaryVersion = found.image->is_ptx ? kDevices[t_device].compute_capability : found.image->architecture;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* symbol, cudaFuncAttribute attribute, int value) {
  const Found found = Find(symbol);
  if (found.error != cudaSuccess) return Fail(found.error);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return Fail(cudaErrorInvalidValue);
  if (value < 0 || value + found.kernel.static_shared > kDevices[t_device].shared_per_block) {
    return Fail(cudaErrorInvalidValue);
  }
  found.function->dynamic_shared[t_device] = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* symbol, int threads, size_t shared) {
  const Found found = Find(symbol);
  return Fail(found.error != cudaSuccess ? found.error : Occupancy(found, threads, shared, blocks));
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* symbol, const cudaLaunchConfig_t* config) {
  const Found found = Find(symbol);
  if (found.error != cudaSuccess) return Fail(found.error);
  const auto blocks = static_cast<int>(Volume(ShapeOf(*config).cluster));
  int of_multiprocessor = 0;
  const cudaError_t error =
      Occupancy(found, static_cast<int>(Volume(config->blockDim)), config->dynamicSmemBytes, &of_multiprocessor);
  const int left = kDevices[t_device].multiprocessors % kMultiprocessorsOfGpc;
  *clusters = kDevices[t_device].multiprocessors / kMultiprocessorsOfGpc *
                  (kMultiprocessorsOfGpc * of_multiprocessor / blocks) +
              left * of_multiprocessor / blocks;
  return Fail(error);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* symbol, void** arguments) {
  const Found found = Find(symbol);
  if (found.error != cudaSuccess) return Fail(found.error);
  const Shape shape = ShapeOf(*config);
  const cudaError_t error = Judge(found, *config, shape);
  std::string line =
      "{\"launch\": \"" + found.function->name + "\", \"device\": " + std::to_string(t_device) +
      ", \"error\": " + std::to_string(error) + ", \"grid\": " + Json(config->gridDim) +
      ", \"block\": " + Json(config->blockDim) + ", \"shared\": " + std::to_string(config->dynamicSmemBytes) +
      ", \"cluster\": " + Json(shape.cluster) + ", \"programmatic\": " + (shape.programmatic ? "true" : "false") +
      ", \"stream\": " + std::to_string(reinterpret_cast<uintptr_t>(config->stream));
  if (found.kernel.has_parameters) {
    line += ", \"parameters\": [";
    for (size_t i = 0; i < found.kernel.parameters.size(); ++i) {
      line += (i > 0 ? ", \"" : "\"") + Hex(arguments[i], found.kernel.parameters[i].size) + "\"";
    }
    line += "]";
  }
  Log(line + "}");
  return Fail(error);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  Log("{\"copy\": [" + std::to_string(reinterpret_cast<uintptr_t>(to)) + ", " +
      std::to_string(reinterpret_cast<uintptr_t>(from)) + ", " + std::to_string(bytes) + "]}");
  return cudaSuccess;
}

// Device memory is addresses alone, from far beyond what the host uses.
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  *memory = reinterpret_cast<void*>((int64_t{1} << 50) + TheState().allocated);
  TheState().allocated += static_cast<int64_t>((bytes + 511) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }
// At the same place in every run, so that records can be compared.
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  static std::mutex mutex;
  static uintptr_t next = uintptr_t{0x5f} << 40;
  const std::lock_guard<std::mutex> lock(mutex);
  void* at = mmap(reinterpret_cast<void*>(next), bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) return Fail(cudaErrorMemoryAllocation);
  next += (bytes + 0xffff) / 0x10000 * 0x10000;
  *memory = at;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&EncodeTiled) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
