// Tactics that `bertfuse tune` measured: read from a file once, then only looked up.
#ifndef BERTFUSE_OPS_TUNING_H_
#define BERTFUSE_OPS_TUNING_H_

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "bertfuse/op.h"
#include "ops/attention_tactic.h"
#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

// What a tactic is chosen by. The sizes are m, n and k of a product; batch, sequence, heads and head size of attention.
struct TunedProblem {
  std::string_view op;  // of the op table, which outlives everything
  int32_t dtype;
  std::array<int64_t, 4> sizes;  // 0 where there is none
  bool tf32 = false;             // float32 that tensor cores may multiply: there is more to choose from
  bool packed = false;           // sequences: their number and that of all rows in place of batch and sequence

  bool operator<(const TunedProblem& other) const {
    return std::tie(op, dtype, sizes, tf32, packed) <
           std::tie(other.op, other.dtype, other.sizes, other.tf32, other.packed);
  }
};

// "FusedGemmGelu float16 4096x3072x768", "FusedAttention float16 32x4096x12x64 packed"; the dtype is "tf32" where that
// is allowed.
std::string Describe(const TunedProblem& problem);

}  // namespace bertfuse::cuda

// Made by bertfuse_read_tuning, never changed afterwards: any thread may look something up.
struct bertfuse_tuning {
  using Tactic = std::variant<bertfuse::cuda::GemmTactic, bertfuse::cuda::AttentionTactic>;
  std::vector<std::map<bertfuse::cuda::TunedProblem, Tactic>> devices;  // by CUDA device
};

namespace bertfuse::cuda {

// The measured tactic of a problem on the call's device, or null.
template <class Tactic>
const Tactic* FindTuned(const bertfuse_call& call, const TunedProblem& problem) {
  if (call.tuning == nullptr || static_cast<size_t>(call.device_id) >= call.tuning->devices.size()) return nullptr;
  const auto& known = call.tuning->devices[call.device_id];
  const auto found = known.find(problem);
  return found == known.end() ? nullptr : std::get_if<Tactic>(&found->second);
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_TUNING_H_
