// The entry points that TensorRT looks up by name in a plugin library: getCreators from 10.0 on, getPluginCreators
// in 8.6 to 9.3, setLoggerFinder in all of them.
#include <deque>
#include <vector>

#include "core/op_table.h"
#include "core/status.h"
#include "tensorrt/creator.h"
#include "tensorrt/hosts.h"
#include "tensorrt/log.h"
#include "tensorrt/plugin_v2.h"
#include "tensorrt/version.h"

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

struct RegistryV2 {
  explicit RegistryV2(int32_t host_version) {
    for (const OpDef& op : AllOps()) list.push_back(&creators.emplace_back(op, host_version));
  }
  std::deque<CreatorV2> creators;
  std::vector<abi::v8::IPluginCreator*> list;
};

// The TensorRT 8 or 9 that asks for creators, or 0 where one of 10 or later does, which would register each op twice.
int32_t AskingVersion() {
  int32_t asking = VersionOfLoader();
  if (asking == 0) {
    AnyHost([&](void*, int32_t version) {
      if (FormOf(version) != HostForm::kV8) return false;
      asking = version;
      return true;
    });
  }
  return FormOf(asking) == HostForm::kV8 ? asking : 0;
}

// As TheRegistry.
const RegistryV2& TheRegistryV2(int32_t host_version) {
  static const auto* registry = new RegistryV2(host_version);
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

// Of no creator where the host is not TensorRT 8.5 to 9.3.
__attribute__((visibility("default"))) bertfuse::tensorrt::abi::v8::IPluginCreator* const* getPluginCreators(
    int32_t& nbCreators) noexcept {
  using namespace bertfuse;
  static tensorrt::abi::v8::IPluginCreator* const none = nullptr;
  nbCreators = 0;
  tensorrt::abi::v8::IPluginCreator* const* first = &none;
  bertfuse_error error = {};
  const int32_t code = Guarded(&error, [&] {
    const int32_t version = tensorrt::AskingVersion();
    if (version == 0) return;
    const auto& list = tensorrt::TheRegistryV2(version).list;
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
