// The part of cuBLASLt that bertfuse calls, for machines without a GPU, beside fake_cudart: it checks every argument,
// records heuristics and products as JSON lines, and can compute products, where the tensors are memory of the host.
// What it should report is set by fake_cublaslt_behave(). A second build lacks a function.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "product.h"

using namespace fake_cublaslt;

namespace {

// What a test asks for. Sizes of `workspace` beyond the preference's are left out, as cuBLASLt leaves them out.
struct Behaviour {
  size_t version = 130002;
  int create = kSuccess, heuristic = kSuccess, matmul = kSuccess;
  int algorithms = 3;
  size_t workspace[8] = {};
  int states[8] = {};
  int biased = 1;    // whether there are algorithms that add a bias
  int computes = 0;  // whether the tensors are the host's memory
};

// One heuristic: what an algorithm that came of it may be used for.
struct Query {
  int device;
  OpaqueMatmulDesc desc;
  OpaqueMatrixLayout a, b, c, d;
  OpaquePreference preference;
  std::vector<size_t> workspace;
};

struct State {
  std::mutex mutex;
  Behaviour behaviour;
  std::string log;
  std::vector<Query> queries;
  std::set<const void*> live;
  int handles = 0;
};

State& TheState() {
  static State& state = *new State;
  return state;
}

// A fault is something that cuBLASLt would refuse, or that it would not notice and we must not do.
int Fault(const std::string& what) {
  TheState().log += "{\"fault\": \"" + what + "\"}\n";
  return kInvalidValue;
}

template <class T>
T* Made(T* object) {
  TheState().live.insert(object);
  return object;
}

bool Lives(const void* object) { return TheState().live.count(object) != 0; }

template <class T>
int Destroyed(T* object) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  if (TheState().live.erase(object) == 0) return Fault("something is destroyed that is not there");
  delete object;
  return kSuccess;
}

template <class T>
int Take(const void* from, size_t size, T* to) {
  if (from == nullptr || size != sizeof(T)) return Fault("an attribute has the wrong size");
  std::memcpy(to, from, size);
  return kSuccess;
}

std::string Number(const void* pointer) { return std::to_string(reinterpret_cast<uintptr_t>(pointer)); }

[[maybe_unused]] std::string Json(const OpaqueMatrixLayout& x) {
  return "{\"type\": " + std::to_string(x.type) + ", \"rows\": " + std::to_string(x.rows) +
         ", \"columns\": " + std::to_string(x.columns) + ", \"leading\": " + std::to_string(x.leading) + "}";
}

int CurrentDevice() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

bool IsAligned(const void* pointer, uint32_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Whether an algorithm could read or write every column in pieces of so many bytes.
bool ColumnsAreAligned(const void* data, const OpaqueMatrixLayout& x, uint32_t bytes) {
  return IsAligned(data, bytes) && static_cast<uint64_t>(x.leading) * BytesOf(x.type) % bytes == 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void fake_cublaslt_behave(const Behaviour* behaviour) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  TheState().behaviour = *behaviour;
}
// What was recorded since the last call, as JSON lines; the text stays until the thread's next call.
EXPORT const char* fake_cublaslt_take() {
  thread_local std::string taken;
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  taken = std::move(TheState().log);
  TheState().log.clear();
  return taken.c_str();
}
// Descriptors, layouts and preferences that were made and not destroyed.
EXPORT int fake_cublaslt_live() {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  return static_cast<int>(TheState().live.size()) - TheState().handles;
}

EXPORT size_t cublasLtGetVersion() { return TheState().behaviour.version; }
EXPORT const char* cublasLtGetStatusName(int status) {
  static const std::map<int, const char*> names = {{kNotInitialized, "CUBLAS_STATUS_NOT_INITIALIZED"},
                                                   {kInvalidValue, "CUBLAS_STATUS_INVALID_VALUE"},
                                                   {kInternalError, "CUBLAS_STATUS_INTERNAL_ERROR"},
                                                   {kNotSupported, "CUBLAS_STATUS_NOT_SUPPORTED"}};
  const auto found = names.find(status);
  return found == names.end() ? "CUBLAS_STATUS_OTHER" : found->second;
}

EXPORT int cublasLtCreate(Handle* handle) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  TheState().log += "{\"create\": " + std::to_string(CurrentDevice()) + "}\n";
  if (TheState().behaviour.create != kSuccess) return TheState().behaviour.create;
  *handle = Made(new OpaqueHandle{CurrentDevice()});
  ++TheState().handles;
  return kSuccess;
}
EXPORT int cublasLtDestroy(Handle handle) { return Destroyed(handle); }

EXPORT int cublasLtMatmulDescCreate(MatmulDesc* desc, int compute, cudaDataType_t scale) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  *desc = Made(new OpaqueMatmulDesc);
  (*desc)->compute = compute, (*desc)->scale = scale;
  return kSuccess;
}
EXPORT int cublasLtMatmulDescDestroy(MatmulDesc desc) { return Destroyed(desc); }
EXPORT int cublasLtMatmulDescSetAttribute(MatmulDesc desc, int attribute, const void* value, size_t size) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  if (!Lives(desc)) return Fault("a descriptor that is not there");
  switch (attribute) {
    case kDescTransA:
      return Take(value, size, &desc->trans_a);
    case kDescTransB:
      return Take(value, size, &desc->trans_b);
    case kDescEpilogue:
      return Take(value, size, &desc->epilogue);
    case kDescBiasPointer:
      return Take(value, size, &desc->bias);
    default:
      return Fault("an attribute of a product that is not known here");
  }
}

EXPORT int cublasLtMatrixLayoutCreate(MatrixLayout* layout, cudaDataType_t type, uint64_t rows, uint64_t columns,
                                      int64_t leading) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  *layout = Made(new OpaqueMatrixLayout{type, rows, columns, leading});
  return kSuccess;
}
EXPORT int cublasLtMatrixLayoutDestroy(MatrixLayout layout) { return Destroyed(layout); }

EXPORT int cublasLtMatmulPreferenceCreate(Preference* preference) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  *preference = Made(new OpaquePreference);
  return kSuccess;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Preference preference) { return Destroyed(preference); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference preference, int attribute, const void* value, size_t size) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  if (!Lives(preference)) return Fault("a preference that is not there");
  switch (attribute) {
    case kPreferenceMaxWorkspaceBytes:
      return Take(value, size, &preference->workspace);
    case kPreferenceReductionSchemeMask:
      return Take(value, size, &preference->reductions);
    case kPreferenceMinAlignmentA:
    case kPreferenceMinAlignmentB:
    case kPreferenceMinAlignmentC:
    case kPreferenceMinAlignmentD:
      return Take(value, size, &preference->alignments[attribute - kPreferenceMinAlignmentA]);
    default:
      return Fault("a preference that is not known here");
  }
}

#ifndef FAKE_CUBLASLT_LACKS_HEURISTIC
EXPORT int cublasLtMatmulAlgoGetHeuristic(Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b,
                                          MatrixLayout c, MatrixLayout d, Preference preference, int asked,
                                          HeuristicResult* results, int* count) {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const Behaviour& behaviour = state.behaviour;
  for (const void* object : {static_cast<const void*>(handle), static_cast<const void*>(desc),
                             static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c),
                             static_cast<const void*>(d), static_cast<const void*>(preference)}) {
    if (!Lives(object)) return Fault("a heuristic is given something that is not there");
  }
  const std::string wrong = Judge(*desc, *a, *b, *c, *d);
  if (!wrong.empty()) return Fault("heuristic: " + wrong);
  state.log += "{\"heuristic\": " + std::to_string(state.queries.size()) +
               ", \"device\": " + std::to_string(handle->device) + ", \"a\": " + Json(*a) + ", \"b\": " + Json(*b) +
               ", \"d\": " + Json(*d) + ", \"compute\": " + std::to_string(desc->compute) +
               ", \"epilogue\": " + std::to_string(desc->epilogue) + ", \"bias\": " + Number(desc->bias) +
               ", \"workspace\": " + std::to_string(preference->workspace) +
               ", \"reductions\": " + std::to_string(preference->reductions) + ", \"alignments\": [";
  for (int i = 0; i < 4; ++i) state.log += (i > 0 ? ", " : "") + std::to_string(preference->alignments[i]);
  state.log += "]}\n";
  Query query = {handle->device, *desc, *a, *b, *c, *d, *preference, {}};
  *count = 0;
  if (behaviour.heuristic == kSuccess && (desc->bias == nullptr || behaviour.biased != 0)) {
    for (int i = 0; i < behaviour.algorithms && *count < asked; ++i) {
      if (behaviour.workspace[i] > preference->workspace) continue;
      HeuristicResult& result = results[*count];
      result = {};
      result.algorithm.data[0] = state.queries.size(), result.algorithm.data[1] = query.workspace.size();
      result.workspace_bytes = behaviour.workspace[i];
      result.state = behaviour.states[i];
      query.workspace.push_back(result.workspace_bytes);
      ++*count;
    }
  }
  state.queries.push_back(query);
  if (behaviour.heuristic != kSuccess) return behaviour.heuristic;
  return *count > 0 ? kSuccess : kNotSupported;
}
#endif

EXPORT int cublasLtMatmul(Handle handle, MatmulDesc desc, const void* alpha, const void* a, MatrixLayout al,
                          const void* b, MatrixLayout bl, const void* beta, const void* c, MatrixLayout cl, void* d,
                          MatrixLayout dl, const Algorithm* algorithm, void* workspace, size_t bytes,
                          cudaStream_t stream) {
  State& state = TheState();
  const std::unique_lock<std::mutex> lock(state.mutex);
  for (const void* object :
       {static_cast<const void*>(handle), static_cast<const void*>(desc), static_cast<const void*>(al),
        static_cast<const void*>(bl), static_cast<const void*>(cl), static_cast<const void*>(dl)}) {
    if (!Lives(object)) return Fault("a product is given something that is not there");
  }
  std::string wrong = Judge(*desc, *al, *bl, *cl, *dl);
  if (algorithm == nullptr || algorithm->data[0] >= state.queries.size()) return Fault("an algorithm of no heuristic");
  const Query& query = state.queries[algorithm->data[0]];
  const uint32_t* aligned = query.preference.alignments;
  const size_t needed = query.workspace[algorithm->data[1]];
  const float one = *static_cast<const float*>(alpha), zero = *static_cast<const float*>(beta);
  if (!(query.a == *al && query.b == *bl && query.d == *dl) || query.desc.compute != desc->compute ||
      query.desc.epilogue != desc->epilogue || query.desc.trans_a != desc->trans_a ||
      query.desc.trans_b != desc->trans_b) {
    wrong = "the algorithm is that of another product";
  }
  if (handle->device != CurrentDevice() || query.device != handle->device) wrong = "not the handle's device";
  // As strict as the algorithms that have been met: they trust what they are told in every column, and of a bias and of
  // partial sums, of which nothing can be said, they take 16 bytes at a time.
  if (!ColumnsAreAligned(a, *al, aligned[0]) || !ColumnsAreAligned(b, *bl, aligned[1]) ||
      !ColumnsAreAligned(c, *cl, aligned[2]) || !ColumnsAreAligned(d, *dl, aligned[3])) {
    wrong = "an operand is not aligned as was said";
  }
  if (desc->bias != nullptr &&
      !IsAligned(desc->bias, std::max(16u, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(query.desc.bias))))) {
    wrong = "the bias is not aligned";
  }
  if (query.preference.reductions != kReductionNone && dl->leading * BytesOf(dl->type) % 16 != 0) {
    wrong = "partial sums may have columns off alignment";
  }
  if (bytes < needed || (bytes > 0 && (workspace == nullptr || !IsAligned(workspace, 256)))) wrong = "the workspace";
  // cuBLASLt 13.1 refuses such a pointer even where it is given no bytes.
  if (!IsAligned(workspace, 16)) wrong = "the workspace's pointer, of no bytes, is not aligned";
  if (one != 1.0f || zero != 0.0f || c != d) wrong = "alpha, beta or C";
  state.log += "{\"matmul\": " + std::to_string(algorithm->data[0]) +
               ", \"algorithm\": " + std::to_string(algorithm->data[1]) +
               ", \"device\": " + std::to_string(handle->device) + ", \"a\": " + Number(a) + ", \"b\": " + Number(b) +
               ", \"d\": " + Number(d) + ", \"d_type\": " + std::to_string(dl->type) +
               ", \"bias\": " + Number(desc->bias) + ", \"workspace\": " + Number(workspace) +
               ", \"bytes\": " + std::to_string(bytes) + ", \"stream\": " + Number(stream) + "}\n";
  if (!wrong.empty()) return Fault("product: " + wrong);
  if (state.behaviour.matmul != kSuccess) return state.behaviour.matmul;
  if (state.behaviour.computes != 0) Compute(*desc, a, *al, b, *bl, d, *dl);
  return kSuccess;
}
