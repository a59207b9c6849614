// A layer as TensorRT 8.5 to 9.3 have it: Plugin behind IPluginV2DynamicExt.
#ifndef BERTFUSE_TENSORRT_PLUGIN_V2_H_
#define BERTFUSE_TENSORRT_PLUGIN_V2_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/op_def.h"
#include "tensorrt/abi_v8.h"
#include "tensorrt/fields.h"
#include "tensorrt/plugin.h"

namespace bertfuse::tensorrt {

// By its headers TensorRT calls it in this order, on copies that it makes in between with clone():
//   network    getOutputDataType, getOutputDimensions
//   builder    supportsFormatCombination, configurePlugin, getWorkspaceSize, enqueue to time it, serialize
//   execution  configurePlugin whenever shapes have changed, enqueue
// What is computed, and all checks, are Plugin's. There is no opt shape, the shapes of a run come by configurePlugin,
// and an engine keeps bytes.
class PluginV2 final : public abi::v8::IPluginV2DynamicExt {
 public:
  // `host_version` as TensorRT's getInferLibVersion says it. `from_engine`: what configurePlugin finds out while an
  // engine is built, `layer` already has.
  PluginV2(const Plugin& layer, int32_t host_version, bool from_engine);

  int32_t getTensorRTVersion() const noexcept override;
  const char* getPluginType() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  int32_t getNbOutputs() const noexcept override;
  int32_t initialize() noexcept override { return 0; }
  void terminate() noexcept override {}
  size_t getSerializationSize() const noexcept override;
  void serialize(void* buffer) const noexcept override;
  void destroy() noexcept override { delete this; }
  abi::v8::IPluginV2DynamicExt* clone() const noexcept override;
  void setPluginNamespace(const char*) noexcept override {}  // it has one
  const char* getPluginNamespace() const noexcept override;

  abi::DataType getOutputDataType(int32_t index, const abi::DataType* inputTypes,
                                  int32_t nbInputs) const noexcept override;
  abi::v8::DimsExprs getOutputDimensions(int32_t outputIndex, const abi::v8::DimsExprs* inputs, int32_t nbInputs,
                                         abi::v8::IExprBuilder& exprBuilder) noexcept override;
  bool supportsFormatCombination(int32_t pos, const abi::v8::PluginTensorDesc* inOut, int32_t nbInputs,
                                 int32_t nbOutputs) noexcept override;
  void configurePlugin(const abi::v8::DynamicPluginTensorDesc* in, int32_t nbInputs,
                       const abi::v8::DynamicPluginTensorDesc* out, int32_t nbOutputs) noexcept override;
  size_t getWorkspaceSize(const abi::v8::PluginTensorDesc* inputs, int32_t nbInputs,
                          const abi::v8::PluginTensorDesc* outputs, int32_t nbOutputs) const noexcept override;
  int32_t enqueue(const abi::v8::PluginTensorDesc* inputDesc, const abi::v8::PluginTensorDesc* outputDesc,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  abi::Stream stream) noexcept override;

 private:
  Plugin layer_;
  int32_t host_version_;
  bool from_engine_;
  int32_t configured_ = 0;  // what configurePlugin, which cannot say it, came to
};

class CreatorV2 final : public abi::v8::IPluginCreator {
 public:
  CreatorV2(const OpDef& op, int32_t host_version);

  int32_t getTensorRTVersion() const noexcept override { return host_version_; }
  const char* getPluginName() const noexcept override { return op_.name; }
  const char* getPluginVersion() const noexcept override;
  const abi::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  // Null, with a message in TensorRT's log, where the fields do not make the op.
  abi::v8::IPluginV2* createPlugin(const char* name, const abi::PluginFieldCollection* fields) noexcept override;
  // An UnreadableV2 where what an engine kept does not make the op.
  abi::v8::IPluginV2* deserializePlugin(const char* name, const void* serialData,
                                        size_t serialLength) noexcept override;
  void setPluginNamespace(const char*) noexcept override {}  // it has one
  const char* getPluginNamespace() const noexcept override;

 private:
  const OpDef& op_;
  int32_t host_version_;
  std::vector<abi::PluginField> fields_;
  abi::PluginFieldCollection collection_;
};

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_PLUGIN_V2_H_
