// What stands for a layer of a TensorRT 8 engine that cannot be read.
#ifndef BERTFUSE_TENSORRT_UNREADABLE_V2_H_
#define BERTFUSE_TENSORRT_UNREADABLE_V2_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "tensorrt/abi_v8.h"

namespace bertfuse::tensorrt {

// Refuses, and logs why, wherever TensorRT 8 takes a refusal: TensorRT 8.6.0 uses what deserializePlugin gives without
// looking whether it is null.
class UnreadableV2 final : public abi::v8::IPluginV2DynamicExt {
 public:
  UnreadableV2(const OpDef& op, int32_t host_version, const std::string& where, const bertfuse_error& error);

  int32_t getTensorRTVersion() const noexcept override { return abi::v8::DynamicExtVersion(host_version_); }
  const char* getPluginType() const noexcept override { return op_.name; }
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;
  void setPluginNamespace(const char*) noexcept override {}
  int32_t getNbOutputs() const noexcept override { return op_.num_outputs; }

  int32_t initialize() noexcept override { return Refuse(); }
  int32_t enqueue(const abi::v8::PluginTensorDesc*, const abi::v8::PluginTensorDesc*, const void* const*, void* const*,
                  void*, abi::Stream) noexcept override {
    return Refuse();
  }

  void terminate() noexcept override {}
  void destroy() noexcept override { delete this; }
  abi::v8::IPluginV2DynamicExt* clone() const noexcept override;
  size_t getSerializationSize() const noexcept override { return 0; }
  void serialize(void*) const noexcept override {}
  abi::DataType getOutputDataType(int32_t, const abi::DataType*, int32_t) const noexcept override {
    return abi::DataType::kFLOAT;
  }
  abi::v8::DimsExprs getOutputDimensions(int32_t, const abi::v8::DimsExprs*, int32_t,
                                         abi::v8::IExprBuilder&) noexcept override {
    return {-1, {}};
  }
  bool supportsFormatCombination(int32_t, const abi::v8::PluginTensorDesc*, int32_t, int32_t) noexcept override {
    return false;
  }
  void configurePlugin(const abi::v8::DynamicPluginTensorDesc*, int32_t, const abi::v8::DynamicPluginTensorDesc*,
                       int32_t) noexcept override {}
  size_t getWorkspaceSize(const abi::v8::PluginTensorDesc*, int32_t, const abi::v8::PluginTensorDesc*,
                          int32_t) const noexcept override {
    return 0;
  }

 private:
  int32_t Refuse() const noexcept;

  const OpDef& op_;
  int32_t host_version_;
  std::string where_;  // in front of messages
  bertfuse_error error_;
};

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_UNREADABLE_V2_H_
