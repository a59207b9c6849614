#include "tensorrt/creator.h"

#include <string>

#include "core/status.h"
#include "op_table.generated.h"
#include "tensorrt/fields.h"
#include "tensorrt/log.h"
#include "tensorrt/plugin.h"

namespace bertfuse::tensorrt {

Creator::Creator(const OpDef& op)
    : op_(op), fields_(FieldNames(op)), collection_{static_cast<int32_t>(fields_.size()), fields_.data()} {}

abi::IPluginV3* Creator::createPlugin(const char* name, const abi::PluginFieldCollection* fields,
                                      abi::TensorRTPhase phase) noexcept {
  Plugin* plugin = nullptr;
  std::string where;
  bertfuse_error error = {};
  const int32_t code = Guarded(&error, [&] {
    where = Where(name);
    const bool build = phase == abi::TensorRTPhase::kBUILD;
    plugin = new Plugin(build ? NewLayer(op_, name, fields) : LayerOfEngine(op_, name, fields));
  });
  if (code != BERTFUSE_OK) ReportError(error, where.c_str(), nullptr);
  return plugin;
}

const char* Creator::getPluginVersion() const noexcept { return kPluginVersion; }
const char* Creator::getPluginNamespace() const noexcept { return kDomain; }

}  // namespace bertfuse::tensorrt
