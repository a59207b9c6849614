// ONNX Runtime's C API: one table of the oldest version supported, its failures as exceptions, its objects as owners.
#ifndef BERTFUSE_ORT_API_H_
#define BERTFUSE_ORT_API_H_

#include <onnxruntime_c_api.h>

#include <memory>

#include "core/status.h"

namespace bertfuse::ort {

// ONNX Runtime 1.21. Newer headers may build this, but the table asked for, and what is used of it, stays this
// version's.
inline constexpr uint32_t kApiVersion = 21;
static_assert(ORT_API_VERSION >= kApiVersion, "bertfuse needs the headers of ONNX Runtime 1.21 or newer");

// The table of the ONNX Runtime whose call this thread is serving. A process may hold several runtimes that load this
// library: each entry point says which one calls it, by an ApiScope.
const OrtApi& Api();

class ApiScope {
 public:
  explicit ApiScope(const OrtApi* api);
  ~ApiScope();
  ApiScope(const ApiScope&) = delete;
  ApiScope& operator=(const ApiScope&) = delete;

 private:
  const OrtApi* previous_;
};

// Throws what a status says, and releases it.
void Check(OrtStatus* status);

// The status of the exception in flight (inside a catch block), with `where` in front of the message.
OrtStatus* StatusFromCurrentException(const char* where) noexcept;

// Runs `body`; whatever it throws becomes a status.
template <class Body>
OrtStatus* GuardedStatus(const char* where, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return StatusFromCurrentException(where);
  }
}

struct Release {
  void operator()(OrtTensorTypeAndShapeInfo* p) const { Api().ReleaseTensorTypeAndShapeInfo(p); }
  void operator()(OrtOpAttr* p) const { Api().ReleaseOpAttr(p); }
  void operator()(OrtOp* p) const { Api().ReleaseOp(p); }
  void operator()(OrtMemoryInfo* p) const { Api().ReleaseMemoryInfo(p); }
  void operator()(OrtValue* p) const { Api().ReleaseValue(p); }
};

template <class T>
using Owned = std::unique_ptr<T, Release>;

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_API_H_
