#include "host.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace bertfuse::test::tensorrt {
namespace {

int32_t g_version = 0;
std::mutex g_mutex;
std::string g_log;

void Remember(abi::Severity severity, const char* message) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (severity <= abi::Severity::kERROR) g_log += std::string(message) + "\n";
}

template <class Interface>
class Logger final : public Interface {
 public:
  void log(abi::Severity severity, const char* message) noexcept override { Remember(severity, message); }
};

template <class Interface, class LoggerInterface>
class Finder final : public Interface {
 public:
  LoggerInterface* findLogger() override { return &logger_; }

 private:
  Logger<LoggerInterface> logger_;
};

Finder<abi::v10::ILoggerFinder, abi::v10::ILogger> g_finder_v10;
Finder<abi::v11::ILoggerFinder, abi::v11::ILogger> g_finder_v11;

// Any format and any dtype of TensorRT's.
constexpr int kFormats = 13, kDataTypes = 12;

abi::PluginTensorDesc DescriptionOf(abi::DataType type, const abi::Dims& dims) {
  return {dims, type, abi::TensorFormat::kLINEAR, 1.0f};
}

bool IsFloat(abi::DataType type) {
  return type == abi::DataType::kFLOAT || type == abi::DataType::kHALF || type == abi::DataType::kBF16;
}
bool IsIndex(abi::DataType type) { return type == abi::DataType::kINT32 || type == abi::DataType::kINT64; }

size_t SizeOf(abi::PluginFieldType type) {
  switch (type) {
    case abi::PluginFieldType::kINT64:
    case abi::PluginFieldType::kFLOAT64:
      return 8;
    case abi::PluginFieldType::kINT32:
    case abi::PluginFieldType::kFLOAT32:
      return 4;
    default:
      return 1;
  }
}

}  // namespace

Host::Host(const std::string& library, LoggerForm form) {
  library_ = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library_ == nullptr) throw std::runtime_error(dlerror());
  SetLogger(form);
  using GetCreators = abi::IPluginCreatorInterface* const* (*)(int32_t&);
  const auto get_creators = reinterpret_cast<GetCreators>(Symbol("getCreators"));
  int32_t count = -1;
  abi::IPluginCreatorInterface* const* creators = get_creators(count);
  for (int32_t i = 0; i < count; ++i) {
    const abi::InterfaceInfo info = creators[i]->getInterfaceInfo();
    if (std::strcmp(info.kind, "PLUGIN CREATOR_V3ONE") != 0 || info.major != 1) {
      throw std::runtime_error(std::string("a creator of kind ") + info.kind);
    }
    creators_.push_back(static_cast<abi::IPluginCreatorV3One*>(creators[i]));
  }
}

Host::~Host() {
  SetLogger(LoggerForm::kNone);
  dlclose(library_);
}

void Host::SetLogger(LoggerForm form) {
  const auto set = reinterpret_cast<void (*)(void*)>(Symbol("setLoggerFinder"));
  g_version = form == LoggerForm::kV8    ? 8600
              : form == LoggerForm::kV10 ? 100900
              : form == LoggerForm::kV11 ? 110100
              : form == LoggerForm::kV12 ? 120000
              : form == LoggerForm::kRtx ? 10701
                                         : 0;
  set(form == LoggerForm::kNone  ? nullptr
      : form <= LoggerForm::kV10 ? static_cast<void*>(&g_finder_v10)
                                 : &g_finder_v11);
}

void* Host::Symbol(const char* name) const {
  void* symbol = dlsym(library_, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("no ") + name);
  return symbol;
}

abi::IPluginCreatorV3One& Host::Creator(const std::string& op) const {
  for (abi::IPluginCreatorV3One* creator : creators_) {
    if (op == creator->getPluginName()) return *creator;
  }
  throw std::runtime_error("no creator of " + op);
}

std::string Host::TakeLog() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return std::exchange(g_log, "");
}

OwnedFields::OwnedFields(const abi::PluginFieldCollection& fields) {
  names_.reserve(static_cast<size_t>(fields.nbFields));
  for (int32_t i = 0; i < fields.nbFields; ++i) {
    const abi::PluginField& field = fields.fields[i];
    const size_t bytes = SizeOf(field.type) * static_cast<size_t>(field.length);
    auto& data = data_.emplace_back(new unsigned char[bytes + 1]);
    if (bytes > 0) std::memcpy(data.get() + 1, field.data, bytes);
    names_.push_back(field.name);
    fields_.push_back({names_.back().c_str(), data.get() + 1, field.type, field.length});
  }
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

Engine::Engine(Host& host, const std::string& op, const abi::PluginFieldCollection& fields, std::vector<Input> inputs)
    : host_(host), op_(op), inputs_(std::move(inputs)) {
  host_.TakeLog();
  PluginPointer made;
  {
    const OwnedFields given(fields);  // gone when the plugin is used
    made.reset(host_.Creator(op).createPlugin("the layer", given.collection(), abi::TensorRTPhase::kBUILD));
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

void Engine::Network(abi::IPluginV3& plugin) {
  const auto& core = CapabilityOf<abi::IPluginV3OneCore>(plugin, abi::PluginCapabilityType::kCORE);
  Expect(op_ == core.getPluginName() && std::string("1") == core.getPluginVersion() &&
             std::string("bertfuse") == core.getPluginNamespace(),
         "name, version and namespace");
  auto& build = CapabilityOf<abi::IPluginV3OneBuild>(plugin, abi::PluginCapabilityType::kBUILD);
  const int32_t outputs = build.getNbOutputs();
  const int32_t count = static_cast<int32_t>(inputs_.size());
  Expect(outputs > 0, "getNbOutputs");

  std::vector<abi::DataType> types;
  std::vector<abi::DimsExprs> shapes;
  int64_t variable = 0;
  for (const Input& input : inputs_) {
    types.push_back(input.type);
    abi::DimsExprs& shape = shapes.emplace_back();
    shape.nbDims = input.max.nbDims;
    for (int i = 0; i < shape.nbDims; ++i, ++variable) {
      const bool known = input.min.d[i] == input.max.d[i];
      shape.d[i] = known ? builder_.constant(input.max.d[i]) : builder_.Free(variable);
    }
  }
  output_types_.assign(static_cast<size_t>(outputs), abi::DataType::kBOOL);
  Expect(build.getOutputDataTypes(output_types_.data(), outputs, types.data(), count) == 0, "getOutputDataTypes");
  output_shapes_.assign(static_cast<size_t>(outputs), {-1, {}});
  Expect(build.getOutputShapes(shapes.data(), count, nullptr, 0, output_shapes_.data(), outputs, builder_) == 0,
         "getOutputShapes");
}

std::vector<abi::Dims> Engine::OutputShapes(const std::vector<abi::Dims>& inputs) const {
  std::vector<int64_t> sizes;
  for (const abi::Dims& shape : inputs) sizes.insert(sizes.end(), shape.d, shape.d + shape.nbDims);
  std::vector<abi::Dims> outputs;
  for (const abi::DimsExprs& shape : output_shapes_) {
    abi::Dims& dims = outputs.emplace_back();
    dims.nbDims = shape.nbDims;
    for (int i = 0; i < shape.nbDims; ++i) dims.d[i] = static_cast<const Expression*>(shape.d[i])->Evaluate(sizes);
  }
  return outputs;
}

void Engine::Build(abi::IPluginV3& plugin) {
  auto& build = CapabilityOf<abi::IPluginV3OneBuild>(plugin, abi::PluginCapabilityType::kBUILD);
  std::vector<abi::DynamicPluginTensorDesc> tensors;
  const auto add = [&](abi::DataType type, const abi::Dims& min, const abi::Dims& opt, const abi::Dims& max) {
    abi::Dims open = max;
    for (int i = 0; i < open.nbDims; ++i) {
      if (min.d[i] != max.d[i]) open.d[i] = -1;
    }
    tensors.push_back({DescriptionOf(type, open), min, max, opt});
  };
  std::vector<abi::Dims> bounds[3];
  for (const Input& input : inputs_) {
    add(input.type, input.min, input.opt, input.max);
    bounds[0].push_back(input.min);
    bounds[1].push_back(input.opt);
    bounds[2].push_back(input.max);
  }
  for (size_t i = 0; i < output_types_.size(); ++i) {
    add(output_types_[i], OutputShapes(bounds[0])[i], OutputShapes(bounds[1])[i], OutputShapes(bounds[2])[i]);
  }
  CheckFormats(build, tensors);

  const int32_t count = static_cast<int32_t>(inputs_.size()), outputs = static_cast<int32_t>(output_types_.size());
  const abi::DynamicPluginTensorDesc *in = tensors.data(), *out = in + count;
  Expect(build.configurePlugin(in, count, out, outputs) == 0, "configurePlugin");
  Expect(build.getNbTactics() == 0 && build.getFormatCombinationLimit() > 0, "tactics and formats");
  workspace_ = build.getWorkspaceSize(in, count, out, outputs);
  Expect(build.getTimingCacheID() != nullptr && build.getMetadataString() != nullptr, "getTimingCacheID");
  auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(plugin, abi::PluginCapabilityType::kRUNTIME);
  const abi::PluginFieldCollection* fields = runtime.getFieldsToSerialize();
  Expect(fields != nullptr, "getFieldsToSerialize");
  serialized_ = std::make_unique<OwnedFields>(*fields);
}

void Engine::CheckFormats(abi::IPluginV3OneBuild& build,
                          const std::vector<abi::DynamicPluginTensorDesc>& tensors) const {
  const int32_t count = static_cast<int32_t>(inputs_.size()), outputs = static_cast<int32_t>(output_types_.size());
  for (size_t pos = 0; pos < tensors.size(); ++pos) {
    // What lies behind `pos` is not settled yet.
    std::vector<abi::DynamicPluginTensorDesc> offered(tensors.begin(), tensors.begin() + static_cast<long>(pos) + 1);
    offered.resize(tensors.size());
    for (size_t i = pos + 1; i < offered.size(); ++i)
      std::memset(static_cast<void*>(&offered[i]), 0xa5, sizeof(offered[i]));
    const auto supported = [&] {
      return build.supportsFormatCombination(static_cast<int32_t>(pos), offered.data(), count, outputs);
    };
    const std::string where = "supportsFormatCombination of tensor " + std::to_string(pos);
    Expect(supported(), where);
    for (int format = 1; format < kFormats; ++format) {
      offered[pos].desc.format = static_cast<abi::TensorFormat>(format);
      Expect(!supported(), where + " in format " + std::to_string(format));
    }
    offered[pos].desc.format = abi::TensorFormat::kLINEAR;
    // One dtype for all floats and one for all integers, of the five that there are kernels for; an output's is settled
    // by the inputs. (Whether an input may be of the other kind depends on which optional inputs are there.)
    const abi::DataType own = tensors[pos].desc.type;
    for (int type = 0; type < kDataTypes; ++type) {
      const auto other = static_cast<abi::DataType>(type);
      bool wrong = !IsFloat(other) && !IsIndex(other);
      for (size_t i = 0; i < pos && pos < inputs_.size(); ++i) {
        if (inputs_[i].own_type) continue;
        const abi::DataType settled = tensors[i].desc.type;
        wrong |= IsFloat(settled) == IsFloat(other) && settled != other;
      }
      if (pos >= inputs_.size() || inputs_[pos].own_type) wrong = other != own;
      // Counts of rows are int32 whatever the indices are, and with other inputs one might be in this place.
      const bool may_be_count = pos < inputs_.size() && other == abi::DataType::kINT32;
      wrong &= other != own && !may_be_count;
      offered[pos].desc.type = other;
      if (wrong) Expect(!supported(), where + " as type " + std::to_string(type));
    }
  }
}

Context::Context(Engine& engine, abi::IErrorRecorder* recorder) : engine_(engine), resources_(recorder) {
  PluginPointer made;
  {
    const OwnedFields kept(engine.serialized());
    auto& creator = engine.host_.Creator(engine.op_);
    made.reset(creator.createPlugin("the layer", kept.collection(), abi::TensorRTPhase::kRUNTIME));
  }
  engine_.Expect(made != nullptr, "createPlugin at run time");
  auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(*made, abi::PluginCapabilityType::kRUNTIME);
  plugin_.reset(runtime.attachToContext(&resources_));
  engine_.Expect(plugin_ != nullptr && plugin_ != made, "attachToContext");
}

std::vector<abi::Dims> Context::SetShapes(const std::vector<abi::Dims>& inputs) {
  const std::vector<abi::Dims> outputs = engine_.OutputShapes(inputs);
  in_.clear();
  out_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) in_.push_back(DescriptionOf(engine_.inputs_[i].type, inputs[i]));
  for (size_t i = 0; i < outputs.size(); ++i) out_.push_back(DescriptionOf(engine_.output_types_[i], outputs[i]));
  auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(*plugin_, abi::PluginCapabilityType::kRUNTIME);
  engine_.Expect(runtime.setTactic(0) == 0, "setTactic");
  engine_.Expect(runtime.onShapeChange(in_.data(), static_cast<int32_t>(in_.size()), out_.data(),
                                       static_cast<int32_t>(out_.size())) == 0,
                 "onShapeChange");
  return outputs;
}

void Context::Enqueue(const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream) {
  auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(*plugin_, abi::PluginCapabilityType::kRUNTIME);
  engine_.Expect(runtime.enqueue(in_.data(), out_.data(), inputs, outputs, workspace, stream) == 0, "enqueue");
}

}  // namespace bertfuse::test::tensorrt

// What a plugin library may ask of the library that it was loaded by.
extern "C" __attribute__((visibility("default"))) int32_t getInferLibVersion() {
  return bertfuse::test::tensorrt::g_version;
}
