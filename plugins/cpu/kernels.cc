#include "cpu/kernels.h"

#include <iterator>

#include "core/kernel_table.h"

namespace bertfuse {

KernelList CpuKernels() {
  static const bertfuse_kernel* const kernels[] = {
      &cpu::kAddQKVBias,         &cpu::kEmbedLayerNorm,
      &cpu::kFusedAttention,     &cpu::kFusedAttentionVariant,
      &cpu::kFusedGatedGemm,     &cpu::kFusedGemm,
      &cpu::kFusedGemmGelu,      &cpu::kFusedGemmGeluLayerNorm,
      &cpu::kFusedGemmLayerNorm, &cpu::kFusedGemmResidualNorm,
      &cpu::kFusedGemmRotary,    &cpu::kFusedRMSNorm,
      &cpu::kPackTokens,         &cpu::kUnpackTokens,
      &cpu::kFirstTokens,        &cpu::kRaggedPositions,
      &cpu::kRotaryTables,
  };
  return {kernels, static_cast<int>(std::size(kernels))};
}

}  // namespace bertfuse
