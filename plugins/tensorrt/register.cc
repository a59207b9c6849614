// The two entry points that TensorRT looks up by name in a plugin library.
#include <deque>
#include <vector>

#include "core/op_table.h"
#include "core/status.h"
#include "tensorrt/creator.h"
#include "tensorrt/log.h"

namespace bertfuse::tensorrt {
namespace {

// Made once and never released: TensorRT keeps the pointers to the end of the process.
const std::vector<abi::IPluginCreatorInterface*>& Creators() {
  static const auto* list = [] {
    auto* creators = new std::deque<Creator>();
    auto* pointers = new std::vector<abi::IPluginCreatorInterface*>();
    for (const OpDef& op : AllOps()) pointers->push_back(&creators->emplace_back(op));
    return pointers;
  }();
  return *list;
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
    first = tensorrt::Creators().data();
    nbCreators = static_cast<int32_t>(tensorrt::Creators().size());
  });
  if (code != BERTFUSE_OK) tensorrt::ReportError(error, "", nullptr);
  return first;
}

__attribute__((visibility("default"))) void setLoggerFinder(void* finder) noexcept {
  bertfuse::tensorrt::SetLoggerFinder(finder);
}
}
