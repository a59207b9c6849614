// What was measured on a device: the tactics of products, by ranges of rows. The tables are files of `bertfuse tune`'s
// format in ops/measured/, one for each device, which are compiled in: a library that is copied alone has them.
#ifndef BERTFUSE_OPS_MEASURED_GEMMS_H_
#define BERTFUSE_OPS_MEASURED_GEMMS_H_

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

class MeasuredGemms {
 public:
  // The rows of a table for a device. `identity` is the device's (GpuIdentity()); a table without a row of that name
  // serves devices of the same compute capability and number of multiprocessors. What does not fit is left out, and
  // where `left_out` is given, the lines are added to it.
  MeasuredGemms(const char* table, const kernels::Device& device, const std::string& identity,
                std::vector<std::string>* left_out = nullptr);

  // Null: it was not measured. Rows that are packed or deterministic have ranges of their own where those differ.
  const GemmTactic* Find(const GemmProblem& problem) const;

  bool empty() const { return ranges_.empty(); }

 private:
  // n, k, bytes of an element of x, whether it is a float of 8 bits, LayerNorm, GemmProblem::adds_residual, GELU,
  // gate, packed, deterministic; the last row of a range.
  using Key = std::tuple<int64_t, int64_t, int, bool, bool, bool, bool, bool, bool, bool, int64_t>;
  struct Range {
    int64_t first_rows;
    GemmTactic tactic;
  };
  static Key KeyOf(const GemmProblem& problem, bool adds_residual, bool packed, bool deterministic, int64_t rows) {
    return {problem.n,     problem.k, problem.x_bytes, problem.fp8, problem.layer_norm, adds_residual, problem.gelu,
            problem.gates, packed,    deterministic,   rows};
  }
  std::map<Key, Range> ranges_;
};

// The compiled-in tables.
extern const char* const kMeasuredTables[];
extern const int kNumMeasuredTables;

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_MEASURED_GEMMS_H_
