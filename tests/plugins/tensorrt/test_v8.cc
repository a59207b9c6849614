// What only TensorRT 8 and 9 ask of the library. What all ask: test_engine.cc; layers executed: test_execution.cc.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "example.h"
#include "host_v8.h"
#include "op_table.generated.h"

namespace bertfuse::test::tensorrt::v8 {
namespace {

class V8 : public ::testing::Test {
 protected:
  Host host{BERTFUSE_TRT_LIBRARY, LoggerForm::kV8};
};

TEST_F(V8, HasACreatorOfEveryOp) {
  ASSERT_EQ(Creators(host).size(), static_cast<size_t>(AllOps().count));
  for (const OpDef& op : AllOps()) {
    SCOPED_TRACE(op.name);
    auto& creator = Creator(host, op.name);
    EXPECT_EQ(creator.getTensorRTVersion(), 8600);
    EXPECT_STREQ(creator.getPluginVersion(), kPluginVersion);
    creator.setPluginNamespace("another");
    EXPECT_STREQ(creator.getPluginNamespace(), kDomain);
    const abi::PluginFieldCollection *fields = creator.getFieldNames(), *same = host.Creator(op.name).getFieldNames();
    ASSERT_EQ(fields->nbFields, same->nbFields);
    for (int i = 0; i < fields->nbFields; ++i) EXPECT_STREQ(fields->fields[i].name, same->fields[i].name);
  }
}

// Later versions have creators of their own; one of either kind for an op is registered.
TEST(V8Library, HasNoCreatorsForOthers) {
  Host host(BERTFUSE_TRT_LIBRARY);
  for (LoggerForm form : {LoggerForm::kV10, LoggerForm::kV11, LoggerForm::kRtx, LoggerForm::kUnknownVersion}) {
    host.SetLogger(form);
    EXPECT_TRUE(Creators(host).empty());
  }
}

// Where the field names the element type the builder has no choice, and weights stay as they are.
TEST_F(V8, ElementTypeIsTheOnlyOne) {
  const OpDef& op = *FindOp("FusedGemm");
  for (const int64_t element : {BERTFUSE_FLOAT32, BERTFUSE_FLOAT16}) {
    Example example(op, AllInputs(op), BERTFUSE_FLOAT16, BERTFUSE_INT32);
    auto& fields = example.fields.fields();
    fields.push_back({"element_type", &element, abi::PluginFieldType::kINT64, 1});
    const abi::PluginFieldCollection given = {static_cast<int32_t>(fields.size()), fields.data()};
    const std::string message = Thrown([&] { Engine(host, op.name, given, example.Inputs()); });
    if (element == BERTFUSE_FLOAT16) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_NE(message.find("supportsFormatCombination of tensor 0"), std::string::npos) << message;
    }
  }
  // What is float32 in a layer of any type stays that.
  const OpDef& tables = *FindOp("RotaryTables");
  const int64_t half = BERTFUSE_FLOAT16;
  for (const int32_t t : {BERTFUSE_FLOAT32, BERTFUSE_FLOAT16}) {
    Example example(tables, AllInputs(tables), t, BERTFUSE_INT32);
    auto& fields = example.fields.fields();
    fields.push_back({"element_type", &half, abi::PluginFieldType::kINT64, 1});
    const abi::PluginFieldCollection given = {static_cast<int32_t>(fields.size()), fields.data()};
    const std::string message = Thrown([&] { Engine(host, tables.name, given, example.Inputs()); });
    const char* const wanted = t == BERTFUSE_FLOAT16 ? "" : "supportsFormatCombination of tensor 2";
    EXPECT_EQ(message.substr(0, std::strlen(wanted)), wanted) << message;
  }
  const int64_t integer = BERTFUSE_INT32;
  const abi::PluginField field = {"element_type", &integer, abi::PluginFieldType::kINT64, 1};
  const abi::PluginFieldCollection given = {1, &field};
  EXPECT_EQ(Creator(host, op.name).createPlugin("l", &given), nullptr);
  EXPECT_NE(host.TakeLog().find("field 'element_type' is 6, expected ONNX's number of a floating-point type"),
            std::string::npos);
}

// As TensorRT may do to time it: configured for the profile, then for a single shape of it.
TEST_F(V8, WorkspaceStaysThatOfTheProfile) {
  const OpDef& op = *FindOp("FusedGemmGelu");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT16, BERTFUSE_INT32);
  const PluginPointer plugin = Dynamic(Creator(host, op.name).createPlugin("l", &example.fields.collection()));
  const auto configured = [&](int64_t low, int64_t high) {
    std::vector<abi8::DynamicPluginTensorDesc> tensors;
    const auto add = [&](const TensorDef& tensor) {
      const auto narrow = [&](int64_t batch) {
        const auto shape = example.ShapeOf(tensor, batch, 8);
        abi8::Dims dims = {static_cast<int32_t>(shape.size()), {}};
        std::copy(shape.begin(), shape.end(), dims.d);
        return dims;
      };
      tensors.push_back(
          {{narrow(high), abi::DataType::kHALF, abi::TensorFormat::kLINEAR, 1}, narrow(low), narrow(high)});
    };
    for (int i = 0; i < 3; ++i) add(op.inputs[i]);
    add(op.outputs[0]);
    plugin->configurePlugin(tensors.data(), 3, tensors.data() + 3, 1);
    EXPECT_EQ(host.TakeLog(), "");
    return plugin->getWorkspaceSize(nullptr, 0, nullptr, 0);
  };
  const size_t small = configured(1, 1), wide = configured(1, 64);
  EXPECT_LE(small, wide);
  EXPECT_EQ(configured(2, 2), wide);
  EXPECT_EQ(PluginPointer(plugin->clone())->getWorkspaceSize(nullptr, 0, nullptr, 0), wide);
}

// As TensorRT has them behind a Reshape to [-1, sequence]: the layer is configured for what all tensors allow.
TEST_F(V8, BoundsThatOneTensorHasTooWide) {
  const OpDef& op = *FindOp("FusedAttention");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT16, BERTFUSE_INT32);
  const PluginPointer plugin = Dynamic(Creator(host, op.name).createPlugin("l", &example.fields.collection()));
  const auto configured = [&](int64_t least, int64_t most) {
    std::vector<abi8::DynamicPluginTensorDesc> tensors;
    const auto add = [&](const TensorDef& tensor, bool wide, abi::DataType type) {
      const auto narrow = [&](int64_t batch, int64_t sequence) {
        const auto shape = example.ShapeOf(tensor, batch, sequence);
        abi8::Dims dims = {static_cast<int32_t>(shape.size()), {}};
        std::copy(shape.begin(), shape.end(), dims.d);
        return dims;
      };
      const abi8::Dims low = narrow(wide ? least : 1, 1), high = narrow(wide ? most : 4, 40);
      tensors.push_back({{high, type, abi::TensorFormat::kLINEAR, 1}, low, high});
    };
    for (int i = 0; i < op.num_inputs; ++i) {
      if ((example.present >> i & 1) == 0) continue;
      const bool mask = std::string("mask") == op.inputs[i].name;
      add(op.inputs[i], !mask, mask ? abi::DataType::kINT32 : abi::DataType::kHALF);
    }
    add(op.outputs[0], true, abi::DataType::kHALF);
    const auto inputs = static_cast<int32_t>(tensors.size()) - 1;
    plugin->configurePlugin(tensors.data(), inputs, tensors.data() + inputs, 1);
    return host.TakeLog();
  };
  EXPECT_EQ(configured(1, 4), "");
  EXPECT_EQ(configured(0, 160), "");
  EXPECT_NE(configured(5, 160), "");  // no batch is allowed by all
}

// Bytes that no layer of ours wrote, cut off, or changed: a plugin that refuses and a line, or a plugin; never null, of
// which TensorRT 8.6.0 dies; never more than was given is read (the heap's own checks and sanitizers see that).
TEST_F(V8, BrokenEngines) {
  const OpDef& op = *FindOp("FusedAttention");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT16, BERTFUSE_INT32);
  const Engine engine(host, op.name, example.fields.collection(), example.Inputs());
  auto& creator = Creator(host, op.name);
  const auto* kept = static_cast<const char*>(engine.serialized());
  const std::vector<char> whole(kept, kept + engine.serialized_size());
  const auto refused = [&](const std::vector<char>& bytes) {
    const PluginPointer plugin = Dynamic(creator.deserializePlugin("l", bytes.data(), bytes.size()));
    const std::string log = host.TakeLog();
    EXPECT_TRUE(log.empty() || log.find("bertfuse layer 'l': FusedAttention: ") == 0) << log;
    EXPECT_EQ(plugin->getNbOutputs(), 1);
    EXPECT_EQ(plugin->initialize() == BERTFUSE_OK, log.empty());
    EXPECT_EQ(host.TakeLog(), log);
    return !log.empty();
  };
  EXPECT_FALSE(refused(whole));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(refused({whole.begin(), whole.begin() + static_cast<long>(size)})) << size;
  }
  const PluginPointer nothing = Dynamic(creator.deserializePlugin(nullptr, nullptr, 100));
  const PluginPointer copy(nothing->clone());
  const std::string said = host.TakeLog();
  EXPECT_EQ(said.find("bertfuse FusedAttention: what the engine keeps of the layer cannot be read"), 0u) << said;
  for (const PluginPointer* plugin : {&nothing, &copy}) {
    EXPECT_STREQ((*plugin)->getPluginType(), "FusedAttention");
    EXPECT_STREQ((*plugin)->getPluginVersion(), kPluginVersion);
    EXPECT_STREQ((*plugin)->getPluginNamespace(), kDomain);
    EXPECT_NE((*plugin)->enqueue(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), BERTFUSE_OK);
    EXPECT_EQ(host.TakeLog(), said);
  }
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<char> bytes = whole;
    for (int change = 0; change < 1 + round % 4; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    refused(bytes);
  }
}

// Calls as no TensorRT makes them: a code or a message, no crash.
TEST_F(V8, AskedWrongly) {
  const OpDef& op = *FindOp("FusedAttention");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  const PluginPointer plugin = Dynamic(Creator(host, op.name).createPlugin(nullptr, &example.fields.collection()));
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->getTensorRTVersion(), 3 << 24 | 8600);
  NarrowBuilder builder;
  for (int index : {-1, 1, 1000}) {
    EXPECT_EQ(plugin->getOutputDataType(index, nullptr, 0), abi::DataType::kFLOAT);
    EXPECT_EQ(plugin->getOutputDimensions(index, nullptr, 0, builder).nbDims, -1);
  }
  const abi8::PluginTensorDesc none[4] = {};
  for (int pos : {-1, 4, 1000}) EXPECT_FALSE(plugin->supportsFormatCombination(pos, none, 3, 1));
  const abi8::DynamicPluginTensorDesc nothing[4] = {};
  plugin->configurePlugin(nothing, 3, nothing, 0);
  EXPECT_NE(host.TakeLog(), "");
  EXPECT_NE(plugin->enqueue(none, none, nullptr, nullptr, nullptr, nullptr), 0);
}

}  // namespace
}  // namespace bertfuse::test::tensorrt::v8
