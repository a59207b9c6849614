#include "core/kernel_table.h"

#include <cstring>

namespace {

const bertfuse_kernel* Find(bertfuse::KernelList kernels, const char* op) {
  for (const bertfuse_kernel* kernel : kernels) {
    if (std::strcmp(kernel->op, op) == 0) return kernel;
  }
  return nullptr;
}

}  // namespace

extern "C" const bertfuse_kernel* bertfuse_find_kernel(const char* op, int32_t device) {
  if (device == BERTFUSE_CPU) return Find(bertfuse::CpuKernels(), op);
#ifdef BERTFUSE_WITH_CUDA
  if (device == BERTFUSE_CUDA) return Find(bertfuse::CudaKernels(), op);
#endif
  return nullptr;
}
