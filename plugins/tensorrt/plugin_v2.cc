#include "tensorrt/plugin_v2.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "op_table.generated.h"
#include "tensorrt/convert_v8.h"
#include "tensorrt/log.h"
#include "tensorrt/packed_fields.h"
#include "tensorrt/unreadable_v2.h"

namespace bertfuse::tensorrt {
namespace {

// Enough for every op's inputs or outputs; what counts more is cut off, and refused for its number.
template <class Wide>
using Tensors = std::array<Wide, kMaxTensors + 1>;

template <class Wide, class Narrow>
Tensors<Wide> WidenedTensors(const Narrow* narrow, int32_t count) {
  Tensors<Wide> wide = {};
  for (int32_t i = 0; i < std::min<int32_t>(count, kMaxTensors + 1); ++i) wide[i] = Widened(narrow[i]);
  return wide;
}

bool IsKnown(const abi::v8::DynamicPluginTensorDesc& tensor) {
  const abi::v8::Dims& dims = tensor.desc.dims;
  return std::none_of(dims.d, dims.d + std::clamp(dims.nbDims, 0, abi::v8::Dims::kMaxDims),
                      [](int32_t size) { return size < 0; });
}

}  // namespace

PluginV2::PluginV2(const Plugin& layer, int32_t host_version, bool from_engine)
    : layer_(layer), host_version_(host_version), from_engine_(from_engine) {}

int32_t PluginV2::getTensorRTVersion() const noexcept { return abi::v8::DynamicExtVersion(host_version_); }
const char* PluginV2::getPluginType() const noexcept { return layer_.getPluginName(); }
const char* PluginV2::getPluginVersion() const noexcept { return layer_.getPluginVersion(); }
const char* PluginV2::getPluginNamespace() const noexcept { return layer_.getPluginNamespace(); }
int32_t PluginV2::getNbOutputs() const noexcept { return layer_.getNbOutputs(); }

abi::v8::IPluginV2DynamicExt* PluginV2::clone() const noexcept {
  PluginV2* copy = nullptr;
  layer_.Checked([&] { copy = new PluginV2(*this); });
  return copy;
}

size_t PluginV2::getSerializationSize() const noexcept {
  size_t size = 0;
  layer_.Checked([&] { size = Pack(layer_.SerializedFields()).size(); });
  return size;
}

void PluginV2::serialize(void* buffer) const noexcept {
  layer_.Checked([&] {
    const std::string bytes = Pack(layer_.SerializedFields());
    std::memcpy(buffer, bytes.data(), bytes.size());
  });
}

abi::DataType PluginV2::getOutputDataType(int32_t index, const abi::DataType* inputTypes,
                                          int32_t nbInputs) const noexcept {
  Tensors<abi::DataType> types = {};
  const int32_t outputs = getNbOutputs();
  if (index < 0 || index >= outputs) return abi::DataType::kFLOAT;
  // Where it fails, the log says why; a type must be given all the same, and the builder then finds no format.
  const int32_t code = layer_.getOutputDataTypes(types.data(), outputs, inputTypes, nbInputs);
  return code == BERTFUSE_OK ? types[index] : abi::DataType::kFLOAT;
}

abi::v8::DimsExprs PluginV2::getOutputDimensions(int32_t outputIndex, const abi::v8::DimsExprs* inputs,
                                                 int32_t nbInputs, abi::v8::IExprBuilder& exprBuilder) noexcept {
  abi::v8::DimsExprs result = {-1, {}};
  layer_.Checked([&] {
    WidenedBuilder builder(exprBuilder);
    Tensors<abi::DimsExprs> wide = {}, made = {};
    for (int32_t i = 0; i < std::min<int32_t>(nbInputs, kMaxTensors + 1); ++i) {
      wide[i].nbDims = inputs[i].nbDims;
      for (int32_t d = 0; d < std::clamp(inputs[i].nbDims, 0, abi::Dims::kMaxDims); ++d) {
        wide[i].d[d] = builder.Wrap(inputs[i].d[d]);
      }
    }
    const int32_t outputs = getNbOutputs();
    if (layer_.getOutputShapes(wide.data(), nbInputs, nullptr, 0, made.data(), outputs, builder) != BERTFUSE_OK) return;
    if (outputIndex < 0 || outputIndex >= outputs) return;
    const abi::DimsExprs& shape = made[outputIndex];
    for (int32_t d = 0; d < shape.nbDims; ++d) result.d[d] = &WidenedBuilder::Unwrap(*shape.d[d]);
    result.nbDims = shape.nbDims;
  });
  return result;
}

bool PluginV2::supportsFormatCombination(int32_t pos, const abi::v8::PluginTensorDesc* inOut, int32_t nbInputs,
                                         int32_t nbOutputs) noexcept {
  // What lies behind `pos` is not settled, and may not be looked at.
  std::array<abi::DynamicPluginTensorDesc, 2 * kMaxTensors> tensors = {};
  if (pos < 0 || pos >= static_cast<int32_t>(tensors.size())) return false;
  for (int32_t i = 0; i <= pos; ++i) tensors[i].desc = Widened(inOut[i]);
  return layer_.supportsFormatCombination(pos, tensors.data(), nbInputs, nbOutputs);
}

void PluginV2::configurePlugin(const abi::v8::DynamicPluginTensorDesc* in, int32_t nbInputs,
                               const abi::v8::DynamicPluginTensorDesc* out, int32_t nbOutputs) noexcept {
  if (!from_engine_) {
    const auto inputs = WidenedTensors<abi::DynamicPluginTensorDesc>(in, nbInputs);
    const auto outputs = WidenedTensors<abi::DynamicPluginTensorDesc>(out, nbOutputs);
    // A layer that was configured for a profile and then, to be timed, for one shape of it, must serve the whole
    // profile.
    const size_t before = layer_.getWorkspaceSize(nullptr, 0, nullptr, 0);
    configured_ = layer_.configurePlugin(inputs.data(), nbInputs, outputs.data(), nbOutputs);
    layer_.AskForAtLeast(before);
    return;
  }
  // The shapes of a run.
  if (!std::all_of(in, in + nbInputs, IsKnown) || !std::all_of(out, out + nbOutputs, IsKnown)) return;
  Tensors<abi::PluginTensorDesc> inputs = {}, outputs = {};
  for (int32_t i = 0; i < std::min<int32_t>(nbInputs, kMaxTensors + 1); ++i) inputs[i] = Widened(in[i].desc);
  for (int32_t i = 0; i < std::min<int32_t>(nbOutputs, kMaxTensors + 1); ++i) outputs[i] = Widened(out[i].desc);
  configured_ = layer_.onShapeChange(inputs.data(), nbInputs, outputs.data(), nbOutputs);
}

size_t PluginV2::getWorkspaceSize(const abi::v8::PluginTensorDesc*, int32_t, const abi::v8::PluginTensorDesc*,
                                  int32_t) const noexcept {
  return layer_.getWorkspaceSize(nullptr, 0, nullptr, 0);  // configurePlugin found it out
}

int32_t PluginV2::enqueue(const abi::v8::PluginTensorDesc* inputDesc, const abi::v8::PluginTensorDesc* outputDesc,
                          const void* const* inputs, void* const* outputs, void* workspace,
                          abi::Stream stream) noexcept {
  if (configured_ != BERTFUSE_OK) return configured_;
  const auto in = WidenedTensors<abi::PluginTensorDesc>(inputDesc, layer_.num_inputs());
  const auto out = WidenedTensors<abi::PluginTensorDesc>(outputDesc, getNbOutputs());
  return layer_.enqueue(in.data(), out.data(), inputs, outputs, workspace, stream);
}

CreatorV2::CreatorV2(const OpDef& op, int32_t host_version)
    : op_(op),
      host_version_(host_version),
      fields_(FieldNames(op)),
      collection_{static_cast<int32_t>(fields_.size()), fields_.data()} {}

const char* CreatorV2::getPluginVersion() const noexcept { return kPluginVersion; }
const char* CreatorV2::getPluginNamespace() const noexcept { return kDomain; }

abi::v8::IPluginV2* CreatorV2::createPlugin(const char* name, const abi::PluginFieldCollection* fields) noexcept {
  PluginV2* plugin = nullptr;
  std::string where;
  bertfuse_error error = {};
  const int32_t code = Guarded(&error, [&] {
    where = Where(name);
    plugin = new PluginV2(NewLayer(op_, name, fields), host_version_, false);
  });
  if (code != BERTFUSE_OK) ReportError(error, where.c_str(), nullptr);
  return plugin;
}

abi::v8::IPluginV2* CreatorV2::deserializePlugin(const char* name, const void* serialData,
                                                 size_t serialLength) noexcept {
  abi::v8::IPluginV2DynamicExt* plugin = nullptr;
  std::string where;
  bertfuse_error error = {};
  const int32_t code = Guarded(&error, [&] {
    where = Where(name);
    const std::vector<abi::PluginField> fields = Unpack(op_, serialData, serialLength);
    const abi::PluginFieldCollection collection = {static_cast<int32_t>(fields.size()), fields.data()};
    plugin = new PluginV2(LayerOfEngine(op_, name, &collection), host_version_, true);
  });
  if (code == BERTFUSE_OK) return plugin;
  ReportError(error, where.c_str(), nullptr);
  bertfuse_error no_memory = {};
  Guarded(&no_memory, [&] { plugin = new UnreadableV2(op_, host_version_, where, error); });
  return plugin;
}

}  // namespace bertfuse::tensorrt
