#include "tensorrt/unreadable_v2.h"

#include "core/status.h"
#include "op_table.generated.h"
#include "tensorrt/log.h"

namespace bertfuse::tensorrt {

UnreadableV2::UnreadableV2(const OpDef& op, int32_t host_version, const std::string& where, const bertfuse_error& error)
    : op_(op), host_version_(host_version), where_(where), error_(error) {}

const char* UnreadableV2::getPluginVersion() const noexcept { return kPluginVersion; }
const char* UnreadableV2::getPluginNamespace() const noexcept { return kDomain; }

abi::v8::IPluginV2DynamicExt* UnreadableV2::clone() const noexcept {
  UnreadableV2* copy = nullptr;
  bertfuse_error error = {};
  const int32_t code = Guarded(&error, [&] { copy = new UnreadableV2(*this); });
  if (code != BERTFUSE_OK) ReportError(error, where_.c_str(), nullptr);
  return copy;
}

int32_t UnreadableV2::Refuse() const noexcept {
  ReportError(error_, where_.c_str(), nullptr);
  return error_.code;
}

}  // namespace bertfuse::tensorrt
