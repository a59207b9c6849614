// The one entry point of the library: ONNX Runtime looks it up by name in a custom-op library.
#include <deque>
#include <mutex>
#include <string>

#include "core/kernel_table.h"
#include "core/op_table.h"
#include "op_table.generated.h"
#include "ort/api.h"
#include "ort/op_class.h"

namespace bertfuse::ort {
namespace {

// The domain with every op on every provider that has a kernel. Made once and never released: sessions point into it to
// their end, and at exit ONNX Runtime may be gone first.
OrtCustomOpDomain* MakeDomain() {
  OrtCustomOpDomain* domain = nullptr;
  Check(Api().CreateCustomOpDomain(kDomain, &domain));
  static auto* classes = new std::deque<OpClass>();
  for (const OpDef& op : AllOps()) {
    bool indexed = false;
    for (int i = 0; i < op.num_inputs; ++i) indexed |= op.inputs[i].dtype == Variable::kI;
    for (int32_t device : {BERTFUSE_CPU, BERTFUSE_CUDA}) {
      const bertfuse_kernel* kernel = bertfuse_find_kernel(op.name, "", device);
      if (kernel == nullptr) continue;
      for (int32_t dtype : DtypesOf(Variable::kT)) {
        for (int32_t index_dtype : DtypesOf(Variable::kI)) {
          Check(Api().CustomOpDomain_Add(domain, &classes->emplace_back(op, *kernel, dtype, index_dtype)));
          if (!indexed) break;
        }
      }
    }
  }
  return domain;
}

OrtCustomOpDomain* Domain() {
  static std::mutex mutex;
  static OrtCustomOpDomain* domain = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (domain == nullptr) domain = MakeDomain();
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
  SetApi(api);
  return GuardedStatus("", [&] { Check(api->AddCustomOpDomain(options, Domain())); });
}
