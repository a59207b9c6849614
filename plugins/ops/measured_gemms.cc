#include "ops/measured_gemms.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/dtype.h"
#include "core/gemm_op.h"
#include "core/op_table.h"
#include "ops/tuned_problem.h"

namespace bertfuse::cuda {
namespace {

struct Line {
  std::string text, device, problem, tactic;
};

std::vector<Line> LinesOf(const char* table) {
  std::vector<Line> lines;
  std::istringstream stream(table);
  std::string text;
  std::getline(stream, text);  // the format
  while (std::getline(stream, text)) {
    if (text.empty() || text[0] == '#') continue;
    std::istringstream cells(text);
    Line line = {text, {}, {}, {}};
    std::getline(cells, line.device, '\t');
    std::getline(cells, line.problem, '\t');
    std::getline(cells, line.tactic, '\t');
    lines.push_back(line);
  }
  return lines;
}

// "NVIDIA H200, 9.0, 132 multiprocessors" without its name.
std::string KindOf(const std::string& identity) {
  return identity.substr(std::min(identity.find(", "), identity.size()));
}

// A problem with the fewest rows of a range, on tensors as a runtime allocates them.
GemmProblem AlignedProblem(const TunedRange& range, const kernels::Device& device) {
  const TunedProblem& tuned = range.problem;
  const GemmOp op = GemmOpOf(*FindOp(tuned.op.data()));
  GemmProblem problem = {range.first_rows, tuned.sizes[1], tuned.sizes[2], op.normalizes(), {}, &device};
  for (const kernels::BackendFacts& facts : kernels::kBackends) {  // built or not: a call's problem has those that are
    const int capability = device.compute_capability;
    if (capability >= facts.least && capability <= facts.most) problem.backends.Add(facts.backend);
  }
  problem.x_bytes = problem.y_bytes = DtypeSize(tuned.dtype);
  if (tuned.quantized != BERTFUSE_ABSENT) problem.x_bytes = DtypeSize(tuned.quantized);
  problem.fp8 = tuned.quantized == BERTFUSE_FLOAT8E4M3FN;
  problem.gates = op.gates, problem.keeps_total = op.keeps_total();
  problem.gelu = tuned.activation != Activation::kNone && !problem.gates;
  problem.deterministic_rows = tuned.deterministic_rows;
  problem.adds_residual = op.keeps_total() && problem.x_bytes == problem.y_bytes && !problem.deterministic_rows;
  problem.capacity = tuned.packed ? tuned.sizes[0] : 0;
  const int widest = problem.y_bytes == 2 ? 8 : 4;
  problem.layer_norm_vector = problem.n % widest == 0 ? widest : problem.n % 4 == 0 ? 4 : 1;
  return problem;
}

}  // namespace

MeasuredGemms::MeasuredGemms(const char* table, const kernels::Device& device, const std::string& identity,
                             std::vector<std::string>* left_out) {
  const std::vector<Line> lines = LinesOf(table);
  const bool named = std::any_of(lines.begin(), lines.end(), [&](const Line& line) { return line.device == identity; });
  std::map<std::tuple<std::string, bool, int, bool, bool>, GemmTactic> known;  // few tactics have many ranges
  for (const Line& line : lines) {
    if (named ? line.device != identity : KindOf(line.device) != KindOf(identity)) continue;
    const std::optional<TunedRange> range = ParseProblem(line.problem);
    const bool is_product = range && range->problem.sizes[3] == 0 && !range->problem.tf32;
    std::optional<GemmTactic> tactic;
    if (is_product) {
      const GemmProblem problem = AlignedProblem(*range, device);
      const std::tuple name = {line.tactic, problem.layer_norm, problem.x_bytes, problem.fp8, problem.gates};
      const auto found = known.find(name);
      tactic = found != known.end() ? found->second : FindGemmTactic(problem, line.tactic);
      if (tactic) {
        known.insert({name, *tactic});
        const Key key = KeyOf(problem, problem.adds_residual, range->problem.packed, problem.deterministic_rows,
                              range->problem.sizes[0]);
        ranges_[key] = {range->first_rows, *tactic};
      }
    }
    if (!tactic && left_out != nullptr) left_out->push_back(line.text);
  }
}

const GemmTactic* MeasuredGemms::Find(const GemmProblem& problem) const {
  const bool packed = problem.capacity > 0, deterministic = problem.deterministic_rows;
  // A norm whose sum is an output, too, is measured by itself, or as one whose sum is none.
  for (const bool adds_residual : {problem.adds_residual, false}) {
    for (const auto& [as_packed, as_deterministic] :
         {std::pair(packed, deterministic), {false, deterministic}, {packed, false}, {false, false}}) {
      const Key key = KeyOf(problem, adds_residual, as_packed, as_deterministic, problem.m);
      const auto found = ranges_.lower_bound(key);
      if (found == ranges_.end() || found->second.first_rows > problem.m) continue;
      Key same_rows = found->first;
      std::get<std::tuple_size_v<Key> - 1>(same_rows) = problem.m;
      if (same_rows == key) return &found->second.tactic;
    }
  }
  return nullptr;
}

}  // namespace bertfuse::cuda
