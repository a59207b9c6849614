// The one entry point of the library: ONNX Runtime looks it up by name in a custom-op library.
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "core/dtype.h"
#include "core/kernel_table.h"
#include "core/op_table.h"
#include "op_table.generated.h"
#include "ort/api.h"
#include "ort/op_class.h"

namespace bertfuse::ort {
namespace {

bool HasOptionalInputs(const OpDef& op) {
  for (int i = 0; i < op.num_inputs; ++i) {
    if (op.inputs[i].optional) return true;
  }
  return false;
}

// Before 1.24, ONNX Runtime reads the type of every input before it asks for shapes, and dies of a null pointer at an
// optional one that is absent (seen in 1.21.1, 1.22.1 and 1.23.2; 1.24.4 is well).
bool InfersShapesOfAbsentInputs(const char* version) {
  int major = 0, minor = 0;
  return std::sscanf(version, "%d.%d", &major, &minor) == 2 && (major > 1 || minor >= 24);
}

// The domain with every op on every provider that has a kernel. Never released: sessions point into it to their end,
// and at exit ONNX Runtime may be gone first.
OrtCustomOpDomain* MakeDomain(const char* version, const CallSettings& settings) {
  OrtCustomOpDomain* domain = nullptr;
  Check(Api().CreateCustomOpDomain(kDomain, &domain));
  static auto* classes = new std::deque<OpClass>();
  for (const OpDef& op : AllOps()) {
    const bool infer_shapes = InfersShapesOfAbsentInputs(version) || !HasOptionalInputs(op);
    for (int32_t device : {BERTFUSE_CPU, BERTFUSE_CUDA}) {
      const bertfuse_kernel* kernel = bertfuse_find_kernel(op.name, device);
      if (kernel == nullptr) continue;
      for (int32_t dtype : DtypesOf(Variable::kT)) {
        for (int32_t index_dtype : DtypesOf(Variable::kI)) {
          for (int32_t weight_dtype : DtypesOf(Variable::kW)) {
            if (IsFloat(weight_dtype) && weight_dtype != dtype) continue;
            for (int32_t result_dtype : DtypesOf(Variable::kQ)) {
              OpClass& made = classes->emplace_back(Api(), op, *kernel, settings, dtype, index_dtype, weight_dtype,
                                                    result_dtype, infer_shapes);
              Check(Api().CustomOpDomain_Add(domain, &made));
              if (!Uses(op, Variable::kQ)) break;
            }
            if (!Uses(op, Variable::kW)) break;
          }
          if (!Uses(op, Variable::kI)) break;
        }
        if (!Uses(op, Variable::kT)) break;
      }
    }
  }
  return domain;
}

// One domain for all of a runtime's sessions with the same settings.
OrtCustomOpDomain* Domain(const char* version, const SessionSettings& settings) {
  static std::mutex mutex;
  static auto* domains = new std::map<std::pair<const OrtApi*, SessionSettings>, OrtCustomOpDomain*>();
  const std::lock_guard<std::mutex> lock(mutex);
  OrtCustomOpDomain*& domain = (*domains)[{&Api(), settings}];
  if (domain == nullptr) domain = MakeDomain(version, MakeSettings(settings));
  return domain;
}

}  // namespace
}  // namespace bertfuse::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* api_base) {
  using namespace bertfuse::ort;
  const OrtApi* api = api_base->GetApi(kApiVersion);
  if (api == nullptr) {
    return api_base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, "bertfuse needs ONNX Runtime 1.21 or newer");
  }
  const ApiScope scope(api);
  return GuardedStatus(
      "", [&] { Check(api->AddCustomOpDomain(options, Domain(api_base->GetVersionString(), ReadSettings(options)))); });
}
