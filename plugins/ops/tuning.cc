#include "ops/tuning.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>

#include "bertfuse/tools.h"
#include "core/dtype.h"
#include "core/op_table.h"
#include "kernels/gemm.h"
#include "op_table.generated.h"
#include "ops/call.h"
#include "ops/gpu.h"

namespace bertfuse::cuda {
namespace {

// First line of a file: its format and the library that it was measured with.
constexpr char kHeader[] = "bertfuse tuning 1, library " BERTFUSE_VERSION;
constexpr char kHeaderStart[] = "bertfuse tuning ";
constexpr std::string_view kTf32 = "tf32";
constexpr std::string_view kPacked = " packed";

std::optional<TunedProblem> ParseProblem(const std::string& text) {
  char op[64], dtype[16];
  long long sizes[4] = {};
  if (std::sscanf(text.c_str(), "%63s %15s %lldx%lldx%lldx%lld", op, dtype, &sizes[0], &sizes[1], &sizes[2],
                  &sizes[3]) < 5) {
    return std::nullopt;
  }
  const OpDef* known = FindOp(op);
  if (known == nullptr) return std::nullopt;
  const bool attention = op == std::string_view(FusedAttention::kName);
  for (int i = 0; i < 4; ++i) {
    if (i < (attention ? 4 : 3) ? sizes[i] < 1 : sizes[i] != 0) return std::nullopt;
  }
  TunedProblem problem = {known->name, BERTFUSE_ABSENT, {sizes[0], sizes[1], sizes[2], sizes[3]}};
  problem.tf32 = dtype == kTf32 && !attention;
  if (problem.tf32) problem.dtype = BERTFUSE_FLOAT32;
  for (int32_t candidate : DtypesOf(Variable::kT)) {
    if (dtype == std::string_view(DtypeName(candidate))) problem.dtype = candidate;
  }
  if (attention && text.size() > kPacked.size()) {
    problem.packed = text.compare(text.size() - kPacked.size(), kPacked.size(), kPacked) == 0;
  }
  // What is not written as Describe() writes it, with something behind it for example, is no problem's name.
  return problem.dtype == BERTFUSE_ABSENT || Describe(problem) != text ? std::nullopt : std::optional(problem);
}

// The product that a row speaks of, on tensors as a runtime allocates them.
template <class T>
GemmProblem AlignedGemm(const TunedProblem& tuned, const kernels::Device& device) {
  kernels::GemmArguments<T> portable = {};
  kernels::GemmSm90Arguments<kernels::Elements<T>> sm90 = {};
  GemmProblem problem = {};
  problem.m = portable.m = sm90.m = tuned.sizes[0];
  problem.n = portable.n = sm90.n = tuned.sizes[1];
  problem.k = portable.k = sm90.k = tuned.sizes[2];
  problem.layer_norm = tuned.op == FusedGemmLayerNorm::kName || tuned.op == FusedGemmGeluLayerNorm::kName;
  problem.gelu = tuned.op == FusedGemmGelu::kName || tuned.op == FusedGemmGeluLayerNorm::kName;
  kernels::LayerNormArguments<T> norm = {};
  norm.columns = problem.n;
  problem.layer_norm_vector = kernels::LayerNormVector(norm), problem.y_bytes = problem.x_bytes = sizeof(T);
  problem.tensor_cores = (!std::is_same_v<T, float> || tuned.tf32) && kernels::GemmMmaSupports(portable);
  problem.sm90 = problem.tensor_cores && kIsHalf<T> && kernels::GemmSm90Supports(sm90, device);
  problem.multiprocessors = device.multiprocessors;
  return problem;
}

template <class T>
AttentionProblem AlignedAttention(const TunedProblem& tuned, const kernels::Device& device) {
  kernels::AttentionArguments<T> a = {};
  a.batch = tuned.sizes[0], a.sequence = tuned.sizes[1], a.heads = tuned.sizes[2], a.head_size = tuned.sizes[3];
  a.scale = 1.0f;
  AttentionProblem problem = {a.batch, a.sequence, a.heads, a.head_size, false, false, device.multiprocessors};
  problem.packed = tuned.packed;
  if (tuned.packed) a.packed.count = 1, problem.sequence = kernels::CeilDiv(a.sequence, a.batch);
  if constexpr (kIsHalf<T>) {
    problem.sm90 = kernels::AttentionSm90Supports(a, device), problem.mma = kernels::AttentionMmaSupports(a);
  }
  return problem;
}

// The tactic of that name, or of a former one, if this library has it for the problem and device.
std::optional<bertfuse_tuning::Tactic> FindTactic(const TunedProblem& problem, const kernels::Device& device,
                                                  std::string_view name) {
  if (problem.op == FusedAttention::kName) {
    return SwitchElement(problem.dtype, [&](auto element) -> std::optional<bertfuse_tuning::Tactic> {
      const AttentionProblem attention = AlignedAttention<decltype(element)>(problem, device);
      if (name == "sm90" && attention.sm90)
        return ChooseAttentionTactic(attention);  // the name of all its tiles before
      for (const AttentionTactic& tactic : AttentionTactics(attention)) {
        if (name == Describe(tactic)) return tactic;
      }
      return std::nullopt;
    });
  }
  return SwitchElement(problem.dtype, [&](auto element) -> std::optional<bertfuse_tuning::Tactic> {
    const GemmProblem gemm = AlignedGemm<decltype(element)>(problem, device);
    for (const GemmTactic& tactic : GemmTactics(gemm)) {
      const std::vector<std::string> former = FormerNames(gemm, tactic);
      if (name == Describe(tactic) || std::find(former.begin(), former.end(), name) != former.end()) return tactic;
    }
    return std::nullopt;
  });
}

// A row: device, problem, tactic, and what they were measured to take (for people), with tabs between.
struct Row {
  std::string device, problem, tactic;
};

Row ParseRow(const std::string& line, const char* file, int number) {
  Row row;
  std::istringstream cells(line);
  std::getline(cells, row.device, '\t');
  std::getline(cells, row.problem, '\t');
  std::getline(cells, row.tactic, '\t');
  if (row.tactic.empty()) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: line %d is not a row of a tuning file; write one with 'bertfuse tune'", file,
         number);
  }
  return row;
}

std::unique_ptr<bertfuse_tuning> Read(const char* text, const char* file, std::string* remark) {
  auto tuning = std::make_unique<bertfuse_tuning>();
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  if (line.rfind(kHeaderStart, 0) != 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: is not a tuning file; write one with 'bertfuse tune'", file);
  }
  if (line != kHeader) {
    *remark = "measured with '" + line + "', this is '" + kHeader + "'";
    return tuning;
  }
  std::vector<std::string> names;
  for (int id = 0; id < bertfuse_gpu_count(); ++id) names.push_back(GpuIdentity(id));
  tuning->devices.resize(names.size());
  int rows = 0, here = 0, unknown = 0;
  std::string elsewhere;
  for (int number = 2; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const Row row = ParseRow(line, file, number);
    ++rows;
    bool any = false, known = true;
    for (size_t id = 0; id < names.size(); ++id) {
      if (names[id] != row.device) continue;
      any = true;
      const std::optional<TunedProblem> problem = ParseProblem(row.problem);
      const auto tactic =
          problem ? FindTactic(*problem, *kernels::GetDevice(static_cast<int>(id)), row.tactic) : std::nullopt;
      if (tactic) {
        tuning->devices[id][*problem] = *tactic;
      } else {
        known = false;
      }
    }
    here += any;
    unknown += !known;
    if (!any) elsewhere = row.device;
  }
  if (rows > 0 && here == 0) {
    *remark = "measured on '" + elsewhere + "', here is " + (names.empty() ? "no GPU" : "'" + names[0] + "'");
  } else if (unknown > 0) {
    *remark = std::to_string(unknown) + " of " + std::to_string(rows) + " rows name what this library does not have";
  }
  return tuning;
}

}  // namespace

std::string Describe(const TunedProblem& problem) {
  std::string text = std::string(problem.op) + " " + (problem.tf32 ? kTf32.data() : DtypeName(problem.dtype)) + " ";
  for (size_t i = 0; i < problem.sizes.size(); ++i) {
    if (i == 3 && problem.sizes[i] == 0) break;  // a product has three
    if (i > 0) text += "x";
    text += std::to_string(problem.sizes[i]);
  }
  if (problem.packed) text += kPacked;
  return text;
}

}  // namespace bertfuse::cuda

extern "C" const bertfuse_tuning* bertfuse_read_tuning(const char* text, const char* name, char* remark,
                                                       size_t remark_size, bertfuse_error* error) {
  std::unique_ptr<bertfuse_tuning> tuning;
  std::string said;
  bertfuse::Guarded(error, [&] { tuning = bertfuse::cuda::Read(text, name, &said); });
  std::snprintf(remark, remark_size, "%s", said.c_str());
  return tuning.release();
}
