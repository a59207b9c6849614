// Layers of every op through the build phase, and into the run-time phase as far as that goes without a GPU.
#include <gtest/gtest.h>

#include "core/kernel_table.h"
#include "example.h"
#include "host_v8.h"

namespace bertfuse::test::tensorrt {
namespace {

// The two interfaces that the library has, each played by a host of its own.
struct V10 {
  using Engine = tensorrt::Engine;
  using Context = tensorrt::Context;
  static constexpr LoggerForm kForm = LoggerForm::kV11;
};
struct V8 {
  using Engine = v8::Engine;
  using Context = v8::Context;
  static constexpr LoggerForm kForm = LoggerForm::kV8;
};

template <class Version>
class Engines : public ::testing::Test {
 protected:
  using Engine = typename Version::Engine;
  Host host{BERTFUSE_TRT_LIBRARY, Version::kForm};
};
using Versions = ::testing::Types<V10, V8>;
TYPED_TEST_SUITE(Engines, Versions);
using EnginesOfV10 = Engines<V10>;

std::string Label(const Example& example) {
  return std::string(example.op.name) + " with inputs " + std::to_string(example.present);
}

// Every op, with every set of optional inputs and every dtype; TensorRT 8 has no integers of 64 bits.
template <class Version, class Body>
void ForEveryLayer(Body&& body) {
  for (const OpDef& op : AllOps()) {
    for (uint32_t present : Readings(op)) {
      for (int32_t t : DtypesOf(Variable::kT)) {
        for (int32_t i : DtypesOf(Variable::kI)) {
          if (std::is_same_v<Version, V10> || i == BERTFUSE_INT32) body(Example(op, present, t, i));
        }
      }
    }
  }
}

TYPED_TEST(Engines, OutputsAreWhatTheOpTableSays) {
  ForEveryLayer<TypeParam>([&](const Example& example) {
    SCOPED_TRACE(Label(example));
    const typename TypeParam::Engine engine(this->host, example.op.name, example.fields.collection(), example.Inputs());
    ASSERT_EQ(engine.output_types().size(), static_cast<size_t>(example.op.num_outputs));
    for (const auto& [batch, sequence] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {4, 16}}) {
      const auto expected = example.Outputs(batch, sequence);
      const auto shapes = engine.OutputShapes(example.Shapes(batch, sequence));
      for (int o = 0; o < example.op.num_outputs; ++o) {
        EXPECT_EQ(engine.output_types()[o], example.TypeOf(example.op.outputs[o]));
        const std::vector<int64_t> shape(shapes[o].d, shapes[o].d + shapes[o].nbDims);
        EXPECT_EQ(shape, std::vector<int64_t>(expected[o].shape, expected[o].shape + expected[o].rank));
      }
    }
  });
}

TYPED_TEST(Engines, WorkspaceWithoutAGpuIsFourFloatsPerOutputElement) {
  ForEveryLayer<TypeParam>([&](const Example& example) {
    if (bertfuse_find_kernel(example.op.name, BERTFUSE_CUDA) != nullptr) return;
    SCOPED_TRACE(Label(example));
    size_t expected = 0;
    for (const bertfuse_tensor& output : example.Outputs(4, 16)) expected += 16 * NumElements(output);
    const typename TypeParam::Engine engine(this->host, example.op.name, example.fields.collection(), example.Inputs());
    EXPECT_EQ(engine.workspace(), expected);
  });
}

TYPED_TEST(Engines, RunTimeTakesEveryShapeAndSaysWhatItLacks) {
  ForEveryLayer<TypeParam>([&](const Example& example) {
    SCOPED_TRACE(Label(example));
    typename TypeParam::Engine engine(this->host, example.op.name, example.fields.collection(), example.Inputs());
    typename TypeParam::Context context(engine, nullptr);
    for (const auto& [batch, sequence] : {std::pair<int64_t, int64_t>{2, 8}, {1, 1}, {3, 11}}) {
      context.SetShapes(example.Shapes(batch, sequence));
    }
    if (bertfuse_find_kernel(example.op.name, BERTFUSE_CUDA) != nullptr) return;
    const std::vector<const void*> inputs(kMaxTensors, nullptr);
    std::vector<void*> outputs(kMaxTensors, nullptr);
    const std::string message = Thrown([&] { context.Enqueue(inputs.data(), outputs.data(), nullptr, nullptr); });
    EXPECT_NE(message.find("built without CUDA kernels"), std::string::npos) << message;
    EXPECT_NE(message.find(std::string("layer 'the layer': ") + example.op.name), std::string::npos) << message;
  });
}

TEST_F(EnginesOfV10, AttributesSurviveSerialisation) {
  for (const OpDef& op : AllOps()) {
    SCOPED_TRACE(op.name);
    const Example example(op, AllInputs(op), BERTFUSE_FLOAT16, BERTFUSE_INT32);
    const Engine engine(host, op.name, example.fields.collection(), example.Inputs());
    auto& creator = host.Creator(op.name);
    const PluginPointer before(creator.createPlugin("a", &example.fields.collection(), abi::TensorRTPhase::kBUILD));
    const PluginPointer after(creator.createPlugin("b", &engine.serialized(), abi::TensorRTPhase::kRUNTIME));
    ASSERT_NE(before, nullptr);
    ASSERT_NE(after, nullptr);
    const auto text = [](const PluginPointer& plugin) {
      return std::string(
          CapabilityOf<abi::IPluginV3OneBuild>(*plugin, abi::PluginCapabilityType::kBUILD).getMetadataString());
    };
    EXPECT_EQ(text(before), text(after));
    EXPECT_EQ(text(before).empty(), op.num_attributes == 0);
  }
}

// Inputs that are wrong name the tensor, whichever call notices.
TYPED_TEST(Engines, WrongInputsAreNamed) {
  const OpDef& op = *FindOp("FusedGemmGelu");
  const auto message = [&](auto&& change) {
    const Example example(op, AllInputs(op), BERTFUSE_FLOAT16, BERTFUSE_INT32);
    auto inputs = example.Inputs();
    change(inputs);
    return Thrown([&] { typename TypeParam::Engine(this->host, op.name, example.fields.collection(), inputs); });
  };
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
  };
  says(message([](auto& inputs) { inputs[1].type = abi::DataType::kFLOAT; }),
       "input 'weight' is float32, expected float16");
  says(message([](auto& inputs) { inputs[2].type = abi::DataType::kINT8; }), "input 'bias' is int8");
  says(message([](auto& inputs) { inputs[1].min.nbDims = inputs[1].opt.nbDims = inputs[1].max.nbDims = 1; }),
       "input 'weight' has rank 1");
  says(message([](auto& inputs) { inputs[1].min.d[1] = inputs[1].opt.d[1] = inputs[1].max.d[1] = 7; }),
       "input 'weight' axis 1 is 7, expected K");
  says(message([](auto& inputs) { inputs.pop_back(); }), "2 inputs are too many or too few for: x, weight, bias");
  says(message([](auto& inputs) { inputs.push_back(inputs[2]); }), "input 'row_count' is float16 (10), expected int32");
  const std::string most = " inputs, expected at most " + std::to_string(op.num_inputs);
  says(message([](auto& inputs) { inputs.resize(kMaxTensors, inputs[2]); }),
       std::to_string(kMaxTensors) + " inputs are too many or too few");
  // More than the arrays of the library hold.
  says(message([](auto& inputs) { inputs.resize(kMaxTensors + 1, inputs[2]); }),
       std::to_string(kMaxTensors + 1) + most);
  says(message([](auto& inputs) { inputs.resize(40, inputs[2]); }), "40" + most);
  says(message([](auto& inputs) { inputs.clear(); }), "0 inputs are too many or too few");
}

TYPED_TEST(Engines, HeadsThatDoNotDivideAreNamed) {
  const OpDef& op = *FindOp("AddQKVBias");
  Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  int64_t heads = 5;
  example.fields.fields()[0].data = &heads;
  const std::string message =
      Thrown([&] { typename TypeParam::Engine(this->host, op.name, example.fields.collection(), example.Inputs()); });
  EXPECT_NE(message.find("attribute 'num_heads' is 5, expected a divisor of H = 12"), std::string::npos) << message;
}

// Calls as no TensorRT makes them: a code and a message, no crash.
TEST_F(EnginesOfV10, AskedWrongly) {
  const OpDef& op = *FindOp("FusedAttention");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  const PluginPointer plugin(
      host.Creator(op.name).createPlugin(nullptr, &example.fields.collection(), abi::TensorRTPhase::kBUILD));
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->getCapabilityInterface(static_cast<abi::PluginCapabilityType>(7)), nullptr);
  auto& build = CapabilityOf<abi::IPluginV3OneBuild>(*plugin, abi::PluginCapabilityType::kBUILD);
  auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(*plugin, abi::PluginCapabilityType::kRUNTIME);
  abi::DataType types[3] = {};
  EXPECT_NE(build.getOutputDataTypes(types, 2, types, 3), 0);
  EXPECT_NE(build.getOutputDataTypes(types, 1, types, -1), 0);
  abi::DynamicPluginTensorDesc tensors[4] = {};
  for (int pos : {-1, 4, 1000}) EXPECT_FALSE(build.supportsFormatCombination(pos, tensors, 3, 1));
  EXPECT_NE(build.configurePlugin(tensors, 3, tensors, 0), 0);
  EXPECT_NE(build.configurePlugin(tensors, 3, tensors + 3, 1), 0);
  const abi::PluginTensorDesc none[3] = {};
  EXPECT_NE(runtime.onShapeChange(none, 3, none, 1), 0);
  EXPECT_NE(runtime.enqueue(none, none, nullptr, nullptr, nullptr, nullptr), 0);
  const PluginPointer attached(runtime.attachToContext(nullptr));
  EXPECT_NE(attached, nullptr);
  EXPECT_NE(host.TakeLog(), "");
}

TEST_F(EnginesOfV10, ABuilderThatGivesNothing) {
  for (const OpDef& op : AllOps()) {
    const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
    const PluginPointer plugin(
        host.Creator(op.name).createPlugin("l", &example.fields.collection(), abi::TensorRTPhase::kBUILD));
    auto& build = CapabilityOf<abi::IPluginV3OneBuild>(*plugin, abi::PluginCapabilityType::kBUILD);
    ExpressionBuilder sizes, refusing;
    refusing.refuse_after = 0;
    std::vector<abi::DimsExprs> inputs;
    for (const abi::Dims& shape : example.Shapes(2, 8)) {
      abi::DimsExprs& expressions = inputs.emplace_back();
      expressions.nbDims = shape.nbDims;
      for (int i = 0; i < shape.nbDims; ++i) expressions.d[i] = sizes.constant(shape.d[i]);
    }
    std::vector<abi::DimsExprs> outputs(op.num_outputs);
    const int32_t code = build.getOutputShapes(inputs.data(), static_cast<int32_t>(inputs.size()), nullptr, 0,
                                               outputs.data(), op.num_outputs, refusing);
    EXPECT_EQ(code != 0, host.TakeLog().find("TensorRT made no shape expression") != std::string::npos) << op.name;
  }
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
