// The one layer class, for every op of the table: TensorRT 10's plugin, and what TensorRT 8's wraps (plugin_v2.h).
#ifndef BERTFUSE_TENSORRT_PLUGIN_H_
#define BERTFUSE_TENSORRT_PLUGIN_H_

#include <memory>
#include <string>
#include <vector>

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "core/settings.h"
#include "core/status.h"
#include "tensorrt/abi.h"
#include "tensorrt/fields.h"
#include "tensorrt/form.h"
#include "tensorrt/log.h"
#include "tensorrt/request.h"

namespace bertfuse::tensorrt {

// A layer. TensorRT calls it in this order, on copies that it makes in between with clone():
//   network    getOutputDataTypes, getOutputShapes
//   builder    supportsFormatCombination, configurePlugin, getWorkspaceSize, getFieldsToSerialize; once per profile
//   execution  attachToContext, onShapeChange whenever shapes may have changed, enqueue
class Plugin final : public abi::IPluginV3,
                     public abi::IPluginV3OneCore,
                     public abi::IPluginV3OneBuild,
                     public abi::IPluginV3OneRuntime {
 public:
  // `layer` is the network's name for the layer, for messages; may be null. Throws INVALID_ARGUMENT where
  // BERTFUSE_TUNING or BERTFUSE_TF32 is set to what cannot be used.
  Plugin(const OpDef& op, const char* layer, std::shared_ptr<const Fields> fields, const Built& built);

  abi::IPluginCapability* getCapabilityInterface(abi::PluginCapabilityType type) noexcept override;
  abi::IPluginV3* clone() noexcept override;

  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

  int32_t getOutputDataTypes(abi::DataType* outputTypes, int32_t nbOutputs, const abi::DataType* inputTypes,
                             int32_t nbInputs) const noexcept override;
  int32_t getOutputShapes(const abi::DimsExprs* inputs, int32_t nbInputs, const abi::DimsExprs* shapeInputs,
                          int32_t nbShapeInputs, abi::DimsExprs* outputs, int32_t nbOutputs,
                          abi::IExprBuilder& exprBuilder) noexcept override;
  bool supportsFormatCombination(int32_t pos, const abi::DynamicPluginTensorDesc* inOut, int32_t nbInputs,
                                 int32_t nbOutputs) noexcept override;
  int32_t configurePlugin(const abi::DynamicPluginTensorDesc* in, int32_t nbInputs,
                          const abi::DynamicPluginTensorDesc* out, int32_t nbOutputs) noexcept override;
  int32_t getNbOutputs() const noexcept override;
  size_t getWorkspaceSize(const abi::DynamicPluginTensorDesc* inputs, int32_t nbInputs,
                          const abi::DynamicPluginTensorDesc* outputs, int32_t nbOutputs) const noexcept override;
  const char* getTimingCacheID() noexcept override;
  const char* getMetadataString() noexcept override;
  const abi::PluginFieldCollection* getFieldsToSerialize() noexcept override;

  abi::IPluginV3* attachToContext(abi::IPluginResourceContext* context) noexcept override;
  int32_t onShapeChange(const abi::PluginTensorDesc* in, int32_t nbInputs, const abi::PluginTensorDesc* out,
                        int32_t nbOutputs) noexcept override;
  int32_t enqueue(const abi::PluginTensorDesc* inputDesc, const abi::PluginTensorDesc* outputDesc,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  abi::Stream stream) noexcept override;

  // Runs `body`; whatever it throws is reported and becomes a code.
  template <class Body>
  int32_t Checked(Body&& body) const noexcept {
    bertfuse_error error = {};
    const int32_t code = Guarded(&error, body);
    if (code != BERTFUSE_OK) ReportError(error, where_.c_str(), recorder_);
    return code;
  }

  // What an engine keeps; the fields point into this object.
  std::vector<abi::PluginField> SerializedFields() const;

  // Raises the workspace that the layer asks for, and that it counts on, to that many bytes.
  void AskForAtLeast(size_t workspace);

  // How many inputs the layer has, or 0 before configurePlugin or onShapeChange.
  int num_inputs() const { return Count(static_cast<Present>(built_.present)); }

 private:
  // The layer's form where the fields say it; else that with the inputs which dtypes (and ranks, which may be null)
  // tell. Throws as FindPresent does, and where there are not as many inputs as the fields say.
  Form FormOf(int32_t num_inputs, const int32_t* dtypes, const int32_t* ranks) const;
  template <class DescriptionOf>
  Form FormOf(int32_t num_inputs, DescriptionOf&& description_of) const;
  Form BuiltForm() const;  // of configurePlugin's or onShapeChange's inputs
  void CheckNumInputs(int32_t count) const;
  void CheckNumOutputs(int32_t count) const;

  // Throws unless the kernel has a tactic for the call that makes do with the engine's workspace. Which one it takes it
  // chooses at each run, when it sees how the tensors are aligned.
  void CheckWorkspace(bertfuse_call call) const;

  const OpDef& op_;
  const bertfuse_kernel* kernel_;  // null where the library has none for this op
  std::string where_;              // in front of messages
  std::shared_ptr<const Fields> fields_;
  CallSettings settings_;
  Built built_;
  std::vector<abi::PluginField> serialized_;
  abi::PluginFieldCollection collection_ = {};
  abi::IErrorRecorder* recorder_ = nullptr;  // of the execution context
};

// A layer of a network that is being made, or of an engine, from its fields. Throws INVALID_ARGUMENT where they do not
// make the op.
Plugin NewLayer(const OpDef& op, const char* name, const abi::PluginFieldCollection* fields);
Plugin LayerOfEngine(const OpDef& op, const char* name, const abi::PluginFieldCollection* fields);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_PLUGIN_H_
