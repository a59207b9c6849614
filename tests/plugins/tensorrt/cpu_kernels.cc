// Linked into a copy of the plugin library in place of the CUDA kernels and the question for a device: the CPU kernels,
// as if they were those of CUDA device 0. So a layer's whole way to its result is tested without a GPU.
#include <array>
#include <cstring>
#include <utility>

#include "../call_builder.h"
#include "core/kernel_call.h"
#include "core/kernel_table.h"
#include "tensorrt/device.h"

// The last call's, for the tests.
extern "C" __attribute__((visibility("default"))) uint64_t bertfuse_test_constant_inputs;
extern "C" __attribute__((visibility("default"))) uint32_t bertfuse_test_flags;
uint64_t bertfuse_test_constant_inputs = 0;
uint32_t bertfuse_test_flags = 0;

namespace bertfuse {
namespace {

constexpr size_t kMaxKernels = 32;

// Kernels are told apart by address only, so there is one function for each.
template <size_t kIndex>
bertfuse_kernel OnDevice() {
  const KernelList kernels = CpuKernels();
  if (kIndex >= static_cast<size_t>(kernels.count)) return {};
  bertfuse_kernel kernel = *kernels.first[kIndex];
  kernel.device = BERTFUSE_CUDA;
  kernel.run = [](const bertfuse_call* given, bertfuse_error* error) -> int32_t {
    const bertfuse_host host = test::SerialHost();
    bertfuse_call call = *given;
    bertfuse_test_constant_inputs = call.constant_inputs;
    bertfuse_test_flags = call.flags;
    call.host = &host;
    const bertfuse_kernel& cpu = *CpuKernels().first[kIndex];
    const size_t needed = WorkspaceSize(cpu, call);
    if (call.device_id != 0) return Report(error, BERTFUSE_RUNTIME_ERROR, "not on the current device");
    if (call.workspace_size < needed) return Report(error, BERTFUSE_RUNTIME_ERROR, "the workspace is too small");
    return cpu.run(&call, error);
  };
  return kernel;
}

template <size_t... kIndices>
std::array<bertfuse_kernel, sizeof...(kIndices)> AllOnDevice(std::index_sequence<kIndices...>) {
  return {OnDevice<kIndices>()...};
}

}  // namespace

int tensorrt::CurrentDevice() noexcept { return 0; }

}  // namespace bertfuse

extern "C" const bertfuse_kernel* bertfuse_find_kernel(const char* op, int32_t device) {
  using namespace bertfuse;
  static const auto kernels = AllOnDevice(std::make_index_sequence<kMaxKernels>());
  for (const bertfuse_kernel& kernel : kernels) {
    if (kernel.op == nullptr || device != BERTFUSE_CUDA) continue;
    if (std::strcmp(kernel.op, op) == 0) return &kernel;
  }
  return nullptr;
}
