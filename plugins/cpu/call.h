// What the CPU kernels share: scratch out of the call's workspace, the host's threads and GEMM, and tensors as float32.
#ifndef BERTFUSE_CPU_CALL_H_
#define BERTFUSE_CPU_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "bertfuse/op.h"
#include "core/kernel_call.h"

namespace bertfuse::cpu {

// Hands out pieces of the workspace; with a null base it only counts. A kernel lays its buffers out in one function
// that both its workspace_size and its run call, so the two cannot drift apart.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* Take(int64_t count) {
    const size_t offset = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  void* rest() const { return base_ == nullptr ? nullptr : base_ + used_; }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlignment = 256;
  char* base_;
  size_t used_ = 0;
};

// Work worth waking a thread for, in floats read or written once.
inline constexpr int64_t kGrainElements = 16384;

// The range that one thread should take when each item touches `elements` floats.
inline int64_t GrainFor(int64_t elements) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, elements));
}

// body(begin, end) over disjoint ranges covering [0, count). The body must not throw: it runs on the host's threads.
template <class Body>
void ParallelFor(const bertfuse_call& call, int64_t count, int64_t grain, Body&& body) {
  if (count <= 0) return;
  call.host->parallel_for(
      call.host->context, count, grain,
      [](void* user, int64_t begin, int64_t end) { (*static_cast<std::remove_reference_t<Body>*>(user))(begin, end); },
      &body);
}

// Throws where the call brings less workspace than the kernel asked for.
inline void RequireWorkspace(const bertfuse_call& call, size_t needed) {
  const size_t given = call.workspace == nullptr ? 0 : call.workspace_size;
  if (given < needed) Fail(BERTFUSE_RUNTIME_ERROR, "the workspace has %zu bytes, expected %zu", given, needed);
}

// Where a tensor is given, its data; else null.
inline const float* FloatData(const bertfuse_tensor& tensor) {
  return tensor.dtype == BERTFUSE_ABSENT ? nullptr : static_cast<const float*>(tensor.data);
}

// The float32 form of a kernel: what it needs beyond its tensors, and the run itself.
struct Float32Kernel {
  size_t (*workspace_size)(const bertfuse_call& call);  // may be null
  void (*run)(const bertfuse_call& call);
};

// Workspace and run of a kernel for any float dtype: float32 goes straight through, the others are converted to float32
// in the workspace and back.
size_t AnyFloatWorkspaceSize(const bertfuse_call& call, const Float32Kernel& kernel);
void RunAnyFloat(const bertfuse_call& call, const Float32Kernel& kernel);

// count elements of `dtype` to float32 and back, on the calling thread.
void ToFloat(int32_t dtype, const void* x, float* y, int64_t count);
void FromFloat(int32_t dtype, const float* x, void* y, int64_t count);

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_CALL_H_
