// TensorRT 8 itself as a C library, for GPU hosts without its Python interface (which ends at Python 3.10): tests/gpu
// drives it from Python, with PyTorch's memory and streams. Compiled against TensorRT's headers where they are found;
// its libraries are opened at run time.
#include <NvInfer.h>
#include <NvOnnxParser.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using namespace nvinfer1;

thread_local std::string g_error;

// Keeps errors, which say why a call gave nothing.
class Logger final : public ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (severity <= Severity::kERROR) errors_ += std::string(errors_.empty() ? "" : "\n") + message;
  }
  std::string Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(errors_, "");
  }

 private:
  std::mutex mutex_;
  std::string errors_;
};
Logger g_log;  // outlives everything that is made with it

void Expect(bool good, const std::string& step) {
  if (!good) throw std::runtime_error(step + " failed: " + g_log.Take());
}

// Runs `body`; what it throws is kept for bertfuse_trt_runner_error, and `failed` returned.
template <class Result, class Body>
Result Kept(Result failed, Body&& body) noexcept {
  try {
    g_error.clear();
    g_log.Take();
    return body();
  } catch (const std::exception& error) {
    g_error = error.what();
    return failed;
  }
}

template <class Function>
Function Symbol(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function>(symbol);
}

// TensorRT and its parser, opened.
struct Libraries {
  Libraries(const char* infer_path, const char* parser_path) {
    infer = dlopen(infer_path, RTLD_NOW | RTLD_GLOBAL);
    if (infer == nullptr) throw std::runtime_error(dlerror());
    parser = dlopen(parser_path, RTLD_NOW | RTLD_GLOBAL);
    if (parser == nullptr) throw std::runtime_error(dlerror());
  }
  void* infer;
  void* parser;
  std::unique_ptr<IBuilder> builder;

  void MakeBuilder() {
    builder.reset();
    const auto create = Symbol<void* (*)(void*, int32_t)>(infer, "createInferBuilder_INTERNAL");
    builder.reset(static_cast<IBuilder*>(create(&g_log, NV_TENSORRT_VERSION)));
    Expect(builder != nullptr, "createInferBuilder");
  }
  std::unique_ptr<IRuntime> Runtime() const {
    const auto create = Symbol<void* (*)(void*, int32_t)>(infer, "createInferRuntime_INTERNAL");
    std::unique_ptr<IRuntime> runtime(static_cast<IRuntime*>(create(&g_log, NV_TENSORRT_VERSION)));
    Expect(runtime != nullptr, "createInferRuntime");
    return runtime;
  }
  // Its virtual destructor is at another place of the table in 8.6.0 than in 8.6.1's header; destroy() is not.
  struct Destroyed {
    void operator()(nvonnxparser::IParser* parser) const { parser->destroy(); }
  };
  std::unique_ptr<nvonnxparser::IParser, Destroyed> Parser(INetworkDefinition& network) const {
    const auto create = Symbol<void* (*)(void*, void*, int32_t)>(parser, "createNvOnnxParser_INTERNAL");
    std::unique_ptr<nvonnxparser::IParser, Destroyed> made(
        static_cast<nvonnxparser::IParser*>(create(&network, &g_log, NV_ONNX_PARSER_VERSION)));
    Expect(made != nullptr, "createParser");
    return made;
  }
};

Dims DimsOf(const int32_t* sizes, int32_t count) {
  Dims dims = {};
  dims.nbDims = count;
  std::copy_n(sizes, count, dims.d);
  return dims;
}

struct Plan {
  std::unique_ptr<IHostMemory> memory;
  int32_t plugin_layers;
};

struct Loaded {
  std::unique_ptr<IRuntime> runtime;
  std::unique_ptr<ICudaEngine> engine;  // goes before its runtime
  std::string text;
};

}  // namespace

// One input's shapes in one profile.
struct RunnerBounds {
  int32_t profile;
  const char* input;
  int32_t rank;
  int32_t sizes[3][8];  // min, opt, max
};

#define EXPORT extern "C" __attribute__((visibility("default")))

// Null, a negative number (or a code other than 0) is a failure; this says which. Valid until the thread's next call.
EXPORT const char* bertfuse_trt_runner_error() { return g_error.c_str(); }

EXPORT void* bertfuse_trt_runner_open(const char* infer, const char* parser) {
  return Kept<void*>(nullptr, [&] { return new Libraries(infer, parser); });
}
EXPORT int32_t bertfuse_trt_runner_version(void* libraries) {
  return Kept<int32_t>(
      -1, [&] { return Symbol<int32_t (*)()>(static_cast<Libraries*>(libraries)->infer, "getInferLibVersion")(); });
}

// Puts a plugin library's creators into TensorRT's registry.
EXPORT int32_t bertfuse_trt_runner_load_plugins(void* libraries, const char* path) {
  return Kept<int32_t>(1, [&] {
    auto& self = *static_cast<Libraries*>(libraries);
    auto* registry = Symbol<IPluginRegistry* (*)()>(self.infer, "getPluginRegistry")();
    Expect(registry != nullptr && registry->loadLibrary(path) != nullptr, std::string("loading ") + path);
    return 0;
  });
}

// A builder in place of the one there is, if any. To make one takes seconds: TensorRT's own kernels are loaded.
EXPORT int32_t bertfuse_trt_runner_make_builder(void* libraries) {
  return Kept<int32_t>(1, [&] {
    static_cast<Libraries*>(libraries)->MakeBuilder();
    return 0;
  });
}

// Builds an engine of an ONNX file, with the builder there is, or else a first one. `half`: float16 may be computed in.
// `level`: the builder's optimisation level, TensorRT's default where it is negative.
EXPORT void* bertfuse_trt_runner_build(void* libraries, const char* model, const RunnerBounds* bounds,
                                       int32_t num_bounds, int32_t num_profiles, int32_t half, int32_t level) {
  return Kept<void*>(nullptr, [&] {
    auto& self = *static_cast<Libraries*>(libraries);
    if (self.builder == nullptr) self.MakeBuilder();
    IBuilder* builder = self.builder.get();
    const auto explicit_batch = 1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kEXPLICIT_BATCH);
    const std::unique_ptr<INetworkDefinition> network(builder->createNetworkV2(explicit_batch));
    Expect(network != nullptr, "createNetworkV2");
    const auto parser = self.Parser(*network);
    Expect(parser->parseFromFile(model, static_cast<int32_t>(ILogger::Severity::kERROR)),
           std::string("parsing ") + model);
    auto plan = std::make_unique<Plan>();
    for (int32_t i = 0; i < network->getNbLayers(); ++i) {
      plan->plugin_layers += network->getLayer(i)->getType() == LayerType::kPLUGIN_V2;
    }
    const std::unique_ptr<IBuilderConfig> config(builder->createBuilderConfig());
    config->clearFlag(BuilderFlag::kTF32);
    if (half != 0) config->setFlag(BuilderFlag::kFP16);
    if (level >= 0) config->setBuilderOptimizationLevel(level);
    config->setProfilingVerbosity(ProfilingVerbosity::kDETAILED);
    // As `bertfuse engine`: nothing of cuBLAS's and cuDNN's.
    config->setTacticSources(1U << static_cast<uint32_t>(TacticSource::kEDGE_MASK_CONVOLUTIONS) |
                             1U << static_cast<uint32_t>(TacticSource::kJIT_CONVOLUTIONS));
    for (int32_t number = 0; number < num_profiles; ++number) {
      IOptimizationProfile* profile = builder->createOptimizationProfile();
      for (int32_t i = 0; i < num_bounds; ++i) {
        const RunnerBounds& bound = bounds[i];
        if (bound.profile != number) continue;
        const OptProfileSelector selectors[] = {OptProfileSelector::kMIN, OptProfileSelector::kOPT,
                                                OptProfileSelector::kMAX};
        for (int which = 0; which < 3; ++which) {
          Expect(profile->setDimensions(bound.input, selectors[which], DimsOf(bound.sizes[which], bound.rank)),
                 std::string("the profile of ") + bound.input);
        }
      }
      Expect(config->addOptimizationProfile(profile) == number, "addOptimizationProfile");
    }
    plan->memory.reset(builder->buildSerializedNetwork(*network, *config));
    Expect(plan->memory != nullptr, "buildSerializedNetwork");
    return plan.release();
  });
}
EXPORT const void* bertfuse_trt_runner_plan(void* plan, uint64_t* size, int32_t* plugin_layers) {
  *size = static_cast<Plan*>(plan)->memory->size();
  *plugin_layers = static_cast<Plan*>(plan)->plugin_layers;
  return static_cast<Plan*>(plan)->memory->data();
}
EXPORT void bertfuse_trt_runner_free_plan(void* plan) { delete static_cast<Plan*>(plan); }

EXPORT void* bertfuse_trt_runner_load(void* libraries, const void* plan, uint64_t size) {
  return Kept<void*>(nullptr, [&] {
    auto loaded = std::make_unique<Loaded>();
    loaded->runtime = static_cast<Libraries*>(libraries)->Runtime();
    loaded->engine.reset(loaded->runtime->deserializeCudaEngine(plan, size));
    Expect(loaded->engine != nullptr, "deserializeCudaEngine");
    return loaded.release();
  });
}
EXPORT void bertfuse_trt_runner_unload(void* loaded) { delete static_cast<Loaded*>(loaded); }

// The engine's tensor of that number: its name, or null behind the last; nvinfer1::DataType; whether it is an input.
EXPORT const char* bertfuse_trt_runner_tensor(void* loaded, int32_t number, int32_t* type, int32_t* is_input) {
  const ICudaEngine& engine = *static_cast<Loaded*>(loaded)->engine;
  if (number < 0 || number >= engine.getNbIOTensors()) return nullptr;
  const char* name = engine.getIOTensorName(number);
  *type = static_cast<int32_t>(engine.getTensorDataType(name));
  *is_input = engine.getTensorIOMode(name) == TensorIOMode::kINPUT;
  return name;
}

// The engine's layers as JSON, valid until the engine is unloaded or asked again.
EXPORT const char* bertfuse_trt_runner_layers(void* loaded) {
  return Kept<const char*>(nullptr, [&] {
    auto& self = *static_cast<Loaded*>(loaded);
    const std::unique_ptr<IEngineInspector> inspector(self.engine->createEngineInspector());
    Expect(inspector != nullptr, "createEngineInspector");
    self.text = inspector->getEngineInformation(LayerInformationFormat::kJSON);
    return self.text.c_str();
  });
}

EXPORT void* bertfuse_trt_runner_context(void* loaded) {
  return Kept<void*>(nullptr, [&] {
    IExecutionContext* context = static_cast<Loaded*>(loaded)->engine->createExecutionContext();
    Expect(context != nullptr, "createExecutionContext");
    return context;
  });
}
EXPORT void bertfuse_trt_runner_free_context(void* context) { delete static_cast<IExecutionContext*>(context); }

EXPORT int32_t bertfuse_trt_runner_set_profile(void* context, int32_t profile, void* stream) {
  return Kept<int32_t>(1, [&] {
    auto& self = *static_cast<IExecutionContext*>(context);
    Expect(self.setOptimizationProfileAsync(profile, static_cast<cudaStream_t>(stream)), "setOptimizationProfileAsync");
    return 0;
  });
}
EXPORT int32_t bertfuse_trt_runner_set_shape(void* context, const char* input, const int32_t* sizes, int32_t rank) {
  return Kept<int32_t>(1, [&] {
    auto& self = *static_cast<IExecutionContext*>(context);
    Expect(self.setInputShape(input, DimsOf(sizes, rank)), std::string("setInputShape of ") + input);
    return 0;
  });
}
// Writes up to 8 sizes, gives the rank.
EXPORT int32_t bertfuse_trt_runner_shape(void* context, const char* tensor, int32_t* sizes) {
  const Dims dims = static_cast<IExecutionContext*>(context)->getTensorShape(tensor);
  std::copy_n(dims.d, Dims::MAX_DIMS, sizes);
  return dims.nbDims;
}
EXPORT int32_t bertfuse_trt_runner_set_address(void* context, const char* tensor, void* address) {
  return Kept<int32_t>(1, [&] {
    auto& self = *static_cast<IExecutionContext*>(context);
    Expect(self.setTensorAddress(tensor, address), std::string("setTensorAddress of ") + tensor);
    return 0;
  });
}
EXPORT int32_t bertfuse_trt_runner_enqueue(void* context, void* stream) {
  return Kept<int32_t>(1, [&] {
    Expect(static_cast<IExecutionContext*>(context)->enqueueV3(static_cast<cudaStream_t>(stream)), "enqueueV3");
    return 0;
  });
}
