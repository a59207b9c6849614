// Choosing how to compute attention; launching it is ops/fused_attention.cc.
#ifndef BERTFUSE_OPS_ATTENTION_TACTIC_H_
#define BERTFUSE_OPS_ATTENTION_TACTIC_H_

namespace bertfuse::cuda {

enum class AttentionPath {
  kSm90,  // Hopper: wgmma
  kMma,   // tensor cores of any architecture
  kSimt,  // float32 arithmetic, any head size and alignment
};

// From the fastest to the one that takes every call.
constexpr AttentionPath kAttentionPaths[] = {AttentionPath::kSm90, AttentionPath::kMma, AttentionPath::kSimt};

constexpr const char* Describe(AttentionPath path) {
  return path == AttentionPath::kSm90 ? "sm90" : path == AttentionPath::kMma ? "mma" : "simt";
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_ATTENTION_TACTIC_H_
