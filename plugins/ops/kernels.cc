#include <iterator>

#include "core/kernel_table.h"
#include "kernels/layer_norm.h"
#include "ops/call.h"

namespace bertfuse {

namespace cuda {

const kernels::Device& DeviceOf(const bertfuse_call& call) {
  const kernels::Device* device = kernels::GetDevice(call.device_id);
  if (device == nullptr) Fail(BERTFUSE_RUNTIME_ERROR, "there is no CUDA device %d", call.device_id);
  return *device;
}

void CheckCuda(cudaError_t error, const char* op) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is reported here must not surface again in someone else's call
  Fail(error == cudaErrorInvalidValue ? BERTFUSE_NOT_SUPPORTED : BERTFUSE_RUNTIME_ERROR, "%s: CUDA launch failed: %s",
       op, cudaGetErrorString(error));
}

void FailTooWide(const char* op, int64_t columns) {
  Fail(BERTFUSE_NOT_SUPPORTED,
       "%s: %lld columns are too many for its LayerNorm, which takes up to %lld, or %lld where columns or tensors are "
       "not aligned to four elements",
       op, static_cast<long long>(columns), static_cast<long long>(kernels::MaxRowColumns(4)),
       static_cast<long long>(kernels::MaxRowColumns(1)));
}

}  // namespace cuda

KernelList CudaKernels() {
  static const bertfuse_kernel* const kernels[] = {
      &cuda::kAddQKVBias,
      &cuda::kEmbedLayerNorm,
      &cuda::kFirstTokens,
      &cuda::kFusedAttention,
      &cuda::kFusedAttentionVariant,
      &cuda::kFusedGatedGemm,
      &cuda::kFusedGemm,
      &cuda::kFusedGemmGelu,
      &cuda::kFusedGemmGeluLayerNorm,
      &cuda::kFusedGemmLayerNorm,
      &cuda::kFusedGemmResidualNorm,
      &cuda::kFusedGemmRotary,
      &cuda::kFusedRMSNorm,
      &cuda::kPackTokens,
      &cuda::kRaggedPositions,
      &cuda::kRotaryTables,
      &cuda::kUnpackTokens,
  };
  return {kernels, static_cast<int>(std::size(kernels))};
}

}  // namespace bertfuse
