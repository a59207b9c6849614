// Attributes as plugin fields: what is taken, what is refused with the field's name, and nothing that crashes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "example.h"

namespace bertfuse::test::tensorrt {
namespace {

using Type = abi::PluginFieldType;

class Fields : public ::testing::Test {
 protected:
  // What a plugin of these fields says of itself; where there is none, what was logged.
  std::string Create(const char* op, std::vector<abi::PluginField> fields,
                     abi::TensorRTPhase phase = abi::TensorRTPhase::kBUILD) {
    const abi::PluginFieldCollection collection = {static_cast<int32_t>(fields.size()), fields.data()};
    const PluginPointer plugin(host.Creator(op).createPlugin("l", &collection, phase));
    const std::string log = host.TakeLog();
    EXPECT_EQ(plugin == nullptr, !log.empty());
    if (plugin == nullptr) return log;
    return CapabilityOf<abi::IPluginV3OneBuild>(*plugin, abi::PluginCapabilityType::kBUILD).getMetadataString();
  }
  void Refused(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
  }

  Host host{BERTFUSE_TRT_LIBRARY};
  int32_t heads32 = 12;
  int64_t heads = 12;
  float scale = 0.125f;
  abi::PluginField num_heads_field = {"num_heads", &heads, Type::kINT64, 1};
  abi::PluginField scale_field = {"scale", &scale, Type::kFLOAT32, 1};
};

TEST_F(Fields, AsTheParserGivesThem) {
  EXPECT_EQ(Create("FusedAttention", {{"num_heads", &heads32, Type::kINT32, 1}, scale_field}),
            "num_heads=12, scale=0.125");
  EXPECT_EQ(Create("FusedGemmGelu", {{"approximate", "tanh", Type::kCHAR, 4}}), "approximate=tanh");
  EXPECT_EQ(Create("FusedGemmGelu", {{"approximate", "tanh", Type::kCHAR, 5}}), "approximate=tanh");
  EXPECT_EQ(Create("FusedGemmGelu", {}), "approximate=none");
  const double wide = 0.25;
  EXPECT_EQ(Create("FusedAttention", {num_heads_field, {"scale", &wide, Type::kFLOAT64, 1}}),
            "num_heads=12, scale=0.25");
  EXPECT_EQ(Create("FusedAttention", {scale_field, num_heads_field}), "num_heads=12, scale=0.125");
  const PluginPointer plugin(host.Creator("FusedGemmGelu").createPlugin("l", nullptr, abi::TensorRTPhase::kBUILD));
  EXPECT_NE(plugin, nullptr);
}

TEST_F(Fields, RefusedByName) {
  Refused(Create("FusedAttention", {scale_field}), "FusedAttention: attribute 'num_heads' is missing (an int)");
  Refused(Create("FusedAttention", {{"num_heads", &scale, Type::kFLOAT32, 1}, scale_field}),
          "field 'num_heads' is float32 (1), expected an int");
  Refused(Create("FusedAttention", {num_heads_field, {"scale", &heads, Type::kINT64, 1}}),
          "field 'scale' is int64 (10), expected a float");
  Refused(Create("FusedGemmGelu", {{"approximate", &heads, Type::kINT64, 1}}),
          "field 'approximate' is int64 (10), expected a string");
  Refused(Create("FusedAttention", {{"num_heads", &heads, Type::kDIMS, 1}, scale_field}), "field 'num_heads' is dims");
  Refused(Create("FusedAttention", {{"num_heads", &heads, static_cast<Type>(99), 1}, scale_field}),
          "field 'num_heads' is of an unknown type (99)");
  Refused(Create("FusedAttention", {{"num_heads", &heads, Type::kINT64, 2}, scale_field}),
          "field 'num_heads' has length 2, expected 1");
  Refused(Create("FusedAttention", {{"num_heads", nullptr, Type::kINT64, 1}, scale_field}),
          "field 'num_heads' has no data");
  Refused(Create("FusedAttention", {num_heads_field, num_heads_field, scale_field}),
          "field 'num_heads' is given twice");
  Refused(Create("FusedAttention", {num_heads_field, scale_field, {"scael", &scale, Type::kFLOAT32, 1}}),
          "field 'scael' is none of the op's attributes");
  Refused(Create("FusedAttention", {{nullptr, &heads, Type::kINT64, 1}}), "field 0 has no name");
  Refused(Create("FusedGemmGelu", {{"approximate", "sigmoid", Type::kCHAR, 7}}),
          "attribute 'approximate' is 'sigmoid', expected 'none' or 'tanh'");
  Refused(Create("FusedGemmGelu", {{"approximate", "tanhh", Type::kCHAR, -1}}), "field 'approximate' has length -1");
  Refused(Create("FusedGemmGelu", {{"approximate", "", Type::kCHAR, 1 << 30}}), "field 'approximate' has length");
  heads = 0;
  Refused(Create("FusedAttention", {num_heads_field, scale_field}), "attribute 'num_heads' is 0, expected 1");
  heads = 12;
  for (float bad : {-1.0f, NAN, INFINITY, -INFINITY}) {
    scale = bad;
    Refused(Create("FusedAttention", {num_heads_field, scale_field}), "attribute 'scale' is ");
  }
}

TEST_F(Fields, ConstantInputsMayBeNamed) {
  const int num_inputs = FindOp("FusedGemmGelu")->num_inputs;
  const int32_t weights = 6;
  const int64_t wide = 6, none = 0, negative = -1, beyond = int64_t{1} << num_inputs, far = int64_t{1} << 40;
  const auto create = [&](const void* bits, Type type) {
    return Create("FusedGemmGelu", {{"constant_inputs", bits, type, 1}});
  };
  EXPECT_EQ(create(&weights, Type::kINT32), "approximate=none, constant_inputs=6");
  EXPECT_EQ(create(&wide, Type::kINT64), "approximate=none, constant_inputs=6");
  EXPECT_EQ(create(&none, Type::kINT64), "approximate=none");
  for (const int64_t* wrong : {&negative, &beyond, &far}) {
    Refused(create(wrong, Type::kINT64), ", expected a bit for each of " + std::to_string(num_inputs) + " inputs");
  }
  Refused(create(&scale, Type::kFLOAT32), "field 'constant_inputs' is float32 (1), expected an int");
}

TEST_F(Fields, CollectionsThatAreNowhere) {
  for (int32_t count : {-1, 1, 1 << 30}) {
    const abi::PluginFieldCollection nowhere = {count, nullptr};
    for (auto phase : {abi::TensorRTPhase::kBUILD, abi::TensorRTPhase::kRUNTIME}) {
      const PluginPointer plugin(host.Creator("FusedGemmGelu").createPlugin("l", &nowhere, phase));
      EXPECT_EQ(plugin, nullptr);
      Refused(host.TakeLog(), "fields that are nowhere");
    }
  }
}

TEST_F(Fields, AnEngineKeepsMoreThanAttributes) {
  const int64_t present = 7, workspace = 1024, hole = 5, beyond = 1 << 20, negative = -1;
  const auto create = [&](std::vector<abi::PluginField> fields) {
    fields.insert(fields.end(), {num_heads_field, scale_field});
    return Create("FusedAttention", fields, abi::TensorRTPhase::kRUNTIME);
  };
  const abi::PluginField good_present = {"present_inputs", &present, Type::kINT64, 1};
  const abi::PluginField good_workspace = {"workspace_bytes", &workspace, Type::kINT64, 1};
  EXPECT_EQ(create({good_present, good_workspace}), "num_heads=12, scale=0.125");
  Refused(create({good_workspace}), "field 'present_inputs' is missing");
  Refused(create({good_present}), "field 'workspace_bytes' is missing");
  for (const int64_t* wrong : {&hole, &beyond, &negative}) {
    Refused(create({{"present_inputs", wrong, Type::kINT64, 1}, good_workspace}),
            "names inputs that the op cannot have");
  }
  Refused(create({good_present, {"workspace_bytes", &negative, Type::kINT64, 1}}),
          "'workspace_bytes' is missing or neg");
  Refused(create({good_present, {"workspace_bytes", &workspace, Type::kINT32, 1}}), "expected one int64");
  Refused(create({good_present, {"workspace_bytes", nullptr, Type::kINT64, 1}}), "expected one int64");
  Refused(Create("FusedAttention", {num_heads_field, scale_field, good_present}), "is none of the op's attributes");
}

// Fields at random, most of them nearly right: a plugin whose attributes are in range, or none and a message.
TEST_F(Fields, AtRandom) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t count) { return random() % count; };
  const char* names[] = {"num_heads",      "scale",           "epsilon",         "approximate",
                         "present_inputs", "workspace_bytes", "constant_inputs", "x"};
  const int64_t integers[] = {0, 1, -1, 12, 7, INT32_MAX, INT64_MIN, INT64_MAX};
  const double doubles[] = {0.0, 1.0, 1e-12, -1.0, 1e308, NAN, INFINITY, 0.125};
  const float floats[] = {0.0f, 1.0f, 1e-12f, -1.0f, 1e38f, NAN, INFINITY, 0.125f};
  const char* strings[] = {"none", "tanh", "", "Tanh", "none\0x", "\xff\xfe", "a string that is too long for a name"};
  int made = 0;
  for (int round = 0; round < 20000; ++round) {
    const OpDef& op = AllOps().first[below(static_cast<uint32_t>(AllOps().count))];
    ExampleFields right(op);
    std::vector<abi::PluginField> fields = below(4) == 0 ? std::vector<abi::PluginField>() : right.fields();
    for (uint32_t extra = below(4); extra > 0; --extra) {
      const auto type = static_cast<Type>(below(16));
      abi::PluginField field = {names[below(8)], &integers[below(8)], type, 1};
      if (type == Type::kFLOAT32) field.data = &floats[below(8)];
      if (type == Type::kFLOAT64) field.data = &doubles[below(8)];
      if (type == Type::kCHAR) {
        field.data = strings[below(7)];
        field.length = static_cast<int32_t>(std::strlen(static_cast<const char*>(field.data))) + (below(2) ? 1 : 0);
      }
      if (below(16) == 0) field.data = nullptr;
      if (below(16) == 0) field.length = below(2) ? 0 : -static_cast<int32_t>(below(100));
      if (below(32) == 0) field.name = nullptr;
      if (below(3) == 0 && !fields.empty()) {
        fields[below(static_cast<uint32_t>(fields.size()))] = field;
      } else {
        fields.push_back(field);
      }
    }
    const abi::PluginFieldCollection collection = {static_cast<int32_t>(fields.size()), fields.data()};
    const auto phase = static_cast<abi::TensorRTPhase>(below(2));
    const PluginPointer plugin(host.Creator(op.name).createPlugin(below(8) ? "l" : nullptr, &collection, phase));
    const std::string log = host.TakeLog();
    ASSERT_EQ(plugin == nullptr, !log.empty()) << log;
    if (plugin == nullptr) {
      ASSERT_NE(log.find(op.name), std::string::npos) << log;
      continue;
    }
    ++made;
    const PluginPointer copy(plugin->clone());
    auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(*copy, abi::PluginCapabilityType::kRUNTIME);
    const OwnedFields kept(*runtime.getFieldsToSerialize());
    const PluginPointer again(host.Creator(op.name).createPlugin("l", kept.collection(), abi::TensorRTPhase::kRUNTIME));
    ASSERT_NE(again, nullptr) << host.TakeLog();
  }
  EXPECT_GT(made, 1000);
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
