// What ONNX Runtime offers a CPU kernel: its thread pool and its GEMM.
#ifndef BERTFUSE_ORT_HOST_H_
#define BERTFUSE_ORT_HOST_H_

#include "bertfuse/op.h"
#include "ort/api.h"

namespace bertfuse::ort {

// ONNX Runtime's own Gemm (MLAS), made once per kernel; runs of one kernel may overlap. It takes the weights as they
// are in every run: only a session's own nodes get them packed ahead.
class HostGemm {
 public:
  explicit HostGemm(const OrtKernelInfo* info);

  // y[m,n] = x[m,k] weight[n,k]ᵀ (+ bias[n]).
  void Run(OrtKernelContext* context, int64_t m, int64_t n, int64_t k, const float* x, const float* weight,
           const float* bias, float* y) const;

 private:
  Owned<OrtMemoryInfo> memory_;
  Owned<OrtOp> plain_;
  Owned<OrtOp> biased_;
};

// One run's services; must outlive the call that `host()` is handed to.
class Host {
 public:
  Host(OrtKernelContext* context, const HostGemm& gemm);
  const bertfuse_host* host() const { return &host_; }

 private:
  const OrtApi* api_;
  OrtKernelContext* context_;
  const HostGemm& gemm_;
  bertfuse_host host_;
};

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_HOST_H_
