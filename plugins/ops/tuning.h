// Tactics that `bertfuse tune` measured: read from a file once, then only looked up.
#ifndef BERTFUSE_OPS_TUNING_H_
#define BERTFUSE_OPS_TUNING_H_

#include <map>
#include <variant>
#include <vector>

#include "bertfuse/op.h"
#include "ops/attention_tactic.h"
#include "ops/gemm_tactic.h"
#include "ops/measured_gemms.h"
#include "ops/tuned_problem.h"

// Made by bertfuse_read_tuning, never changed afterwards: any thread may look something up.
struct bertfuse_tuning {
  using Tactic = std::variant<bertfuse::cuda::GemmTactic, bertfuse::cuda::AttentionTactic>;
  struct Range {
    int64_t first_rows;  // up to those of the problem
    Tactic tactic;
  };
  std::vector<std::map<bertfuse::cuda::TunedProblem, Range>> devices;  // by CUDA device
};

namespace bertfuse::cuda {

// The measured tactic of a problem on the call's device, or null.
template <class Tactic>
const Tactic* FindTuned(const bertfuse_call& call, const TunedProblem& problem) {
  if (call.tuning == nullptr || static_cast<size_t>(call.device_id) >= call.tuning->devices.size()) return nullptr;
  const auto& known = call.tuning->devices[call.device_id];
  for (auto row = known.lower_bound(problem); row != known.end(); ++row) {
    if (!row->first.IsLikeButForRows(problem)) break;
    if (row->second.first_rows <= problem.sizes[0]) return std::get_if<Tactic>(&row->second.tactic);
  }
  return nullptr;
}

// What the library has of measurements on such a device, or null. Read once.
const MeasuredGemms* MeasuredOn(const kernels::Device& device);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_TUNING_H_
