// The one creator class: makes plugins of one op from fields.
#ifndef BERTFUSE_TENSORRT_CREATOR_H_
#define BERTFUSE_TENSORRT_CREATOR_H_

#include <vector>

#include "core/op_def.h"
#include "tensorrt/abi.h"

namespace bertfuse::tensorrt {

class Creator final : public abi::IPluginCreatorV3One {
 public:
  explicit Creator(const OpDef& op);

  // Null, with a message in TensorRT's log, where the fields do not make the op.
  abi::IPluginV3* createPlugin(const char* name, const abi::PluginFieldCollection* fields,
                               abi::TensorRTPhase phase) noexcept override;
  const abi::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return op_.name; }
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

 private:
  const OpDef& op_;
  std::vector<abi::PluginField> fields_;
  abi::PluginFieldCollection collection_;
};

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_CREATOR_H_
