#include "ops/tuning.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "bertfuse/tools.h"
#include "core/dtype.h"
#include "core/gemm_op.h"
#include "core/op_table.h"
#include "op_table.generated.h"
#include "ops/attention_backends.h"
#include "ops/call.h"
#include "ops/gemm_backends.h"
#include "ops/gpu.h"

namespace bertfuse::cuda {
namespace {

// First line of a file: its format and the library that it was measured with.
constexpr char kHeader[] = "bertfuse tuning 1, library " BERTFUSE_VERSION;
constexpr char kHeaderStart[] = "bertfuse tuning ";

// The product that a row speaks of, on tensors as a runtime allocates them.
template <class Elements>
GemmProblem AlignedGemm(const TunedProblem& tuned, const kernels::Device& device) {
  using T = typename Elements::Y;
  kernels::GemmArguments<Elements> a = {};
  GemmProblem problem = {};
  problem.m = a.m = tuned.sizes[0];
  problem.n = a.n = tuned.sizes[1];
  problem.k = a.k = tuned.sizes[2];
  const GemmOp op = GemmOpOf(*FindOp(tuned.op.data()));
  problem.layer_norm = op.normalizes(), problem.keeps_total = op.keeps_total();
  problem.gates = a.gates = op.gates;
  problem.gelu = tuned.activation != Activation::kNone && !problem.gates;
  kernels::LayerNormArguments<T> norm = {};
  norm.columns = problem.n;
  problem.layer_norm_vector = kernels::LayerNormVector(norm), problem.y_bytes = sizeof(T);
  problem.x_bytes = sizeof(*a.x);
  problem.fp8 = std::is_same_v<typename Elements::X, __nv_fp8_e4m3>;
  // A row does not say whether y was wanted in 8 bits: it may name what writes them. Calls of the other kind leave it.
  problem.quantizes = kIsQuantized<Elements> && !problem.layer_norm;
  problem.quantizes_rows = kIsQuantized<Elements> && problem.layer_norm && !problem.keeps_total;
  problem.allow_tf32 = a.allow_tf32 = tuned.tf32;
  problem.backends = GemmBackendsFor(a, device);
  if (!kIsQuantized<Elements>) {
    // Whether the process will have cuBLASLt, and how many algorithms of it, shows when the problem is run.
    problem.backends.Add(Backend::kCublasLt);
    problem.cublaslt.count = kernels::cublaslt::kMaxAlgorithms;
  }
  problem.device = &device;
  return problem;
}

template <class T>
AttentionProblem AlignedAttention(const TunedProblem& tuned, const kernels::Device& device) {
  kernels::AttentionArguments<T> a = {};
  a.batch = tuned.sizes[0], a.sequence = tuned.sizes[1], a.heads = tuned.sizes[2], a.head_size = tuned.sizes[3];
  a.scale = 1.0f;
  a.allow_tf32 = tuned.tf32;
  // Which backends a variant has depends on what it is: any, for tactics that mma and simt have.
  alignas(16) static const T kBias[1] = {};
  a.bias = kBias;
  const bool variant = tuned.op == FusedAttentionVariant::kName;
  if (variant) a.variant.window_left = 1;
  AttentionProblem problem = {a.batch, a.sequence, a.heads, a.head_size, {}, device.multiprocessors};
  problem.rotates = variant;
  problem.packed = tuned.packed;
  if (tuned.packed) a.packed.count = 1, problem.sequence = kernels::CeilDiv(a.sequence, a.batch);
  problem.backends = AttentionBackendsFor<T>(a, device);
  problem.math = kernels::attention_mma::MathOf<T>(a.allow_tf32);
  problem.shared_bytes = device.shared_bytes;
  return problem;
}

// The tactic of that name, if this library has it for the problem and device.
std::optional<bertfuse_tuning::Tactic> FindTactic(const TunedRange& range, const kernels::Device& device,
                                                  std::string_view name) {
  TunedProblem problem = range.problem;
  problem.sizes[0] = range.first_rows;  // a tactic of the fewest rows is one of all of them
  if (IsAttention(problem.op)) {
    return SwitchElement(problem.dtype, [&](auto element) -> std::optional<bertfuse_tuning::Tactic> {
      const AttentionProblem attention = AlignedAttention<decltype(element)>(problem, device);
      for (const AttentionTactic& tactic : AttentionTactics(attention)) {
        if (name == Describe(tactic)) return tactic;
      }
      return std::nullopt;
    });
  }
  return SwitchElement(problem.dtype, [&](auto element) -> std::optional<bertfuse_tuning::Tactic> {
    using T = decltype(element);
    const GemmProblem gemm = problem.quantized == BERTFUSE_INT8 ? AlignedGemm<kernels::Int8Elements<T>>(problem, device)
                             : problem.quantized == BERTFUSE_FLOAT8E4M3FN
                                 ? AlignedGemm<kernels::Fp8Elements<T>>(problem, device)
                                 : AlignedGemm<kernels::Elements<T>>(problem, device);
    return FindGemmTactic(gemm, name);
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
      const std::optional<TunedRange> range = ParseProblem(row.problem);
      const auto tactic =
          range ? FindTactic(*range, *kernels::GetDevice(static_cast<int>(id)), row.tactic) : std::nullopt;
      if (tactic) {
        tuning->devices[id][range->problem] = {range->first_rows, *tactic};
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

const MeasuredGemms* MeasuredOn(const kernels::Device& device) {
  struct Slot {
    std::once_flag once;
    std::unique_ptr<const MeasuredGemms> measured;
  };
  static Slot slots[kernels::kMaxDevices];
  Slot& slot = slots[device.id];
  std::call_once(slot.once, [&] {
    const std::string identity = GpuIdentity(device.id);
    for (int i = 0; i < kNumMeasuredTables && slot.measured == nullptr; ++i) {
      auto measured = std::make_unique<MeasuredGemms>(kMeasuredTables[i], device, identity);
      if (!measured->empty()) slot.measured = std::move(measured);
    }
  });
  return slot.measured.get();
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
