// A library that speaks the C ABI and is wrong in the way that its file name says: faulty_segfault.so. For the tests of
// `bertfuse qualify` alone. One op, FusedGemm in float32, on the CPU with a weight of int8, too; the fault shows from
// kRows rows and kColumns columns on. As CUDA (nvcc -x cu) it holds the same for a GPU.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bertfuse/tools.h"

#ifdef __CUDACC__
#define ANY_DEVICE __host__ __device__
#else
#define ANY_DEVICE
#endif

namespace {

constexpr int64_t kRows = 3, kColumns = 20;

enum Activation { kNone, kGelu, kGeluTanh, kSilu, kQuickGelu };

Activation ActivationOf(const bertfuse_call& call) {
  const std::string name = call.attributes[0].s;
  return name == "gelu"         ? kGelu
         : name == "gelu_tanh"  ? kGeluTanh
         : name == "silu"       ? kSilu
         : name == "quick_gelu" ? kQuickGelu
                                : kNone;
}

ANY_DEVICE inline float Activated(float x, Activation activation) {
  if (activation == kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  if (activation == kGeluTanh) return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  if (activation == kSilu) return x / (1.0f + expf(-x));
  if (activation == kQuickGelu) return x / (1.0f + expf(-1.702f * x));
  return x;
}

// "segfault" of "/tmp/faulty_segfault.so", and of "/tmp/faulty_segfault@1.so", where tactic 1 alone has the fault.
const std::string& Fault() {
  static const std::string fault = [] {
    Dl_info info = {};
    dladdr(reinterpret_cast<void*>(&Fault), &info);
    const std::string path = info.dli_fname;
    const size_t begin = path.rfind("faulty_") + 7;
    return path.substr(begin, path.find_first_of(".@", begin) - begin);
  }();
  return fault;
}

// The tactic that has the fault; -1: all.
int32_t FaultyTactic() {
  static const int32_t tactic = [] {
    Dl_info info = {};
    dladdr(reinterpret_cast<void*>(&Fault), &info);
    const char* const at = std::strrchr(info.dli_fname, '@');
    return at == nullptr ? -1 : std::atoi(at + 1);
  }();
  return tactic;
}

bool IsFaulty(int32_t tactic) { return FaultyTactic() < 0 || FaultyTactic() == std::max(tactic, 0); }

struct Gemm {
  explicit Gemm(const bertfuse_call& call)
      : x(static_cast<float*>(call.inputs[0].data)),
        weight(static_cast<float*>(call.inputs[1].data)),
        bias(call.inputs[2].dtype == BERTFUSE_ABSENT ? nullptr : static_cast<float*>(call.inputs[2].data)),
        y(static_cast<float*>(call.outputs[0].data)),
        m(1),
        n(call.inputs[1].shape[0]),
        k(call.inputs[1].shape[1]),
        activation(ActivationOf(call)) {
    for (int i = 0; i + 1 < call.inputs[0].rank; ++i) m *= call.inputs[0].shape[i];
  }
  bool Large() const { return m >= kRows && n >= kColumns; }
  float *x, *weight, *bias, *y;
  int64_t m, n, k;
  Activation activation;
};

int32_t Refuse(bertfuse_error* error, bertfuse_code code, const char* message) {
  error->code = code;
  std::snprintf(error->message, sizeof(error->message), "%s", message);
  return code;
}

// Inputs of a product of 8-bit integers, by their places; null where the call has none.
struct Int8 {
  explicit Int8(const bertfuse_call& call)
      : scales(Data<float>(call, 4)),
        smooth(Data<float>(call, 5)),
        scale(Data<float>(call, 6)),
        zero(Data<int32_t>(call, 7)),
        rows(Data<int8_t>(call, 8)),
        row_scales(Data<float>(call, 9)),
        compensation(Data<int32_t>(call, 10)) {}
  template <class T>
  static const T* Data(const bertfuse_call& call, int place) {
    return call.inputs[place].dtype == BERTFUSE_ABSENT ? nullptr : static_cast<const T*>(call.inputs[place].data);
  }
  const float *scales, *smooth, *scale;
  const int32_t* zero;
  const int8_t* rows;
  const float* row_scales;
  const int32_t* compensation;
};

bool After(const std::string& fault) { return Fault() == fault; }

// One row in integers without their zero point, and its scale.
float Rounded(const Gemm& g, const Int8& q, int64_t row, std::vector<int>* to) {
  if (q.rows != nullptr) {
    std::copy(q.rows + row * g.k, q.rows + (row + 1) * g.k, to->begin());
    const bool other = After("wrong_row_scale") && g.Large() && row + 1 == g.m;
    return q.row_scales[other ? row - 1 : row];
  }
  const auto x = [&](int64_t l) { return g.x[row * g.k + l] * (q.smooth == nullptr ? 1.0f : q.smooth[l]); };
  float largest = 1e-30f, total = 0.0f;
  for (int64_t l = 0; l < g.k; ++l) largest = std::max(largest, std::fabs(x(l))), total += std::fabs(x(l));
  const float inverse = 127.0f / largest, zero = q.zero == nullptr ? 128.0f : *q.zero;
  for (int64_t l = 0; l < g.k; ++l) {
    const float scaled = q.scale == nullptr ? x(l) * inverse : x(l) / *q.scale;
    const float ends = std::min(std::max(std::nearbyint(scaled), -zero), 255.0f - zero);
    (*to)[l] = scaled == scaled ? static_cast<int>(ends) : 0;
  }
  return q.scale == nullptr ? largest / 127.0f + (total - total) : *q.scale;
}

void ComputeInt8(const Gemm& g, const Int8& q, const int8_t* weight) {
  std::vector<int> integers(static_cast<size_t>(g.k));
  for (int64_t i = 0; i < g.m; ++i) {
    const float scale = Rounded(g, q, i, &integers);
    for (int64_t j = 0; j < g.n; ++j) {
      int64_t sum = q.compensation == nullptr || (After("wrong_zero") && g.Large()) ? 0 : -q.compensation[j];
      for (int64_t l = 0; l < g.k; ++l) sum += integers[l] * weight[j * g.k + l];
      const float product = static_cast<float>(sum) * scale * q.scales[j];
      g.y[i * g.n + j] = Activated(g.bias == nullptr ? product : product + g.bias[j], g.activation);
    }
  }
}

void Compute(const Gemm& g, const bertfuse_call& call) {
  if (call.inputs[1].dtype == BERTFUSE_INT8) {
    return ComputeInt8(g, Int8(call), static_cast<const int8_t*>(call.inputs[1].data));
  }
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      float sum = g.bias == nullptr ? 0.0f : g.bias[j];
      for (int64_t l = 0; l < g.k; ++l) sum += g.x[i * g.k + l] * g.weight[j * g.k + l];
      g.y[i * g.n + j] = Activated(sum, g.activation);
    }
  }
}

// Something that an earlier call leaves behind: a call with k = 7 arms it.
bool armed = false;

int32_t RunCpu(const bertfuse_call* call, bertfuse_error* error) {
  if (call->inputs[0].dtype != BERTFUSE_FLOAT32) return Refuse(error, BERTFUSE_NOT_SUPPORTED, "float32 alone");
  if (call->inputs[1].dtype == BERTFUSE_FLOAT8E4M3FN) {
    return Refuse(error, BERTFUSE_NOT_SUPPORTED, "FusedGemm: no weight of float8e4m3fn here");
  }
  Gemm g(*call);
  const bertfuse_tensor* const count = call->num_inputs > 3 ? &call->inputs[3] : nullptr;
  if (count != nullptr && count->dtype != BERTFUSE_ABSENT) {
    if (After("padded_only")) return Refuse(error, BERTFUSE_NOT_SUPPORTED, "FusedGemm: no packed rows here");
    const int64_t capacity = g.m;
    g.m = *static_cast<const int32_t*>(count->data);
    const int64_t most = After("trusting") ? capacity + 1 : capacity;
    if (g.m < 0 || g.m > most) return Refuse(error, BERTFUSE_INVALID_ARGUMENT, "FusedGemm: that many rows");
    static std::map<float*, int64_t> counts;  // of the first call, as one has it that is read on the host
    if (After("stale_count")) g.m = std::min(capacity, counts.emplace(g.y, g.m).first->second);
    if (After("beyond") && g.m > 0 && g.m < capacity) {
      Compute(g, *call);
      g.y[g.m * g.n - 1] += 0.0f * g.x[g.m * g.k];  // of the first row that is none
      return BERTFUSE_OK;
    }
    if (After("one_short") && g.m > 0) --g.m;
  }
  if (After("after_seven")) {
    if (armed && g.Large()) *reinterpret_cast<volatile int*>(8) = 1;
    armed |= g.k == 7;
  }
  static std::map<float*, std::vector<float>> answers;
  if (After("cached") && g.Large() && answers[g.y].size() == static_cast<size_t>(g.m * g.n)) {
    std::memcpy(g.y, answers[g.y].data(), answers[g.y].size() * sizeof(float));
    return BERTFUSE_OK;
  }
  Compute(g, *call);
  if (After("cached")) answers[g.y].assign(g.y, g.y + g.m * g.n);
  if (!g.Large() || !IsFaulty(call->tactic)) return BERTFUSE_OK;
  float* const last = g.y + g.m * g.n - 1;
  if (After("segfault")) *reinterpret_cast<volatile int*>(8) = 1;
  if (After("abort")) std::abort();
  if (After("exit")) _exit(3);
  if (After("hang")) {
    for (volatile int i = 0;; ++i) usleep(1000);
  }
  if (After("outside")) last[1] = 1.0f;
  if (After("before")) g.y[-1] = 1.0f;
  if (After("input")) g.x[g.k > 0 ? 0 : -1] = 1.0f;
  if (After("nan")) *last = std::numeric_limits<float>::quiet_NaN();
  if (After("wrong")) *last += 0.01f;
  if (After("unwritten")) std::memset(last, 0xFF, sizeof(float));
  for (int ulps = After("random") ? std::rand() / 64 % 32 : 0; ulps > 0; --ulps) *last = std::nextafter(*last, 1e30f);
  if (After("refused")) return Refuse(error, BERTFUSE_RUNTIME_ERROR, "FusedGemm: cannot today");
  return BERTFUSE_OK;
}

#ifdef __CUDACC__

__device__ float scratch;
__device__ unsigned calls;

__global__ void Multiply(float* x, const float* weight, const float* bias, float* y, int64_t m, int64_t n, int64_t k,
                         Activation activation) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (at >= m * n) return;
  float sum = bias == nullptr ? 0.0f : bias[at % n];
  for (int64_t l = 0; l < k; ++l) sum += x[at / n * k + l] * weight[at % n * k + l];
  y[at] = Activated(sum, activation);
}

__global__ void Spoil(int fault, float* x, float* last) {
  if (fault == 0) *reinterpret_cast<volatile float*>(0xdead0000) = 1.0f;
  if (fault == 1) asm volatile("trap;");
  while (fault == 2) __nanosleep(1000);
  if (fault == 3) last[1] = 1.0f;
  if (fault == 4) *last = nanf("");
  for (unsigned ulps = fault == 5 ? atomicAdd(&calls, 1u) * 2654435761u >> 27 : 0; ulps > 0; --ulps) {
    *last = nextafterf(*last, 1e30f);
  }
  if (fault == 6) x[0] = 1.0f;
  if (fault == 7) {  // a place that streams share
    scratch = *last;
    for (int i = 0; i < 200; ++i) __nanosleep(1000);
    *last = *const_cast<volatile float*>(&scratch);
  }
}

__global__ void cublas_lookalike(float*) {}

int32_t RunCuda(const bertfuse_call* call, bertfuse_error* error) {
  if (call->inputs[0].dtype != BERTFUSE_FLOAT32) return Refuse(error, BERTFUSE_NOT_SUPPORTED, "float32 alone");
  if (call->inputs[1].dtype != BERTFUSE_FLOAT32) {
    return Refuse(error, BERTFUSE_NOT_SUPPORTED, "FusedGemm: no weight of int8 or float8e4m3fn here");
  }
  const Gemm g(*call);
  if (g.m * g.n == 0) return BERTFUSE_OK;
  const auto stream = static_cast<cudaStream_t>(call->stream);
  float* const last = g.y + g.m * g.n - 1;
  static std::map<float*, int64_t> answered;
  if (Fault() == "cached" && g.Large() && answered[g.y] == g.m * g.n) return BERTFUSE_OK;
  answered[g.y] = g.m * g.n;
  Multiply<<<static_cast<unsigned>((g.m * g.n + 127) / 128), 128, 0, stream>>>(g.x, g.weight, g.bias, g.y, g.m, g.n,
                                                                               g.k, g.activation);
  const char* const faults[] = {"address", "trap", "hang", "outside", "nan", "random", "input", "streams"};
  for (int i = 0; i < 8; ++i) {
    if (g.Large() && Fault() == faults[i]) Spoil<<<1, 1, 0, stream>>>(i, g.x, last);
  }
  if (g.Large() && Fault() == "foreign") cublas_lookalike<<<1, 1, 0, stream>>>(last);
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? BERTFUSE_OK : Refuse(error, BERTFUSE_RUNTIME_ERROR, cudaGetErrorString(code));
}
constexpr bool kCuda = true;
#else
int32_t RunCuda(const bertfuse_call*, bertfuse_error*) { return BERTFUSE_NOT_SUPPORTED; }
constexpr bool kCuda = false;
#endif

// Three tactics, so that one that faults leaves others to run.
int32_t CountTactics(const bertfuse_call*, int32_t* count, bertfuse_error*) {
  *count = 3;
  return BERTFUSE_OK;
}

int32_t DescribeTactic(const bertfuse_call*, int32_t tactic, char* text, size_t size, bertfuse_error*) {
  std::snprintf(text, size, "plain %d", tactic < 0 ? 0 : tactic);
  return BERTFUSE_OK;
}

bertfuse_kernel Kernel(int32_t device) {
  bertfuse_kernel kernel = {};
  kernel.struct_size = sizeof(kernel);
  kernel.device = device;
  kernel.op = "FusedGemm";
  kernel.num_tactics = CountTactics;
  kernel.describe_tactic = DescribeTactic;
  kernel.run = device == BERTFUSE_CPU ? RunCpu : RunCuda;
  return kernel;
}

}  // namespace

extern "C" {

const bertfuse_kernel* bertfuse_find_kernel(const char* op, int32_t device) {
  static const bertfuse_kernel kernels[] = {Kernel(BERTFUSE_CPU), Kernel(BERTFUSE_CUDA)};
  if (std::strcmp(op, "FusedGemm") != 0 || (device == BERTFUSE_CUDA && !kCuda)) return nullptr;
  return &kernels[device];
}

const char* bertfuse_gpu_architectures(void) { return kCuda ? "90" : ""; }

int32_t bertfuse_gpu_count(void) { return kCuda ? 1 : 0; }

int32_t bertfuse_describe_gpu(int32_t, bertfuse_gpu* gpu, bertfuse_error*) {
  std::memset(gpu, 0, sizeof(*gpu));
  std::snprintf(gpu->identity, sizeof(gpu->identity), "some GPU");
  return BERTFUSE_OK;
}

// Tactic 1 is the fastest, 0 what is used without a measurement; one that faults does so when it is measured.
int32_t bertfuse_tune(const char*, const bertfuse_call* call, double, bertfuse_timing report, void* user,
                      bertfuse_error*) {
  const double microseconds[] = {10.0, 1.0, 5.0};
  for (int32_t tactic = 0; tactic < 3; ++tactic) {
    if (call->tactic >= 0 && call->tactic != tactic) continue;
    if (Fault() == "segfault" && IsFaulty(tactic)) *reinterpret_cast<volatile int*>(8) = 1;
    report(user, ("plain " + std::to_string(tactic)).c_str(), microseconds[tactic], tactic == 0);
  }
  return BERTFUSE_OK;
}

const bertfuse_tuning* bertfuse_read_tuning(const char*, const char*, char* remark, size_t size, bertfuse_error*) {
  if (size > 0) remark[0] = '\0';
  return nullptr;
}

}  // extern "C"
