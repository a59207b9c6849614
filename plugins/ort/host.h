// What ONNX Runtime offers a CPU kernel: its thread pool.
#ifndef BERTFUSE_ORT_HOST_H_
#define BERTFUSE_ORT_HOST_H_

#include "bertfuse/op.h"
#include "ort/api.h"

namespace bertfuse::ort {

// One run's services; must outlive the call that `host()` is handed to.
class Host {
 public:
  explicit Host(OrtKernelContext* context);
  const bertfuse_host* host() const { return &host_; }

 private:
  const OrtApi* api_;
  OrtKernelContext* context_;
  bertfuse_host host_;
};

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_HOST_H_
