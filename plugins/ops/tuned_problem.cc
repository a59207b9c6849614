#include "ops/tuned_problem.h"

#include <cstdio>
#include <sstream>
#include <vector>

#include "core/dtype.h"
#include "core/gemm_op.h"
#include "core/op_table.h"
#include "op_table.generated.h"

namespace bertfuse::cuda {
namespace {

constexpr char kTf32[] = "tf32", kInt8[] = "-int8", kFp8[] = "-fp8", kPacked[] = "packed",
               kDeterministic[] = "deterministic";

// "1025-4096x3072x768": true where all `count` sizes are there, with nothing behind them.
bool ParseSizes(const std::string& text, int count, std::array<int64_t, 4>* sizes, int64_t* first_rows) {
  std::istringstream stream(text);
  char between = 0;
  if (!(stream >> *first_rows)) return false;
  (*sizes)[0] = *first_rows;
  if (stream.peek() == '-' && !(stream >> between >> (*sizes)[0])) return false;
  for (int i = 1; i < count; ++i) {
    if (!(stream >> between >> (*sizes)[i]) || (*sizes)[i] < 1) return false;
  }
  return stream.peek() == std::istringstream::traits_type::eof() && *first_rows >= 1 && *first_rows <= (*sizes)[0];
}

}  // namespace

bool IsAttention(std::string_view op) { return op == FusedAttention::kName || op == FusedAttentionVariant::kName; }

std::string Describe(const TunedProblem& problem, int64_t first_rows) {
  const bool tf32 = problem.tf32 && problem.quantized == BERTFUSE_ABSENT;
  std::string text = std::string(problem.op) + " " + (tf32 ? kTf32 : DtypeName(problem.dtype));
  text += problem.quantized == BERTFUSE_ABSENT ? "" : problem.quantized == BERTFUSE_INT8 ? kInt8 : kFp8;
  text += " ";
  if (first_rows > 0 && first_rows < problem.sizes[0]) text += std::to_string(first_rows) + "-";
  for (size_t i = 0; i < problem.sizes.size(); ++i) {
    if (i == 3 && problem.sizes[i] == 0) break;  // a product has three
    if (i > 0) text += "x";
    text += std::to_string(problem.sizes[i]);
  }
  const bool named = GemmOpOf(*FindOp(problem.op.data())).activation >= 0 && problem.activation != Activation::kNone;
  if (named) text += std::string(" ") + NameOf(problem.activation);
  if (problem.packed) text += std::string(" ") + kPacked;
  if (problem.deterministic_rows) text += std::string(" ") + kDeterministic;
  return text;
}

std::optional<TunedRange> ParseProblem(const std::string& text) {
  std::istringstream stream(text);
  std::string op, dtype, sizes;
  if (!(stream >> op >> dtype >> sizes)) return std::nullopt;
  const OpDef* known = FindOp(op.c_str());
  if (known == nullptr) return std::nullopt;
  const bool attention = IsAttention(op);
  TunedRange range = {{known->name, BERTFUSE_ABSENT, {}}, 0};
  TunedProblem& problem = range.problem;
  if (!ParseSizes(sizes, attention ? 4 : 3, &problem.sizes, &range.first_rows)) return std::nullopt;
  if (attention && range.first_rows != problem.sizes[0]) return std::nullopt;
  for (const auto& [suffix, quantized] : {std::pair(kInt8, BERTFUSE_INT8), {kFp8, BERTFUSE_FLOAT8E4M3FN}}) {
    const size_t stem = dtype.rfind(suffix);
    if (attention || stem == std::string::npos) continue;
    problem.quantized = quantized;
    dtype.resize(stem);
    break;
  }
  problem.tf32 = dtype == kTf32 && problem.quantized == BERTFUSE_ABSENT;
  if (problem.tf32) problem.dtype = BERTFUSE_FLOAT32;
  for (int32_t candidate : DtypesOf(Variable::kT)) {
    if (dtype == DtypeName(candidate)) problem.dtype = candidate;
  }
  if (!attention && GemmOpOf(*known).approximate >= 0) problem.activation = Activation::kGeluErf;
  for (std::string word; stream >> word;) {
    if (word == kPacked) {
      problem.packed = true;
    } else if (word == kDeterministic) {
      problem.deterministic_rows = !attention;
    } else if (!attention && GemmOpOf(*known).activation >= 0) {
      problem.activation = FindActivation(word).value_or(Activation::kNone);
    }
  }
  // What is not written as Describe() writes it, with something behind it for example, is no problem's name.
  if (problem.dtype == BERTFUSE_ABSENT || Describe(problem, range.first_rows) != text) return std::nullopt;
  return range;
}

}  // namespace bertfuse::cuda
