// The host as a C library: tests/gpu drives it from Python, with PyTorch's memory and streams. It plays TensorRT 10's
// part or, with BERTFUSE_TRT_HOST_FORM=8 in the environment, TensorRT 8's.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "host.h"
#include "host_v8.h"

namespace {

using namespace bertfuse::test::tensorrt;

thread_local std::string g_error;

// Runs `body`; what it throws is kept for bertfuse_trt_host_error, and `failed` returned.
template <class Result, class Body>
Result Kept(Result failed, Body&& body) noexcept {
  try {
    g_error.clear();
    return body();
  } catch (const std::exception& error) {
    g_error = error.what();
    return failed;
  }
}

// Keeps errors as an application's recorder would.
class Recorder final : public abi::IErrorRecorder {
 public:
  abi::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IErrorRecorder", 1, 0}; }
  int32_t getNbErrors() const noexcept override { return static_cast<int32_t>(errors_.size()); }
  abi::ErrorCode getErrorCode(int32_t) const noexcept override { return abi::ErrorCode::kUNSPECIFIED_ERROR; }
  const char* getErrorDesc(int32_t index) const noexcept override {
    return errors_[static_cast<size_t>(index)].c_str();
  }
  bool hasOverflowed() const noexcept override { return false; }
  void clear() noexcept override { errors_.clear(); }
  bool reportError(abi::ErrorCode, const char* desc) noexcept override {
    errors_.push_back(desc);
    return true;
  }
  int32_t incRefCount() noexcept override { return 1; }
  int32_t decRefCount() noexcept override { return 1; }

 private:
  std::vector<std::string> errors_;
};

// One layer's context, with the recorder that it reports to.
class AnyContext {
 public:
  virtual ~AnyContext() = default;
  virtual std::vector<abi::Dims> SetShapes(const abi::Dims* inputs) = 0;
  virtual void Enqueue(const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream) = 0;
  Recorder recorder;
};

class AnyEngine {
 public:
  virtual ~AnyEngine() = default;
  virtual size_t workspace() const = 0;
  virtual const std::vector<abi::DataType>& output_types() const = 0;
  virtual std::unique_ptr<AnyContext> Attach() = 0;
};

template <class Engine, class Context>
class EngineOf final : public AnyEngine {
 public:
  template <class... Arguments>
  explicit EngineOf(Arguments&&... arguments) : engine_(std::forward<Arguments>(arguments)...) {}
  size_t workspace() const override { return engine_.workspace(); }
  const std::vector<abi::DataType>& output_types() const override { return engine_.output_types(); }
  std::unique_ptr<AnyContext> Attach() override { return std::make_unique<ContextOf>(engine_); }

 private:
  class ContextOf final : public AnyContext {
   public:
    explicit ContextOf(Engine& engine) : engine_(engine), context_(engine, &recorder) {}
    std::vector<abi::Dims> SetShapes(const abi::Dims* inputs) override {
      return context_.SetShapes(std::vector<abi::Dims>(inputs, inputs + engine_.num_inputs()));
    }
    void Enqueue(const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream) override {
      context_.Enqueue(inputs, outputs, workspace, stream);
    }

   private:
    Engine& engine_;
    Context context_;
  };
  Engine engine_;
};

bool PlaysV8() {
  const char* form = std::getenv("BERTFUSE_TRT_HOST_FORM");
  return form != nullptr && std::string(form) == "8";
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Null (or a code other than 0) is a failure; this says which. Valid until the thread's next call.
EXPORT const char* bertfuse_trt_host_error() { return g_error.c_str(); }

EXPORT void* bertfuse_trt_host_open(const char* library) {
  return Kept<void*>(nullptr, [&] { return new Host(library, PlaysV8() ? LoggerForm::kV8 : LoggerForm::kV11); });
}
EXPORT void bertfuse_trt_host_close(void* host) { delete static_cast<Host*>(host); }

EXPORT void* bertfuse_trt_host_build(void* host, const char* op, const abi::PluginFieldCollection* fields,
                                     const Input* inputs, int32_t num_inputs) {
  return Kept<void*>(nullptr, [&]() -> AnyEngine* {
    Host& self = *static_cast<Host*>(host);
    const std::vector<Input> given(inputs, inputs + num_inputs);
    if (PlaysV8()) return new EngineOf<v8::Engine, v8::Context>(self, op, *fields, given);
    return new EngineOf<Engine, Context>(self, op, *fields, given);
  });
}
EXPORT void bertfuse_trt_host_free_engine(void* engine) { delete static_cast<AnyEngine*>(engine); }
EXPORT int64_t bertfuse_trt_host_workspace(void* engine) {
  return static_cast<int64_t>(static_cast<AnyEngine*>(engine)->workspace());
}
// abi::DataType of the engine's outputs into `types`; gives how many there are.
EXPORT int32_t bertfuse_trt_host_outputs(void* engine, int32_t* types) {
  const auto& outputs = static_cast<AnyEngine*>(engine)->output_types();
  for (size_t i = 0; i < outputs.size(); ++i) types[i] = static_cast<int32_t>(outputs[i]);
  return static_cast<int32_t>(outputs.size());
}

EXPORT void* bertfuse_trt_host_attach(void* engine) {
  return Kept<void*>(nullptr, [&] { return static_cast<AnyEngine*>(engine)->Attach().release(); });
}
EXPORT void bertfuse_trt_host_detach(void* context) { delete static_cast<AnyContext*>(context); }

// Takes the inputs' shapes, gives the outputs'.
EXPORT int32_t bertfuse_trt_host_set_shapes(void* context, const abi::Dims* inputs, abi::Dims* outputs) {
  return Kept<int32_t>(1, [&] {
    const auto shapes = static_cast<AnyContext*>(context)->SetShapes(inputs);
    std::copy(shapes.begin(), shapes.end(), outputs);
    return 0;
  });
}

EXPORT int32_t bertfuse_trt_host_enqueue(void* context, const void* const* inputs, void* const* outputs,
                                         void* workspace, void* stream) {
  return Kept<int32_t>(1, [&] {
    static_cast<AnyContext*>(context)->Enqueue(inputs, outputs, workspace, static_cast<abi::Stream>(stream));
    return 0;
  });
}

// The last error that the context's recorder was given, or "".
EXPORT const char* bertfuse_trt_host_recorded(void* context) {
  const Recorder& recorder = static_cast<AnyContext*>(context)->recorder;
  return recorder.getNbErrors() == 0 ? "" : recorder.getErrorDesc(recorder.getNbErrors() - 1);
}
