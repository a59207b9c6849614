// The CPU kernels, one per op, and how a float32 kernel becomes one for every float dtype.
#ifndef BERTFUSE_CPU_KERNELS_H_
#define BERTFUSE_CPU_KERNELS_H_

#include "bertfuse/op.h"
#include "cpu/call.h"

namespace bertfuse::cpu {

extern const bertfuse_kernel kAddQKVBias;
extern const bertfuse_kernel kEmbedLayerNorm;
extern const bertfuse_kernel kFirstTokens;
extern const bertfuse_kernel kFusedAttention;
extern const bertfuse_kernel kFusedAttentionVariant;
extern const bertfuse_kernel kFusedGatedGemm;
extern const bertfuse_kernel kFusedGemm;
extern const bertfuse_kernel kFusedGemmGelu;
extern const bertfuse_kernel kFusedGemmGeluLayerNorm;
extern const bertfuse_kernel kFusedGemmLayerNorm;
extern const bertfuse_kernel kFusedGemmResidualNorm;
extern const bertfuse_kernel kFusedGemmRotary;
extern const bertfuse_kernel kFusedRMSNorm;
extern const bertfuse_kernel kPackTokens;
extern const bertfuse_kernel kRaggedPositions;
extern const bertfuse_kernel kRotaryTables;
extern const bertfuse_kernel kUnpackTokens;

// Of kernels that need none.
inline size_t NoWorkspace(const bertfuse_call&) { return 0; }

// A table entry; the functions throw.
template <class Op, size_t (*kWorkspaceSize)(const bertfuse_call&), void (*kRun)(const bertfuse_call&)>
constexpr bertfuse_kernel CpuKernel() {
  bertfuse_kernel kernel = {};
  kernel.struct_size = sizeof(bertfuse_kernel);
  kernel.device = BERTFUSE_CPU;
  kernel.op = Op::kName;
  kernel.workspace_size = [](const bertfuse_call* call, size_t* bytes, bertfuse_error* error) -> int32_t {
    return Guarded(error, [&] {
      CheckCallSize(Op::kName, *call);
      *bytes = kWorkspaceSize(*call);
    });
  };
  kernel.run = [](const bertfuse_call* call, bertfuse_error* error) -> int32_t {
    return Guarded(error, [&] {
      CheckCallSize(Op::kName, *call);
      kRun(*call);
    });
  };
  return kernel;
}

template <const Float32Kernel& kKernel>
size_t WorkspaceOf(const bertfuse_call& call) {
  return AnyFloatWorkspaceSize(call, kKernel);
}

template <const Float32Kernel& kKernel>
void RunOf(const bertfuse_call& call) {
  RunAnyFloat(call, kKernel);
}

template <class Op, const Float32Kernel& kKernel>
constexpr bertfuse_kernel AnyFloatKernel() {
  return CpuKernel<Op, WorkspaceOf<kKernel>, RunOf<kKernel>>();
}

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_KERNELS_H_
