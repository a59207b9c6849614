// What a machine without a GPU cannot do.
#include "fake_cudart.h"

using fake_cudart::Fail;

extern "C" {

// What a kernel's host stub calls: bertfuse launches through cudaLaunchKernelExC() alone.
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return Fail(cudaErrorNotSupported); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return Fail(cudaErrorNotSupported);
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return Fail(cudaErrorNotSupported);
}

// Measuring needs a device.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return Fail(cudaErrorNotSupported);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaEventCreate(cudaEvent_t*) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return Fail(cudaErrorNotSupported); }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return Fail(cudaErrorNotSupported); }

}  // extern "C"
