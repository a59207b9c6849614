// The CPU kernels, one per op, and how a float32 kernel becomes one for every float dtype.
#ifndef BERTFUSE_CPU_KERNELS_H_
#define BERTFUSE_CPU_KERNELS_H_

#include "bertfuse/op.h"
#include "cpu/call.h"

namespace bertfuse::cpu {

extern const bertfuse_kernel kAddQKVBias;
extern const bertfuse_kernel kEmbedLayerNorm;
extern const bertfuse_kernel kFusedAttention;
extern const bertfuse_kernel kFusedGemm;
extern const bertfuse_kernel kFusedGemmGelu;
extern const bertfuse_kernel kFusedGemmGeluLayerNorm;
extern const bertfuse_kernel kFusedGemmLayerNorm;

template <class Op, const Float32Kernel& kKernel>
constexpr bertfuse_kernel AnyFloatKernel() {
  return {sizeof(bertfuse_kernel),
          BERTFUSE_CPU,
          Op::kName,
          "",
          nullptr,
          [](const bertfuse_call* call) -> size_t { return AnyFloatWorkspaceSize(*call, kKernel); },
          nullptr,
          [](const bertfuse_call* call, bertfuse_error* error) -> int32_t {
            return Guarded(error, [&] { RunAnyFloat(*call, kKernel); });
          },
          nullptr,
          nullptr};
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_KERNELS_H_
