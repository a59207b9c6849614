// The problems that tuning files name: what a measured tactic is looked up by.
#ifndef BERTFUSE_OPS_TUNED_PROBLEM_H_
#define BERTFUSE_OPS_TUNED_PROBLEM_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "bertfuse/op.h"
#include "core/activation.h"

namespace bertfuse::cuda {

// The sizes are m, n and k of a product; batch, sequence, heads and head size of attention.
struct TunedProblem {
  std::string_view op;  // of the op table, which outlives everything
  int32_t dtype;
  std::array<int64_t, 4> sizes;  // 0 where there is none
  bool tf32 = false;             // float32 that tensor cores may multiply: there is more to choose from
  bool packed = false;           // of sequences, their number and that of all rows in place of batch and sequence
  Activation activation = Activation::kNone;
  bool deterministic_rows = false;      // a product whose rows are to have the same bits whatever m is
  int32_t quantized = BERTFUSE_ABSENT;  // the type of a product's 8-bit operands, whose result is of dtype

  // By m last, so that ranges of rows lie side by side.
  bool operator<(const TunedProblem& other) const { return Order() < other.Order(); }
  bool IsLikeButForRows(const TunedProblem& other) const {
    TunedProblem same_rows = other;
    same_rows.sizes[0] = sizes[0];
    return Order() == same_rows.Order();
  }

 private:
  std::tuple<std::string_view, int32_t, int64_t, int64_t, int64_t, bool, bool, Activation, bool, int32_t, int64_t>
  Order() const {
    return {op, dtype, sizes[1], sizes[2], sizes[3], tf32, packed, activation, deterministic_rows, quantized, sizes[0]};
  }
};

// Whether an op's problems are batch x sequence x heads x size of a head; else they are products.
bool IsAttention(std::string_view op);

// "FusedGemmGelu float16 4096x3072x768", "FusedGemm float16 4096x3072x768 gelu_tanh", "FusedGemm float16 131x768x768
// packed deterministic", "FusedAttention float16 32x4096x12x64 packed"; the dtype is "tf32" where that is allowed, and
// "float16-int8" or "float16-fp8" where the operands have 8 bits. From
// `first_rows` on, where that is given: "FusedGemm float16 1025-4096x3072x768".
std::string Describe(const TunedProblem& problem, int64_t first_rows = 0);

// A row's problem, which holds from `first_rows` rows (of a product; else batches) to problem.sizes[0].
struct TunedRange {
  TunedProblem problem;
  int64_t first_rows;
};

// Nothing where Describe() does not write it so.
std::optional<TunedRange> ParseProblem(const std::string& text);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_TUNED_PROBLEM_H_
