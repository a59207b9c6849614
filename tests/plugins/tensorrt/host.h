// TensorRT's part, played against the built library through the same binary interface: load, create, build, serialise,
// create again, attach, change shapes, enqueue. What a step does and in which order was observed in TensorRT for RTX
// 1.7.1; where TensorRT promises something (what may be read, when), the host is as strict as the promise.
#ifndef BERTFUSE_TESTS_TENSORRT_HOST_H_
#define BERTFUSE_TESTS_TENSORRT_HOST_H_

#include <memory>
#include <string>
#include <vector>

#include "expressions.h"

namespace bertfuse::test::tensorrt {

// Which logger the host has: TensorRT 8's (which is as 10's), TensorRT 10's, TensorRT 11's, TensorRT for RTX's (as 11),
// one of an unknown version, none.
enum class LoggerForm { kV8, kV10, kV11, kRtx, kV12, kUnknownVersion, kNone };

// The library, loaded, with its creators and a logger that remembers.
class Host {
 public:
  explicit Host(const std::string& library, LoggerForm form = LoggerForm::kV11);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void SetLogger(LoggerForm form);
  const std::vector<abi::IPluginCreatorV3One*>& creators() const { return creators_; }
  abi::IPluginCreatorV3One& Creator(const std::string& op) const;
  // A function that the library exports; throws where it does not.
  void* Symbol(const char* name) const;

  // Errors logged since the last call, one a line.
  std::string TakeLog();

 private:
  void* library_ = nullptr;
  std::vector<abi::IPluginCreatorV3One*> creators_;
};

// Fields with memory of their own, as an engine's file has them: unaligned, strings without terminator.
class OwnedFields {
 public:
  explicit OwnedFields(const abi::PluginFieldCollection& fields);
  const abi::PluginFieldCollection* collection() const { return &collection_; }

 private:
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<unsigned char[]>> data_;
  std::vector<abi::PluginField> fields_;
  abi::PluginFieldCollection collection_;
};

// An input of a layer: its dtype and an optimisation profile's shapes.
struct Input {
  abi::DataType type;
  abi::Dims min, opt, max;
  bool own_type = false;  // float32 whatever the layer's other floats are
};

using PluginPointer = std::unique_ptr<abi::IPluginV3>;

template <class Capability>
Capability& CapabilityOf(abi::IPluginV3& plugin, abi::PluginCapabilityType type) {
  return *static_cast<Capability*>(plugin.getCapabilityInterface(type));
}

// One layer built for one profile, and what an engine's file keeps of it. Every step that fails throws
// std::runtime_error with the step and what the library logged.
class Engine {
 public:
  Engine(Host& host, const std::string& op, const abi::PluginFieldCollection& fields, std::vector<Input> inputs);

  const std::vector<abi::DataType>& output_types() const { return output_types_; }
  std::vector<abi::Dims> OutputShapes(const std::vector<abi::Dims>& inputs) const;
  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  size_t workspace() const { return workspace_; }
  const abi::PluginFieldCollection& serialized() const { return *serialized_->collection(); }

 private:
  friend class Context;
  void Network(abi::IPluginV3& plugin);
  void Build(abi::IPluginV3& plugin);
  void CheckFormats(abi::IPluginV3OneBuild& build, const std::vector<abi::DynamicPluginTensorDesc>& tensors) const;
  void Expect(bool good, const std::string& step) const;

  Host& host_;
  std::string op_;
  std::vector<Input> inputs_;
  ExpressionBuilder builder_;
  std::vector<abi::DimsExprs> output_shapes_;
  std::vector<abi::DataType> output_types_;
  size_t workspace_ = 0;
  std::unique_ptr<OwnedFields> serialized_;
};

// The layer in an execution context of its own, made from what the engine's file keeps.
class Context {
 public:
  // `recorder` may be null.
  Context(Engine& engine, abi::IErrorRecorder* recorder);

  // Gives the output shapes.
  std::vector<abi::Dims> SetShapes(const std::vector<abi::Dims>& inputs);
  void Enqueue(const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream);

 private:
  class Resources final : public abi::IPluginResourceContext {
   public:
    explicit Resources(abi::IErrorRecorder* recorder) : recorder_(recorder) {}
    void* getGpuAllocator() const noexcept override { return nullptr; }
    abi::IErrorRecorder* getErrorRecorder() const noexcept override { return recorder_; }

   private:
    abi::IErrorRecorder* recorder_;
  };

  Engine& engine_;
  Resources resources_;
  PluginPointer plugin_;
  std::vector<abi::PluginTensorDesc> in_, out_;
};

}  // namespace bertfuse::test::tensorrt
#endif  // BERTFUSE_TESTS_TENSORRT_HOST_H_
