// What allocates or loads code while a stream of the thread, or of another one, is captured in a CUDA graph.
#ifndef BERTFUSE_KERNELS_CUBLASLT_CAPTURE_H_
#define BERTFUSE_KERNELS_CUBLASLT_CAPTURE_H_

#include <cuda_runtime_api.h>

namespace bertfuse::kernels::cublaslt {

// For its lifetime, what this thread calls does not end a capture.
class OutsideCapture {
 public:
  OutsideCapture() : changed_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
  ~OutsideCapture() {
    if (changed_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool changed_;
};

}  // namespace bertfuse::kernels::cublaslt
#endif  // BERTFUSE_KERNELS_CUBLASLT_CAPTURE_H_
