// The two entry points that TensorRT looks up by name in a plugin library.
#include <deque>
#include <vector>

#include "core/op_table.h"
#include "core/status.h"
#include "tensorrt/creator.h"
#include "tensorrt/log.h"

namespace bertfuse::tensorrt {
namespace {

struct Registry {
  Registry() {
    for (const OpDef& op : AllOps()) list.push_back(&creators.emplace_back(op));
  }
  std::deque<Creator> creators;
  std::vector<abi::IPluginCreatorInterface*> list;
};

// Made once and never released: TensorRT keeps the pointers, and at exit it may still use them when statics are gone.
const Registry& TheRegistry() {
  static const auto* registry = new Registry();
  return *registry;
}

}  // namespace
}  // namespace bertfuse::tensorrt

extern "C" {

__attribute__((visibility("default"))) bertfuse::tensorrt::abi::IPluginCreatorInterface* const* getCreators(
    int32_t& nbCreators) noexcept {
  using namespace bertfuse;
  nbCreators = 0;
  tensorrt::abi::IPluginCreatorInterface* const* first = nullptr;
  bertfuse_error error = {};
  const int32_t code = Guarded(&error, [&] {
    const auto& list = tensorrt::TheRegistry().list;
    first = list.data();
    nbCreators = static_cast<int32_t>(list.size());
  });
  if (code != BERTFUSE_OK) tensorrt::ReportError(error, "", nullptr);
  return first;
}

__attribute__((visibility("default"))) void setLoggerFinder(void* finder) noexcept {
  bertfuse::tensorrt::SetLoggerFinder(finder);
}
}
