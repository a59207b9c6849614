// plugins/tensorrt/abi_v8.h, and what of abi.h is used with it, against the headers of TensorRT 8.5 to 9.3: every
// virtual function's slot, every struct's size and offsets, every enumerator. Built only where such headers are found.
#include <NvInferRuntime.h>

#include "tensorrt/abi_v8.h"
#include "tensorrt/registry.h"
#include "tensorrt/version.h"

// What abi_v8.h declares comes before what abi.h does.
namespace ours {
using namespace bertfuse::tensorrt::abi::v8;
using bertfuse::tensorrt::abi::DataType;
using bertfuse::tensorrt::abi::DimensionOperation;
using bertfuse::tensorrt::abi::PluginField;
using bertfuse::tensorrt::abi::PluginFieldCollection;
using bertfuse::tensorrt::abi::PluginFieldType;
using bertfuse::tensorrt::abi::Severity;
using bertfuse::tensorrt::abi::Stream;
using bertfuse::tensorrt::abi::TensorFormat;
namespace v10 = bertfuse::tensorrt::abi::v10;
}  // namespace ours
namespace theirs = nvinfer1;

#include "official_headers.h"

namespace {

TEST(OfficialHeadersOfV8, AreOfAVersionWithThisForm) {
  EXPECT_EQ(bertfuse::tensorrt::FormOf(NV_TENSORRT_VERSION), bertfuse::tensorrt::HostForm::kV8);
}

TEST(OfficialHeadersOfV8, WhatNoOtherHas) {
  EXPECT_EQ(std::is_trivially_copyable_v<theirs::DimsExprs>, std::is_trivially_copyable_v<ours::DimsExprs>);
  EXPECT_VALUE(PluginVersion, kV2_DYNAMICEXT);
}

TEST(OfficialHeadersOfV8, PluginSlots) {
  EXPECT_SAME_SLOT(IPluginV2, getTensorRTVersion);
  EXPECT_SAME_SLOT(IPluginV2, getPluginType);
  EXPECT_SAME_SLOT(IPluginV2, getPluginVersion);
  EXPECT_SAME_SLOT(IPluginV2, getNbOutputs);
  EXPECT_SAME_SLOT(IPluginV2, getOutputDimensions);
  EXPECT_SAME_SLOT(IPluginV2, supportsFormat);
  EXPECT_SAME_SLOT(IPluginV2, configureWithFormat);
  EXPECT_SAME_SLOT(IPluginV2, initialize);
  EXPECT_SAME_SLOT(IPluginV2, terminate);
  EXPECT_SAME_SLOT(IPluginV2, getWorkspaceSize);
  EXPECT_SAME_SLOT(IPluginV2, enqueue);
  EXPECT_SAME_SLOT(IPluginV2, getSerializationSize);
  EXPECT_SAME_SLOT(IPluginV2, serialize);
  EXPECT_SAME_SLOT(IPluginV2, destroy);
  EXPECT_SAME_SLOT(IPluginV2, clone);
  EXPECT_SAME_SLOT(IPluginV2, setPluginNamespace);
  EXPECT_SAME_SLOT(IPluginV2, getPluginNamespace);
  EXPECT_SAME_SLOT(IPluginV2Ext, getOutputDataType);
  EXPECT_SAME_SLOT(IPluginV2Ext, isOutputBroadcastAcrossBatch);
  EXPECT_SAME_SLOT(IPluginV2Ext, canBroadcastInputAcrossBatch);
  EXPECT_SAME_SLOT(IPluginV2Ext, configurePlugin);
  EXPECT_SAME_SLOT(IPluginV2Ext, attachToContext);
  EXPECT_SAME_SLOT(IPluginV2Ext, detachFromContext);
  EXPECT_SAME_SLOT(IPluginV2Ext, clone);
  EXPECT_SAME_SLOT(IPluginV2DynamicExt, clone);
  EXPECT_SAME_SLOT(IPluginV2DynamicExt, supportsFormatCombination);
  EXPECT_SAME_SLOT(IPluginCreator, getTensorRTVersion);
  EXPECT_SAME_SLOT(IPluginCreator, getPluginName);
  EXPECT_SAME_SLOT(IPluginCreator, getPluginVersion);
  EXPECT_SAME_SLOT(IPluginCreator, getFieldNames);
  EXPECT_SAME_SLOT(IPluginCreator, createPlugin);
  EXPECT_SAME_SLOT(IPluginCreator, deserializePlugin);
  EXPECT_SAME_SLOT(IPluginCreator, setPluginNamespace);
  EXPECT_SAME_SLOT(IPluginCreator, getPluginNamespace);
}

// Functions that have namesakes among the inherited ones: chosen by their parameters.
template <class Class, class Result, class... Parameters>
long SlotOf(Result (Class::*function)(Parameters...) noexcept) {
  return Slot(function);
}
template <class Class, class Result, class... Parameters>
long ConstSlotOf(Result (Class::*function)(Parameters...) const noexcept) {
  return Slot(function);
}

TEST(OfficialHeadersOfV8, DynamicPluginSlots) {
  namespace t = theirs;
  namespace o = ours;
  using T = t::IPluginV2DynamicExt;
  using O = o::IPluginV2DynamicExt;
  const auto their_shapes = SlotOf<T, t::DimsExprs, int32_t, const t::DimsExprs*, int32_t, t::IExprBuilder&>;
  const auto our_shapes = SlotOf<O, o::DimsExprs, int32_t, const o::DimsExprs*, int32_t, o::IExprBuilder&>;
  EXPECT_EQ(their_shapes(&T::getOutputDimensions), our_shapes(&O::getOutputDimensions));
  const auto their_configure =
      SlotOf<T, void, const t::DynamicPluginTensorDesc*, int32_t, const t::DynamicPluginTensorDesc*, int32_t>;
  const auto our_configure =
      SlotOf<O, void, const o::DynamicPluginTensorDesc*, int32_t, const o::DynamicPluginTensorDesc*, int32_t>;
  EXPECT_EQ(their_configure(&T::configurePlugin), our_configure(&O::configurePlugin));
  const auto their_workspace =
      ConstSlotOf<T, size_t, const t::PluginTensorDesc*, int32_t, const t::PluginTensorDesc*, int32_t>;
  const auto our_workspace =
      ConstSlotOf<O, size_t, const o::PluginTensorDesc*, int32_t, const o::PluginTensorDesc*, int32_t>;
  EXPECT_EQ(their_workspace(&T::getWorkspaceSize), our_workspace(&O::getWorkspaceSize));
  const auto their_enqueue = SlotOf<T, int32_t, const t::PluginTensorDesc*, const t::PluginTensorDesc*,
                                    const void* const*, void* const*, void*, cudaStream_t>;
  const auto our_enqueue = SlotOf<O, int32_t, const o::PluginTensorDesc*, const o::PluginTensorDesc*,
                                  const void* const*, void* const*, void*, o::Stream>;
  EXPECT_EQ(their_enqueue(&T::enqueue), our_enqueue(&O::enqueue));
}

TEST(OfficialHeadersOfV8, HostSlots) {
  EXPECT_SLOT(theirs::ILogger, ours::v10::ILogger, log);
  EXPECT_EQ(Slot(&theirs::IPluginRegistry::registerCreator), Slot(&ours::v10::IPluginRegistry::registerCreatorV1));
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
  EXPECT_SLOT(theirs::ILoggerFinder, ours::v10::ILoggerFinder, findLogger);
#endif
}

}  // namespace
