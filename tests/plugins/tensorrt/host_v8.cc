#include "host_v8.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace bertfuse::test::tensorrt::v8 {
namespace {

constexpr int kFormats = 13, kDataTypes = 9;

abi8::Dims Narrowed(const abi::Dims& dims) {
  abi8::Dims narrow = {dims.nbDims, {}};
  for (int i = 0; i < dims.nbDims; ++i) narrow.d[i] = static_cast<int32_t>(dims.d[i]);
  return narrow;
}

abi8::PluginTensorDesc DescriptionOf(abi::DataType type, const abi::Dims& dims) {
  return {Narrowed(dims), type, abi::TensorFormat::kLINEAR, 1.0f};
}

bool IsFloat(abi::DataType type) {
  return type == abi::DataType::kFLOAT || type == abi::DataType::kHALF || type == abi::DataType::kBF16;
}

}  // namespace

std::vector<abi8::IPluginCreator*> Creators(const Host& host) {
  using GetCreators = abi8::IPluginCreator* const* (*)(int32_t&);
  const auto get_creators = reinterpret_cast<GetCreators>(host.Symbol("getPluginCreators"));
  int32_t count = -1;
  abi8::IPluginCreator* const* creators = get_creators(count);
  if (creators == nullptr || count < 0) throw std::runtime_error("getPluginCreators gave nothing");
  return {creators, creators + count};
}

abi8::IPluginCreator& Creator(const Host& host, const std::string& op) {
  for (abi8::IPluginCreator* creator : Creators(host)) {
    if (op == creator->getPluginName()) return *creator;
  }
  throw std::runtime_error("no creator of " + op);
}

PluginPointer Dynamic(abi8::IPluginV2* plugin) {
  if (plugin != nullptr && plugin->getTensorRTVersion() >> 24 != 3) {
    throw std::runtime_error("a plugin that is no IPluginV2DynamicExt");
  }
  return PluginPointer(static_cast<abi8::IPluginV2DynamicExt*>(plugin));
}

Engine::Engine(Host& host, const std::string& op, const abi::PluginFieldCollection& fields, std::vector<Input> inputs)
    : host_(host), op_(op), inputs_(std::move(inputs)) {
  host_.TakeLog();
  PluginPointer made;
  {
    const OwnedFields given(fields);  // gone when the plugin is used
    made = Dynamic(Creator(host_, op_).createPlugin("the layer", given.collection()));
  }
  Expect(made != nullptr, "createPlugin");
  PluginPointer network(made->clone());
  made.reset();
  Expect(network != nullptr, "clone");
  Network(*network);
  PluginPointer built(network->clone());
  network.reset();
  Expect(built != nullptr, "clone");
  Build(*built);
}

void Engine::Expect(bool good, const std::string& step) const {
  const std::string log = host_.TakeLog();
  if (!good) throw std::runtime_error(step + " failed: " + log);
  if (!log.empty()) throw std::runtime_error(step + " succeeded, but logged: " + log);
}

void Engine::Network(abi8::IPluginV2DynamicExt& plugin) {
  Expect(op_ == plugin.getPluginType() && std::string("1") == plugin.getPluginVersion() &&
             std::string("bertfuse") == plugin.getPluginNamespace(),
         "name, version and namespace");
  const int32_t outputs = plugin.getNbOutputs();
  const int32_t count = static_cast<int32_t>(inputs_.size());
  Expect(outputs > 0, "getNbOutputs");

  std::vector<abi::DataType> types;
  std::vector<abi8::DimsExprs> shapes;
  int64_t variable = 0;
  for (const Input& input : inputs_) {
    types.push_back(input.type);
    abi8::DimsExprs& shape = shapes.emplace_back();
    shape.nbDims = input.max.nbDims;
    for (int i = 0; i < shape.nbDims; ++i, ++variable) {
      const bool known = input.min.d[i] == input.max.d[i];
      shape.d[i] = known ? builder_.constant(static_cast<int32_t>(input.max.d[i])) : builder_.Free(variable);
    }
  }
  for (int32_t i = 0; i < outputs; ++i) {
    output_types_.push_back(plugin.getOutputDataType(i, types.data(), count));
    Expect(true, "getOutputDataType");
    output_shapes_.push_back(plugin.getOutputDimensions(i, shapes.data(), count, builder_));
    Expect(output_shapes_.back().nbDims >= 0, "getOutputDimensions");
  }
}

std::vector<abi::Dims> Engine::OutputShapes(const std::vector<abi::Dims>& inputs) const {
  std::vector<int64_t> sizes;
  for (const abi::Dims& shape : inputs) sizes.insert(sizes.end(), shape.d, shape.d + shape.nbDims);
  std::vector<abi::Dims> outputs;
  for (const abi8::DimsExprs& shape : output_shapes_) {
    abi::Dims& dims = outputs.emplace_back();
    dims.nbDims = shape.nbDims;
    for (int i = 0; i < shape.nbDims; ++i) dims.d[i] = NarrowBuilder::Wide(*shape.d[i]).Evaluate(sizes);
  }
  return outputs;
}

void Engine::Build(abi8::IPluginV2DynamicExt& plugin) {
  std::vector<abi8::DynamicPluginTensorDesc> tensors;
  std::vector<abi8::PluginTensorDesc> largest;
  const auto add = [&](abi::DataType type, const abi::Dims& min, const abi::Dims& max) {
    abi::Dims open = max;
    for (int i = 0; i < open.nbDims; ++i) {
      if (min.d[i] != max.d[i]) open.d[i] = -1;
    }
    tensors.push_back({DescriptionOf(type, open), Narrowed(min), Narrowed(max)});
    largest.push_back(DescriptionOf(type, max));
  };
  std::vector<abi::Dims> low, high;
  for (const Input& input : inputs_) {
    add(input.type, input.min, input.max);
    low.push_back(input.min);
    high.push_back(input.max);
  }
  for (size_t i = 0; i < output_types_.size(); ++i) add(output_types_[i], OutputShapes(low)[i], OutputShapes(high)[i]);
  CheckFormats(plugin, tensors);

  const int32_t count = static_cast<int32_t>(inputs_.size()), outputs = static_cast<int32_t>(output_types_.size());
  plugin.configurePlugin(tensors.data(), count, tensors.data() + count, outputs);
  Expect(true, "configurePlugin");
  workspace_ = plugin.getWorkspaceSize(largest.data(), count, largest.data() + count, outputs);
  Expect(plugin.initialize() == 0, "initialize");
  plugin.terminate();
  serialized_.assign(1 + plugin.getSerializationSize(), '\0');
  plugin.serialize(serialized_.data() + 1);
  Expect(serialized_size() > 0, "serialize");
}

void Engine::CheckFormats(abi8::IPluginV2DynamicExt& plugin,
                          const std::vector<abi8::DynamicPluginTensorDesc>& tensors) const {
  const int32_t count = static_cast<int32_t>(inputs_.size()), outputs = static_cast<int32_t>(output_types_.size());
  for (size_t pos = 0; pos < tensors.size(); ++pos) {
    std::vector<abi8::PluginTensorDesc> offered(tensors.size());
    // What lies behind `pos` is not settled yet.
    std::memset(static_cast<void*>(offered.data()), 0xa5, offered.size() * sizeof(offered[0]));
    for (size_t i = 0; i <= pos; ++i) offered[i] = tensors[i].desc;
    const auto supported = [&] {
      return plugin.supportsFormatCombination(static_cast<int32_t>(pos), offered.data(), count, outputs);
    };
    const std::string where = "supportsFormatCombination of tensor " + std::to_string(pos);
    Expect(supported(), where);
    for (int format = 1; format < kFormats; ++format) {
      offered[pos].format = static_cast<abi::TensorFormat>(format);
      Expect(!supported(), where + " in format " + std::to_string(format));
    }
    offered[pos].format = abi::TensorFormat::kLINEAR;
    // One dtype for all floats, and the outputs' by the inputs: the builder offers every other, too.
    const abi::DataType own = tensors[pos].desc.type;
    const auto settled =
        std::find_if(tensors.begin(), tensors.begin() + static_cast<long>(pos), [&](const auto& tensor) {
          const auto place = static_cast<size_t>(&tensor - tensors.data());
          return IsFloat(tensor.desc.type) && !(place < inputs_.size() && inputs_[place].own_type);
        });
    for (int type = 0; type < kDataTypes; ++type) {
      const auto other = static_cast<abi::DataType>(type);
      const bool against = settled != tensors.begin() + static_cast<long>(pos) && other != settled->desc.type;
      offered[pos].type = other;
      if (other != own && (pos >= inputs_.size() || (IsFloat(other) && against))) {
        Expect(!supported(), where + " as type " + std::to_string(type));
      }
    }
  }
}

Context::Context(Engine& engine, abi::IErrorRecorder*) : engine_(engine) {
  PluginPointer made;
  {
    const std::string kept = engine.serialized_;  // gone when the plugin is used
    auto& creator = Creator(engine.host_, engine.op_);
    made = Dynamic(creator.deserializePlugin("the layer", kept.data() + 1, kept.size() - 1));
  }
  engine_.Expect(made != nullptr, "deserializePlugin");
  plugin_.reset(made->clone());
  engine_.Expect(plugin_ != nullptr, "clone");
  plugin_->attachToContext(nullptr, nullptr, nullptr);
  engine_.Expect(plugin_->initialize() == 0, "initialize");
}

std::vector<abi::Dims> Context::SetShapes(const std::vector<abi::Dims>& inputs) {
  const std::vector<abi::Dims> outputs = engine_.OutputShapes(inputs);
  std::vector<abi8::DynamicPluginTensorDesc> tensors;
  const auto add = [&](abi::DataType type, const abi::Dims& dims) {
    tensors.push_back({DescriptionOf(type, dims), Narrowed(dims), Narrowed(dims)});
  };
  for (size_t i = 0; i < inputs.size(); ++i) add(engine_.inputs_[i].type, inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) add(engine_.output_types_[i], outputs[i]);
  const int32_t count = static_cast<int32_t>(inputs.size());
  plugin_->configurePlugin(tensors.data(), count, tensors.data() + count, static_cast<int32_t>(outputs.size()));
  engine_.Expect(true, "configurePlugin");
  in_.clear();
  out_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) (i < inputs.size() ? in_ : out_).push_back(tensors[i].desc);
  return outputs;
}

void Context::Enqueue(const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream) {
  const int32_t code = plugin_->enqueue(in_.data(), out_.data(), inputs, outputs, workspace, stream);
  engine_.Expect(code == 0, "enqueue");
}

}  // namespace bertfuse::test::tensorrt::v8
