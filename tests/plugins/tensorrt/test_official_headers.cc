// plugins/tensorrt/abi.h against the headers of TensorRT 10 and later: every virtual function's slot, every struct's
// size and offsets, every enumerator. Built only where the headers are found (cmake/TensorRtHeaders.cmake).
#include <NvInferRuntime.h>

#include "tensorrt/abi.h"
#include "tensorrt/registry.h"

namespace ours = bertfuse::tensorrt::abi;
namespace theirs = nvinfer1;

#include "official_headers.h"

namespace {

TEST(OfficialHeaders, Structures) {
  EXPECT_MEMBER(DynamicPluginTensorDesc, opt);
  EXPECT_SIZE(InterfaceInfo);
  EXPECT_MEMBER(InterfaceInfo, kind);
  EXPECT_MEMBER(InterfaceInfo, major);
  EXPECT_MEMBER(InterfaceInfo, minor);
}

TEST(OfficialHeaders, Enumerators) {
  EXPECT_VALUE(DataType, kFP8);
  EXPECT_VALUE(TensorRTPhase, kBUILD);
  EXPECT_VALUE(TensorRTPhase, kRUNTIME);
  EXPECT_VALUE(PluginCapabilityType, kCORE);
  EXPECT_VALUE(PluginCapabilityType, kBUILD);
  EXPECT_VALUE(PluginCapabilityType, kRUNTIME);
  EXPECT_VALUE(APILanguage, kCPP);
  EXPECT_VALUE(APILanguage, kPYTHON);
  EXPECT_VALUE(ErrorCode, kSUCCESS);
  EXPECT_VALUE(ErrorCode, kUNSPECIFIED_ERROR);
  EXPECT_VALUE(ErrorCode, kINTERNAL_ERROR);
  EXPECT_VALUE(ErrorCode, kINVALID_ARGUMENT);
  EXPECT_VALUE(ErrorCode, kINVALID_CONFIG);
  EXPECT_VALUE(ErrorCode, kFAILED_ALLOCATION);
  EXPECT_VALUE(ErrorCode, kFAILED_INITIALIZATION);
  EXPECT_VALUE(ErrorCode, kFAILED_EXECUTION);
  EXPECT_VALUE(ErrorCode, kFAILED_COMPUTATION);
  EXPECT_VALUE(ErrorCode, kINVALID_STATE);
  EXPECT_VALUE(ErrorCode, kUNSUPPORTED_STATE);
  using Theirs = theirs::ILogger::Severity;
  EXPECT_EQ(static_cast<int>(Theirs::kINTERNAL_ERROR), static_cast<int>(ours::Severity::kINTERNAL_ERROR));
  EXPECT_EQ(static_cast<int>(Theirs::kWARNING), static_cast<int>(ours::Severity::kWARNING));
  EXPECT_EQ(static_cast<int>(Theirs::kINFO), static_cast<int>(ours::Severity::kINFO));
  EXPECT_EQ(static_cast<int>(Theirs::kVERBOSE), static_cast<int>(ours::Severity::kVERBOSE));
  EXPECT_EQ(theirs::IErrorRecorder::kMAX_DESC_LENGTH, ours::IErrorRecorder::kMaxDescLength);
}

TEST(OfficialHeaders, PluginSlots) {
  EXPECT_SAME_SLOT(IVersionedInterface, getAPILanguage);
  EXPECT_SAME_SLOT(IVersionedInterface, getInterfaceInfo);
  EXPECT_SAME_SLOT(IPluginV3, getCapabilityInterface);
  EXPECT_SAME_SLOT(IPluginV3, clone);
  EXPECT_SAME_SLOT(IPluginV3OneCore, getPluginName);
  EXPECT_SAME_SLOT(IPluginV3OneCore, getPluginVersion);
  EXPECT_SAME_SLOT(IPluginV3OneCore, getPluginNamespace);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, configurePlugin);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getOutputDataTypes);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getOutputShapes);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, supportsFormatCombination);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getNbOutputs);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getWorkspaceSize);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getValidTactics);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getNbTactics);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getTimingCacheID);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getFormatCombinationLimit);
  EXPECT_SAME_SLOT(IPluginV3OneBuild, getMetadataString);
  EXPECT_SAME_SLOT(IPluginV3OneRuntime, setTactic);
  EXPECT_SAME_SLOT(IPluginV3OneRuntime, onShapeChange);
  EXPECT_SAME_SLOT(IPluginV3OneRuntime, enqueue);
  EXPECT_SAME_SLOT(IPluginV3OneRuntime, attachToContext);
  EXPECT_SAME_SLOT(IPluginV3OneRuntime, getFieldsToSerialize);
  EXPECT_SAME_SLOT(IPluginCreatorV3One, createPlugin);
  EXPECT_SAME_SLOT(IPluginCreatorV3One, getFieldNames);
  EXPECT_SAME_SLOT(IPluginCreatorV3One, getPluginName);
  EXPECT_SAME_SLOT(IPluginCreatorV3One, getPluginVersion);
  EXPECT_SAME_SLOT(IPluginCreatorV3One, getPluginNamespace);
}

TEST(OfficialHeaders, HostSlots) {
  EXPECT_SAME_SLOT(IErrorRecorder, getNbErrors);
  EXPECT_SAME_SLOT(IErrorRecorder, getErrorCode);
  EXPECT_SAME_SLOT(IErrorRecorder, getErrorDesc);
  EXPECT_SAME_SLOT(IErrorRecorder, hasOverflowed);
  EXPECT_SAME_SLOT(IErrorRecorder, clear);
  EXPECT_SAME_SLOT(IErrorRecorder, reportError);
  EXPECT_SAME_SLOT(IErrorRecorder, incRefCount);
  EXPECT_SAME_SLOT(IErrorRecorder, decRefCount);
  EXPECT_SAME_SLOT(IPluginResourceContext, getGpuAllocator);
  EXPECT_SAME_SLOT(IPluginResourceContext, getErrorRecorder);
#if NV_TENSORRT_MAJOR >= 11
  EXPECT_SLOT(theirs::ILogger, ours::v11::ILogger, log);
  EXPECT_SLOT(theirs::ILoggerFinder, ours::v11::ILoggerFinder, findLogger);
  EXPECT_SLOT(theirs::IPluginRegistry, ours::v11::IPluginRegistry, loadLibrary);
#else
  EXPECT_SLOT(theirs::ILogger, ours::v10::ILogger, log);
  EXPECT_SLOT(theirs::ILoggerFinder, ours::v10::ILoggerFinder, findLogger);
  EXPECT_SLOT(theirs::IPluginRegistry, ours::v10::IPluginRegistry, loadLibrary);
#endif
}

// What an interface calls itself decides how TensorRT uses it. Called on no object, as it looks at none: the classes
// are abstract.
template <class Interface>
auto InfoOf() {
  alignas(16) static const unsigned char nothing[64] = {};
  return reinterpret_cast<const Interface*>(nothing)->Interface::getInterfaceInfo();
}

#define EXPECT_SAME_INFO(their_class, our_class)                      \
  EXPECT_STREQ(InfoOf<their_class>().kind, InfoOf<our_class>().kind); \
  EXPECT_EQ(InfoOf<their_class>().major, InfoOf<our_class>().major);  \
  EXPECT_EQ(InfoOf<their_class>().minor, InfoOf<our_class>().minor)

TEST(OfficialHeaders, InterfaceNames) {
  EXPECT_SAME_INFO(theirs::IPluginV3, ours::IPluginV3);
  EXPECT_SAME_INFO(theirs::IPluginV3OneCore, ours::IPluginV3OneCore);
  EXPECT_SAME_INFO(theirs::IPluginV3OneBuild, ours::IPluginV3OneBuild);
  EXPECT_SAME_INFO(theirs::IPluginV3OneRuntime, ours::IPluginV3OneRuntime);
  EXPECT_SAME_INFO(theirs::IPluginCreatorV3One, ours::IPluginCreatorV3One);
#if NV_TENSORRT_MAJOR >= 11
  EXPECT_SAME_INFO(theirs::ILogger, ours::v11::ILogger);
  EXPECT_SAME_INFO(theirs::ILoggerFinder, ours::v11::ILoggerFinder);
#endif
}

}  // namespace
