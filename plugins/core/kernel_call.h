// Asking and running kernels through the C ABI; what they report is thrown.
#ifndef BERTFUSE_CORE_KERNEL_CALL_H_
#define BERTFUSE_CORE_KERNEL_CALL_H_

#include "core/op_table.h"
#include "core/status.h"

namespace bertfuse {

inline void ThrowIfFailed(int32_t code, const bertfuse_error& error) {
  if (code != BERTFUSE_OK) throw Error(static_cast<bertfuse_code>(code), error.message);
}

// Bytes, 0 where the kernel needs none.
inline size_t WorkspaceSize(const bertfuse_kernel& kernel, const bertfuse_call& call) {
  size_t bytes = 0;
  bertfuse_error error = {};
  if (kernel.workspace_size != nullptr) ThrowIfFailed(kernel.workspace_size(&call, &bytes, &error), error);
  return bytes;
}

// 0 where the kernel has no choice.
inline int32_t NumTactics(const bertfuse_kernel& kernel, const bertfuse_call& call) {
  int32_t count = 0;
  bertfuse_error error = {};
  if (kernel.num_tactics != nullptr) ThrowIfFailed(kernel.num_tactics(&call, &count, &error), error);
  return count;
}

// Bytes, 0 where the kernel prepares nothing for such a call.
inline size_t PreparedSize(const bertfuse_kernel& kernel, const bertfuse_call& call) {
  size_t bytes = 0;
  bertfuse_error error = {};
  if (kernel.prepared_size != nullptr) ThrowIfFailed(kernel.prepared_size(&call, &bytes, &error), error);
  return bytes;
}

inline void Prepare(const bertfuse_kernel& kernel, const bertfuse_call& call, void* prepared) {
  bertfuse_error error = {};
  ThrowIfFailed(kernel.prepare(&call, prepared, &error), error);
}

inline void Run(const bertfuse_kernel& kernel, const bertfuse_call& call) {
  bertfuse_error error = {};
  ThrowIfFailed(kernel.run(&call, &error), error);
}

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_KERNEL_CALL_H_
