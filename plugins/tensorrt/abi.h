// TensorRT's plugin interface, declared anew: what a plugin library and TensorRT hand each other.
//
// TensorRT promises its versioned interfaces ("v_1_0") to be one binary interface from 10.0 on, and TensorRT for RTX
// has the same. So this library is built without an SDK, which pip-installed TensorRT lacks, and one build serves them
// all. The order of virtual functions, the order of members and the values of enumerators are the interface; they were
// learnt from the public headers of TensorRT 10.0 to 11.1 (NvInferRuntimeBase.h, NvInferPluginBase.h,
// NvInferRuntimePlugin.h, NvInferRuntime.h and, for the expression classes, NvInferImpl.h) and used with TensorRT for
// RTX 1.7.1. Where headers are at hand, tests/plugins/tensorrt/test_official_headers.cc compares every slot, offset and
// value with them.
//
// Functions and members keep TensorRT's spelling. Only what is used is here; a class that plugins merely call may end
// before TensorRT's does.
#ifndef BERTFUSE_TENSORRT_ABI_H_
#define BERTFUSE_TENSORRT_ABI_H_

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace bertfuse::tensorrt::abi {

using Stream = CUstream_st*;  // cudaStream_t

enum class DataType : int32_t {
  kFLOAT = 0,
  kHALF = 1,
  kINT8 = 2,
  kINT32 = 3,
  kBOOL = 4,
  kUINT8 = 5,
  kFP8 = 6,
  kBF16 = 7,
  kINT64 = 8,
};

enum class TensorFormat : int32_t { kLINEAR = 0 };

enum class PluginFieldType : int32_t {
  kFLOAT16 = 0,
  kFLOAT32 = 1,
  kFLOAT64 = 2,
  kINT8 = 3,
  kINT16 = 4,
  kINT32 = 5,
  kCHAR = 6,
  kDIMS = 7,
  kUNKNOWN = 8,
  kBF16 = 9,
  kINT64 = 10,
};

enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };

enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };

enum class DimensionOperation : int32_t {
  kSUM = 0,
  kPROD = 1,
  kMAX = 2,
  kMIN = 3,
  kSUB = 4,
  kEQUAL = 5,
  kLESS = 6,
  kFLOOR_DIV = 7,
  kCEIL_DIV = 8,
};

enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };

enum class ErrorCode : int32_t {
  kSUCCESS = 0,
  kUNSPECIFIED_ERROR = 1,
  kINTERNAL_ERROR = 2,
  kINVALID_ARGUMENT = 3,
  kINVALID_CONFIG = 4,
  kFAILED_ALLOCATION = 5,
  kFAILED_INITIALIZATION = 6,
  kFAILED_EXECUTION = 7,
  kFAILED_COMPUTATION = 8,
  kINVALID_STATE = 9,
  kUNSUPPORTED_STATE = 10,
};

enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };

// A shape; -1 stands for a size that is known only at run time.
struct Dims {
  static constexpr int32_t kMaxDims = 8;
  int32_t nbDims;
  int64_t d[kMaxDims];
};

struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};

// `min`, `max` and `opt` are those of the optimisation profile.
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min;
  Dims max;
  Dims opt;
};

// `length` counts elements; a string's may or may not count a terminator.
struct PluginField {
  const char* name;
  const void* data;
  PluginFieldType type;
  int32_t length;
};

struct PluginFieldCollection {
  int32_t nbFields;
  const PluginField* fields;
};

struct InterfaceInfo {
  const char* kind;
  int32_t major;
  int32_t minor;
};

class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};

// --- Expressions over sizes -----------------------------------------------------------------------------------------
// Not versioned, but the same in every header from 8.0 on. TensorRT's own inline functions forward to an object that it
// keeps behind `impl`; the calls here do, too.

class DimensionExprImpl {
 public:
  virtual ~DimensionExprImpl() noexcept = default;
  virtual bool isConstant() const = 0;
  virtual int64_t getConstantValue() const = 0;
};

class IDimensionExpr {
 public:
  bool isConstant() const { return impl->isConstant(); }
  int64_t getConstantValue() const { return impl->getConstantValue(); }

 protected:
  virtual ~IDimensionExpr() = default;
  DimensionExprImpl* impl = nullptr;
};

class ExprBuilderImpl {
 public:
  virtual ~ExprBuilderImpl() noexcept = default;
  virtual const IDimensionExpr* constant(int64_t value) = 0;
  virtual const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                          const IDimensionExpr& second) = 0;
};

class IExprBuilder {
 public:
  const IDimensionExpr* constant(int64_t value) { return impl->constant(value); }
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

// --- What TensorRT offers a plugin ----------------------------------------------------------------------------------

class IErrorRecorder : public IVersionedInterface {
 public:
  static constexpr size_t kMaxDescLength = 127;
  virtual int32_t getNbErrors() const noexcept = 0;
  virtual ErrorCode getErrorCode(int32_t index) const noexcept = 0;
  virtual const char* getErrorDesc(int32_t index) const noexcept = 0;
  virtual bool hasOverflowed() const noexcept = 0;
  virtual void clear() noexcept = 0;
  virtual bool reportError(ErrorCode code, const char* desc) noexcept = 0;
  virtual int32_t incRefCount() noexcept = 0;
  virtual int32_t decRefCount() noexcept = 0;
};

class IPluginResourceContext {
 public:
  virtual void* getGpuAllocator() const noexcept = 0;
  virtual IErrorRecorder* getErrorRecorder() const noexcept = 0;
  virtual ~IPluginResourceContext() noexcept = default;
};

// Loggers became versioned interfaces in TensorRT 11, which moved their functions: both forms are needed, and what the
// host is must be found out before the first call (log.cc).
namespace v10 {

class ILogger {
 public:
  virtual void log(Severity severity, const char* message) noexcept = 0;
  virtual ~ILogger() = default;
};

class ILoggerFinder {
 public:
  virtual ILogger* findLogger() = 0;
  virtual ~ILoggerFinder() = default;
};

}  // namespace v10

namespace v11 {

class ILogger : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILogger", 1, 0}; }
  virtual void log(Severity severity, const char* message) noexcept = 0;
};

class ILoggerFinder : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILoggerFinder", 1, 0}; }
  virtual ILogger* findLogger() = 0;
};

}  // namespace v11

// --- What a plugin offers TensorRT ----------------------------------------------------------------------------------
// int32_t results are 0 for success.

class IPluginCapability : public IVersionedInterface {};

class IPluginV3 : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual int32_t configurePlugin(const DynamicPluginTensorDesc* in, int32_t nbInputs,
                                  const DynamicPluginTensorDesc* out, int32_t nbOutputs) noexcept = 0;
  virtual int32_t getOutputDataTypes(DataType* outputTypes, int32_t nbOutputs, const DataType* inputTypes,
                                     int32_t nbInputs) const noexcept = 0;
  virtual int32_t getOutputShapes(const DimsExprs* inputs, int32_t nbInputs, const DimsExprs* shapeInputs,
                                  int32_t nbShapeInputs, DimsExprs* outputs, int32_t nbOutputs,
                                  IExprBuilder& exprBuilder) noexcept = 0;
  // May look at inOut[0..pos] only.
  virtual bool supportsFormatCombination(int32_t pos, const DynamicPluginTensorDesc* inOut, int32_t nbInputs,
                                         int32_t nbOutputs) noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  // Enough for shapes up to the profile's `max`.
  virtual size_t getWorkspaceSize(const DynamicPluginTensorDesc* inputs, int32_t nbInputs,
                                  const DynamicPluginTensorDesc* outputs, int32_t nbOutputs) const noexcept = 0;
  virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
  virtual int32_t getNbTactics() noexcept { return 0; }
  virtual const char* getTimingCacheID() noexcept = 0;
  virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
  virtual const char* getMetadataString() noexcept = 0;
};

class IPluginV3OneRuntime : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual int32_t setTactic(int32_t) noexcept { return 0; }
  virtual int32_t onShapeChange(const PluginTensorDesc* in, int32_t nbInputs, const PluginTensorDesc* out,
                                int32_t nbOutputs) noexcept = 0;
  virtual int32_t enqueue(const PluginTensorDesc* inputDesc, const PluginTensorDesc* outputDesc,
                          const void* const* inputs, void* const* outputs, void* workspace, Stream stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
  virtual const PluginFieldCollection* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorInterface : public IVersionedInterface {};

class IPluginCreatorV3One : public IPluginCreatorInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual IPluginV3* createPlugin(const char* name, const PluginFieldCollection* fields,
                                  TensorRTPhase phase) noexcept = 0;
  virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};

}  // namespace bertfuse::tensorrt::abi
#endif  // BERTFUSE_TENSORRT_ABI_H_
