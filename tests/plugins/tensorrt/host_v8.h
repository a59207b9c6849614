// TensorRT 8's part, played as host.h plays TensorRT 10's: create, build, serialise, deserialise, configure for the
// shapes of a run, enqueue. The order is what the headers of 8.6 say; TensorRT 8 itself was not watched.
#ifndef BERTFUSE_TESTS_TENSORRT_HOST_V8_H_
#define BERTFUSE_TESTS_TENSORRT_HOST_V8_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "host.h"
#include "tensorrt/abi_v8.h"

namespace bertfuse::test::tensorrt::v8 {

namespace abi = bertfuse::tensorrt::abi;
namespace abi8 = bertfuse::tensorrt::abi::v8;

struct Destroy {
  void operator()(abi8::IPluginV2* plugin) const { plugin->destroy(); }
};
using PluginPointer = std::unique_ptr<abi8::IPluginV2DynamicExt, Destroy>;

// The creators that the library has for a TensorRT 8 or 9; none where the host is another.
std::vector<abi8::IPluginCreator*> Creators(const Host& host);
abi8::IPluginCreator& Creator(const Host& host, const std::string& op);
// As TensorRT does, after it has looked at getTensorRTVersion().
PluginPointer Dynamic(abi8::IPluginV2* plugin);

// Sizes in 32 bits.
class NarrowBuilder final : public abi8::IExprBuilder, public abi8::ExprBuilderImpl {
 public:
  NarrowBuilder() { impl = this; }
  const abi8::IDimensionExpr* constant(int32_t value) override { return Keep(builder.constant(value)); }
  const abi8::IDimensionExpr* operation(abi::DimensionOperation op, const abi8::IDimensionExpr& first,
                                        const abi8::IDimensionExpr& second) override {
    return Keep(builder.operation(op, Wide(first), Wide(second)));
  }
  const abi8::IDimensionExpr* Free(int64_t variable) { return Keep(builder.Free(variable)); }
  static const Expression& Wide(const abi8::IDimensionExpr& expression) {
    return *static_cast<const Narrow&>(expression).wide;
  }

  ExpressionBuilder builder;

 private:
  struct Narrow final : public abi8::IDimensionExpr, public abi8::DimensionExprImpl {
    explicit Narrow(const Expression* wide) : wide(wide) { impl = this; }
    bool isConstant() const override { return wide->isConstant(); }
    int32_t getConstantValue() const override { return static_cast<int32_t>(wide->getConstantValue()); }
    const Expression* wide;
  };
  const abi8::IDimensionExpr* Keep(const abi::IDimensionExpr* made) {
    return made == nullptr ? nullptr : &made_.emplace_back(static_cast<const Expression*>(made));
  }
  std::deque<Narrow> made_;
};

// As tensorrt::Engine.
class Engine {
 public:
  Engine(Host& host, const std::string& op, const abi::PluginFieldCollection& fields, std::vector<Input> inputs);

  const std::vector<abi::DataType>& output_types() const { return output_types_; }
  std::vector<abi::Dims> OutputShapes(const std::vector<abi::Dims>& inputs) const;
  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  size_t workspace() const { return workspace_; }
  // Unaligned, as in an engine's file.
  const void* serialized() const { return serialized_.data() + 1; }
  size_t serialized_size() const { return serialized_.size() - 1; }

 private:
  friend class Context;
  void Network(abi8::IPluginV2DynamicExt& plugin);
  void Build(abi8::IPluginV2DynamicExt& plugin);
  void CheckFormats(abi8::IPluginV2DynamicExt& plugin, const std::vector<abi8::DynamicPluginTensorDesc>& tensors) const;
  void Expect(bool good, const std::string& step) const;

  Host& host_;
  std::string op_;
  std::vector<Input> inputs_;
  NarrowBuilder builder_;
  std::vector<abi8::DimsExprs> output_shapes_;
  std::vector<abi::DataType> output_types_;
  size_t workspace_ = 0;
  std::string serialized_;
};

// As tensorrt::Context. Plugins of TensorRT 8 have no error recorder.
class Context {
 public:
  Context(Engine& engine, abi::IErrorRecorder*);

  std::vector<abi::Dims> SetShapes(const std::vector<abi::Dims>& inputs);
  void Enqueue(const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream);

 private:
  Engine& engine_;
  PluginPointer plugin_;
  std::vector<abi8::PluginTensorDesc> in_, out_;
};

}  // namespace bertfuse::test::tensorrt::v8
#endif  // BERTFUSE_TESTS_TENSORRT_HOST_V8_H_
