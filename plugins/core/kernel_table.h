// The kernels that this library was linked with: explicit lists, which no linker can drop as unused.
#ifndef BERTFUSE_CORE_KERNEL_TABLE_H_
#define BERTFUSE_CORE_KERNEL_TABLE_H_

#include "bertfuse/op.h"

namespace bertfuse {

struct KernelList {
  const bertfuse_kernel* const* first;
  int count;
  const bertfuse_kernel* const* begin() const { return first; }
  const bertfuse_kernel* const* end() const { return first + count; }
};

KernelList CpuKernels();   // plugins/cpu/kernels.cc
KernelList CudaKernels();  // plugins/ops, where BERTFUSE_WITH_CUDA is defined

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_KERNEL_TABLE_H_
