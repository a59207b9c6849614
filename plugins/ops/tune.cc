// Measuring tactics: every one of a call, in a CUDA graph, on tensors that are not in the cache.
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bertfuse/tools.h"
#include "core/dtype.h"
#include "core/kernel_call.h"
#include "core/op_table.h"
#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

constexpr int kMaxSets = 40;   // of tensors
constexpr int kFinalists = 4;  // measured a second time, for longer
constexpr int kBatches = 5;    // of replays; their median counts
constexpr int kLaunches = 20;  // in a graph, at least

void Check(cudaError_t error) { CheckCuda(error, "bertfuse_tune"); }

struct FreeDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;

DeviceMemory Allocate(size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, std::max<size_t>(bytes, 1)));
  return DeviceMemory(data);
}

struct Stream {
  Stream() { Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream;
};

struct Event {
  Event() { Check(cudaEventCreate(&event)); }
  ~Event() { cudaEventDestroy(event); }
  cudaEvent_t event;
};

struct FreeGraph {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using GraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, FreeGraph>;

size_t BytesOf(const bertfuse_tensor& tensor) {
  return static_cast<size_t>(NumElements(tensor)) * DtypeSize(tensor.dtype);
}

// Random values between -1 and 1 (a GPU's clock depends on the bits that it multiplies), in 8 bits times the largest
// number, and 1 for other integers: masks that hide nothing.
std::vector<char> Pattern(int32_t dtype) {
  constexpr size_t kCount = 1 << 18;
  std::vector<char> bytes(kCount * DtypeSize(dtype));
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (size_t i = 0; i < kCount; ++i) {
    const auto write = [&](auto value) { std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value)); };
    if (dtype == BERTFUSE_INT8) {
      write(static_cast<int8_t>(127.0f * uniform(random)));
    } else if (dtype == BERTFUSE_FLOAT8E4M3FN) {
      write(__nv_fp8_e4m3(448.0f * uniform(random)));
    } else if (Allows(Variable::kT, dtype)) {
      SwitchElement(dtype, [&](auto element) { write(static_cast<decltype(element)>(uniform(random))); });
    } else {
      SwitchIndex(dtype, [&](auto index) { write(static_cast<decltype(index)>(1)); });
    }
  }
  return bytes;
}

// Offsets of packed sequences: of one length, or nearly so.
void FillOffsets(const bertfuse_tensor& cu_seqlens, int64_t rows) {
  std::vector<int32_t> offsets(cu_seqlens.shape[0]);
  const int64_t count = static_cast<int64_t>(offsets.size()) - 1;
  for (int64_t i = 1; i <= count; ++i) offsets[i] = static_cast<int32_t>(i * rows / count);
  Check(cudaMemcpy(cu_seqlens.data, offsets.data(), BytesOf(cu_seqlens), cudaMemcpyHostToDevice));
}

// The number of packed rows: all of them.
void FillCount(const bertfuse_tensor& row_count, const bertfuse_tensor& x) {
  const auto rows = static_cast<int32_t>(NumElements(x) / std::max<int64_t>(x.shape[x.rank - 1], 1));
  Check(cudaMemcpy(row_count.data, &rows, sizeof(rows), cudaMemcpyHostToDevice));
}

// Places of packed rows: without padding between them.
void FillIndex(const bertfuse_tensor& token_index) {
  std::vector<int32_t> places(NumElements(token_index));
  std::iota(places.begin(), places.end(), 0);
  Check(cudaMemcpy(token_index.data, places.data(), BytesOf(token_index), cudaMemcpyHostToDevice));
}

void Fill(const bertfuse_tensor& tensor) {
  const std::vector<char> pattern = Pattern(tensor.dtype);
  for (size_t at = 0, bytes = BytesOf(tensor); at < bytes; at += pattern.size()) {
    Check(cudaMemcpy(static_cast<char*>(tensor.data) + at, pattern.data(), std::min(pattern.size(), bytes - at),
                     cudaMemcpyHostToDevice));
  }
}

// One op's inputs and outputs, on the device. The inputs are copies of the first set's, where there is one.
struct TensorSet {
  TensorSet(const OpDef& op, const bertfuse_call& call, const TensorSet* first)
      : inputs(call.inputs, call.inputs + op.num_inputs), outputs(NumOutputs(op, call.inputs)) {
    InferOutputs(op, inputs.data(), call.attributes, outputs.data());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype == BERTFUSE_ABSENT) continue;
      Give(&inputs[i]);
      if (first == nullptr) {
        const bool packed = op.inputs[i].packed;
        if (packed && inputs[i].rank == 1) {
          FillOffsets(inputs[i], inputs[0].shape[0] * inputs[0].shape[1]);
        } else if (packed && inputs[i].rank == 0) {
          FillCount(inputs[i], inputs[0]);
        } else if (packed) {
          FillIndex(inputs[i]);
        } else {
          Fill(inputs[i]);
        }
      } else {
        Check(cudaMemcpy(inputs[i].data, first->inputs[i].data, BytesOf(inputs[i]), cudaMemcpyDeviceToDevice));
      }
    }
    for (bertfuse_tensor& output : outputs) Give(&output);
  }
  void Give(bertfuse_tensor* tensor) {
    memory.push_back(Allocate(BytesOf(*tensor)));
    tensor->data = memory.back().get();
    bytes += BytesOf(*tensor);
  }
  std::vector<bertfuse_tensor> inputs, outputs;
  std::vector<DeviceMemory> memory;
  size_t bytes = 0;
};

class Bench {
 public:
  Bench(const OpDef& op, const bertfuse_kernel& kernel, const bertfuse_call& call) : kernel_(kernel), call_(call) {
    int cache = 0;
    Check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, call.device_id));
    sets_.reserve(kMaxSets);
    sets_.emplace_back(op, call, nullptr);
    const size_t wanted = 2 * static_cast<size_t>(cache) / std::max<size_t>(sets_[0].bytes, 1) + 1;
    while (sets_.size() < std::clamp<size_t>(wanted, 2, kMaxSets)) sets_.emplace_back(op, call, &sets_[0]);
    call_.num_outputs = static_cast<int32_t>(sets_[0].outputs.size());
    call_.stream = stream_.stream;
    call_.tuning = nullptr;
  }

  // Microseconds of one launch; false where the tactic does not run. What takes more than `hopeless` is measured once.
  bool Time(int32_t tactic, double milliseconds, double hopeless, double* microseconds) {
    call_.tactic = tactic;
    call_.workspace_size = WorkspaceSize(kernel_, call_);
    if (call_.workspace_size > workspace_bytes_) {
      workspace_ = Allocate(call_.workspace_size);
      workspace_bytes_ = call_.workspace_size;
    }
    call_.workspace = workspace_.get();
    if (!Launch(0)) return false;
    Check(cudaStreamSynchronize(stream_.stream));
    const int launches = static_cast<int>((kLaunches + sets_.size() - 1) / sets_.size() * sets_.size());
    const GraphExec graph = Capture(launches);
    Replay(graph.get(), 1);
    const double once = Replay(graph.get(), 1);
    *microseconds = once / launches * 1e3;
    if (*microseconds > hopeless) return true;
    const int replays = std::clamp(static_cast<int>(milliseconds / kBatches / std::max(once, 1e-3)), 1, 10000);
    std::vector<double> times;
    for (int i = 0; i < kBatches; ++i) times.push_back(Replay(graph.get(), replays) / replays / launches * 1e3);
    std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
    *microseconds = times[kBatches / 2];
    return true;
  }

  // Of the last tactic that did not run.
  const char* failure() const { return error_.message; }

 private:
  bool Launch(int set) {
    call_.inputs = sets_[set].inputs.data();
    call_.outputs = sets_[set].outputs.data();
    return kernel_.run(&call_, &error_) == BERTFUSE_OK;
  }

  GraphExec Capture(int launches) {
    Check(cudaStreamBeginCapture(stream_.stream, cudaStreamCaptureModeThreadLocal));
    bool ran = true;
    for (int i = 0; i < launches; ++i) ran &= Launch(i % static_cast<int>(sets_.size()));
    cudaGraph_t captured = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_.stream, &captured);
    const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, FreeGraph> graph(captured);
    Check(error);
    if (!ran) Fail(BERTFUSE_RUNTIME_ERROR, "bertfuse_tune: a tactic cannot be captured: %s", error_.message);
    cudaGraphExec_t made = nullptr;
    Check(cudaGraphInstantiate(&made, graph.get(), 0));
    return GraphExec(made);
  }

  // Milliseconds of so many replays.
  double Replay(cudaGraphExec_t graph, int replays) {
    Check(cudaEventRecord(start_.event, stream_.stream));
    for (int i = 0; i < replays; ++i) Check(cudaGraphLaunch(graph, stream_.stream));
    Check(cudaEventRecord(stop_.event, stream_.stream));
    Check(cudaEventSynchronize(stop_.event));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start_.event, stop_.event));
    return milliseconds;
  }

  const bertfuse_kernel& kernel_;
  bertfuse_call call_;
  Stream stream_;
  Event start_, stop_;
  std::vector<TensorSet> sets_;
  DeviceMemory workspace_;
  size_t workspace_bytes_ = 0;
  bertfuse_error error_ = {};
};

struct Timing {
  std::string tactic;
  double microseconds;
  int32_t index;
};

std::string TacticName(const bertfuse_kernel& kernel, const bertfuse_call& call, int32_t tactic) {
  char text[128] = "";
  bertfuse_error error = {};
  if (kernel.describe_tactic(&call, tactic, text, sizeof(text), &error) != BERTFUSE_OK) {
    Fail(static_cast<bertfuse_code>(error.code), "%s", error.message);
  }
  return text;
}

std::vector<Timing> TimeAll(const OpDef& op, const bertfuse_kernel& kernel, const bertfuse_call& call,
                            const std::string& default_tactic, double milliseconds) {
  Bench bench(op, kernel, call);
  std::vector<Timing> timings;
  double best = std::numeric_limits<double>::infinity();
  const int32_t count = NumTactics(kernel, call);
  for (int32_t i = 0; i < count; ++i) {
    if (call.tactic >= 0 && call.tactic != i) continue;
    Timing timing = {TacticName(kernel, call, i), 0, i};
    if (!bench.Time(i, milliseconds / 4, 3 * best, &timing.microseconds)) continue;
    timings.push_back(timing);
    best = std::min(best, timing.microseconds);
  }
  if (timings.empty()) Fail(BERTFUSE_RUNTIME_ERROR, "no tactic runs: %s", bench.failure());
  std::sort(timings.begin(), timings.end(),
            [](const Timing& a, const Timing& b) { return a.microseconds < b.microseconds; });
  for (size_t i = 0; i < timings.size(); ++i) {
    if (i < kFinalists || timings[i].tactic == default_tactic) {
      bench.Time(timings[i].index, milliseconds, 3 * best, &timings[i].microseconds);
    }
  }
  return timings;
}

void Tune(const char* name, const bertfuse_call& call, double milliseconds, bertfuse_timing report, void* user) {
  const OpDef* op = FindOp(name);
  const bertfuse_kernel* kernel = op == nullptr ? nullptr : bertfuse_find_kernel(name, BERTFUSE_CUDA);
  if (kernel == nullptr) Fail(BERTFUSE_NOT_SUPPORTED, "%s: no CUDA kernel", name);
  if (kernel->num_tactics == nullptr || kernel->describe_tactic == nullptr) return;
  std::vector<bertfuse_tensor> outputs(NumOutputs(*op, call.inputs));
  InferOutputs(*op, call.inputs, call.attributes, outputs.data());
  bertfuse_call described = call;
  described.outputs = outputs.data();
  described.num_outputs = static_cast<int32_t>(outputs.size());
  described.tuning = nullptr;
  described.flags |= BERTFUSE_NO_ROW_HINTS;  // all of packed rows are there
  Validate(*op, described);
  const kernels::DeviceScope scope(DeviceOf(call).id);
  Check(scope.error());
  const std::string default_tactic = TacticName(*kernel, described, -1);
  for (const Timing& timing : TimeAll(*op, *kernel, described, default_tactic, milliseconds)) {
    report(user, timing.tactic.c_str(), timing.microseconds, timing.tactic == default_tactic);
  }
}

}  // namespace
}  // namespace bertfuse::cuda

extern "C" int32_t bertfuse_tune(const char* op, const bertfuse_call* call, double milliseconds, bertfuse_timing report,
                                 void* user, bertfuse_error* error) {
  return bertfuse::Guarded(error, [&] { bertfuse::cuda::Tune(op, *call, milliseconds, report, user); });
}
