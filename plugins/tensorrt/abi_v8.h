// The plugin interface of TensorRT 8.5 to 9.3, declared anew: IPluginV2DynamicExt and its creator.
//
// Before 10.0 sizes are 32 bits wide, a plugin is one class that grew by inheritance, and an engine keeps its bytes.
// What is not here (fields, enumerators, tensor addresses) is as in abi.h. The order of virtual functions is the
// interface; tests/plugins/tensorrt/test_official_headers_v8.cc compares it with the headers of those releases, where
// they are at hand. 9.3 is the last release that has this interface and no other.
#ifndef BERTFUSE_TENSORRT_ABI_V8_H_
#define BERTFUSE_TENSORRT_ABI_V8_H_

#include <cstddef>
#include <cstdint>

#include "tensorrt/abi.h"

namespace bertfuse::tensorrt::abi::v8 {

struct Dims {
  static constexpr int32_t kMaxDims = 8;
  int32_t nbDims;
  int32_t d[kMaxDims];
};

struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};

// `min` and `max` are those of the optimisation profile, while an engine is built.
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min;
  Dims max;
};

enum class PluginVersion : uint8_t { kV2_DYNAMICEXT = 3 };
// What an IPluginV2DynamicExt says as its getTensorRTVersion.
inline int32_t DynamicExtVersion(int32_t host_version) {
  return static_cast<int32_t>(PluginVersion::kV2_DYNAMICEXT) << 24 | (host_version & 0xFFFFFF);
}

// --- Expressions over sizes -----------------------------------------------------------------------------------------

class DimensionExprImpl {
 public:
  virtual ~DimensionExprImpl() noexcept = default;
  virtual bool isConstant() const = 0;
  virtual int32_t getConstantValue() const = 0;
};

class IDimensionExpr {
 public:
  bool isConstant() const { return impl->isConstant(); }
  int32_t getConstantValue() const { return impl->getConstantValue(); }

 protected:
  virtual ~IDimensionExpr() = default;
  DimensionExprImpl* impl = nullptr;
};

class ExprBuilderImpl {
 public:
  virtual ~ExprBuilderImpl() noexcept = default;
  virtual const IDimensionExpr* constant(int32_t value) = 0;
  virtual const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                          const IDimensionExpr& second) = 0;
};

class IExprBuilder {
 public:
  const IDimensionExpr* constant(int32_t value) { return impl->constant(value); }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first, const IDimensionExpr& second) {
    return impl->operation(op, first, second);
  }

 protected:
  virtual ~IExprBuilder() = default;
  ExprBuilderImpl* impl = nullptr;
};

struct DimsExprs {
  int32_t nbDims;
  const IDimensionExpr* d[Dims::kMaxDims];
};

// --- What a plugin offers TensorRT ----------------------------------------------------------------------------------
// int32_t results are 0 for success.

class IPluginV2 {
 public:
  // The kind of plugin in the upper eight bits, below them the version of TensorRT.
  virtual int32_t getTensorRTVersion() const noexcept = 0;
  virtual const char* getPluginType() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual Dims getOutputDimensions(int32_t index, const Dims* inputs, int32_t nbInputDims) noexcept = 0;
  virtual bool supportsFormat(DataType type, TensorFormat format) const noexcept = 0;
  virtual void configureWithFormat(const Dims* inputDims, int32_t nbInputs, const Dims* outputDims, int32_t nbOutputs,
                                   DataType type, TensorFormat format, int32_t maxBatchSize) noexcept = 0;
  virtual int32_t initialize() noexcept = 0;
  virtual void terminate() noexcept = 0;
  virtual size_t getWorkspaceSize(int32_t maxBatchSize) const noexcept = 0;
  virtual int32_t enqueue(int32_t batchSize, const void* const* inputs, void* const* outputs, void* workspace,
                          Stream stream) noexcept = 0;
  virtual size_t getSerializationSize() const noexcept = 0;
  virtual void serialize(void* buffer) const noexcept = 0;
  virtual void destroy() noexcept = 0;
  virtual IPluginV2* clone() const noexcept = 0;
  virtual void setPluginNamespace(const char* pluginNamespace) noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
  virtual ~IPluginV2() noexcept = default;
};

class IPluginV2Ext : public IPluginV2 {
 public:
  virtual DataType getOutputDataType(int32_t index, const DataType* inputTypes, int32_t nbInputs) const noexcept = 0;
  virtual bool isOutputBroadcastAcrossBatch(int32_t outputIndex, const bool* inputIsBroadcasted,
                                            int32_t nbInputs) const noexcept = 0;
  virtual bool canBroadcastInputAcrossBatch(int32_t inputIndex) const noexcept = 0;
  virtual void configurePlugin(const Dims* inputDims, int32_t nbInputs, const Dims* outputDims, int32_t nbOutputs,
                               const DataType* inputTypes, const DataType* outputTypes, const bool* inputIsBroadcast,
                               const bool* outputIsBroadcast, TensorFormat floatFormat,
                               int32_t maxBatchSize) noexcept = 0;
  // cudnnContext*, cublasContext* and IGpuAllocator*, in this order.
  virtual void attachToContext(void*, void*, void*) noexcept {}
  virtual void detachFromContext() noexcept {}
  IPluginV2Ext* clone() const noexcept override = 0;

 protected:
  void configureWithFormat(const Dims*, int32_t, const Dims*, int32_t, DataType, TensorFormat,
                           int32_t) noexcept override {}
};

// The functions of the same name that it inherits are for networks with an implicit batch: never called.
class IPluginV2DynamicExt : public IPluginV2Ext {
 public:
  IPluginV2DynamicExt* clone() const noexcept override = 0;
  virtual DimsExprs getOutputDimensions(int32_t outputIndex, const DimsExprs* inputs, int32_t nbInputs,
                                        IExprBuilder& exprBuilder) noexcept = 0;
  // May look at inOut[0..pos] only.
  virtual bool supportsFormatCombination(int32_t pos, const PluginTensorDesc* inOut, int32_t nbInputs,
                                         int32_t nbOutputs) noexcept = 0;
  virtual void configurePlugin(const DynamicPluginTensorDesc* in, int32_t nbInputs, const DynamicPluginTensorDesc* out,
                               int32_t nbOutputs) noexcept = 0;
  virtual size_t getWorkspaceSize(const PluginTensorDesc* inputs, int32_t nbInputs, const PluginTensorDesc* outputs,
                                  int32_t nbOutputs) const noexcept = 0;
  virtual int32_t enqueue(const PluginTensorDesc* inputDesc, const PluginTensorDesc* outputDesc,
                          const void* const* inputs, void* const* outputs, void* workspace, Stream stream) noexcept = 0;

 private:
  void configurePlugin(const Dims*, int32_t, const Dims*, int32_t, const DataType*, const DataType*, const bool*,
                       const bool*, TensorFormat, int32_t) noexcept final {}
  bool supportsFormat(DataType, TensorFormat) const noexcept final { return false; }
  Dims getOutputDimensions(int32_t, const Dims*, int32_t) noexcept final { return {-1, {}}; }
  bool isOutputBroadcastAcrossBatch(int32_t, const bool*, int32_t) const noexcept final { return false; }
  bool canBroadcastInputAcrossBatch(int32_t) const noexcept final { return true; }
  size_t getWorkspaceSize(int32_t) const noexcept final { return 0; }
  int32_t enqueue(int32_t, const void* const*, void* const*, void*, Stream) noexcept final { return 1; }
};

class IPluginCreator {
 public:
  virtual int32_t getTensorRTVersion() const noexcept = 0;
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual IPluginV2* createPlugin(const char* name, const PluginFieldCollection* fields) noexcept = 0;
  virtual IPluginV2* deserializePlugin(const char* name, const void* serialData, size_t serialLength) noexcept = 0;
  virtual void setPluginNamespace(const char* pluginNamespace) noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
  virtual ~IPluginCreator() = default;
};

}  // namespace bertfuse::tensorrt::abi::v8
#endif  // BERTFUSE_TENSORRT_ABI_V8_H_
