// Quantised forms of layers, drawn at random: built, serialised and executed as any other, with what is of 8 bits in
// int32; and fields, shapes and types that do not make one.
#include <algorithm>
#include <random>

#include "execution.h"
#include "tensorrt/workspace.h"

namespace bertfuse::test::tensorrt {
namespace {

template <class Interface>
class Quantized : public Execution<Interface> {
 protected:
  // body(op, random) for each op that has quantised forms, so many times.
  template <class Body>
  void EachDraw(int draws, Body&& body) {
    const uint32_t seed = std::random_device()();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    for (const OpDef& op : AllOps()) {
      for (int draw = 0; IsQuantizable(op) && draw < draws; ++draw) {
        const Example example = DrawQuantized(op, random);
        SCOPED_TRACE(std::string(op.name) + " with inputs " + std::to_string(example.present) + " of " +
                     DtypeName(example.dtypes[0]) + ", weight " + DtypeName(example.dtypes[3]) + ", result " +
                     DtypeName(example.dtypes[5]));
        body(example, random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  static std::pair<int64_t, int64_t> DrawSizes(std::mt19937& random) { return {1 + random() % 4, 1 + random() % 16}; }

  typename Execution<Interface>::Engine Build(const Example& example) {
    return {this->host, example.op.name, example.fields.collection(), example.Inputs()};
  }
};
TYPED_TEST_SUITE(Quantized, Interfaces, );

TYPED_TEST(Quantized, OutputsAreWhatTheOpTableSays) {
  this->EachDraw(50, [&](const Example& example, std::mt19937& random) {
    const auto engine = this->Build(example);
    const auto [batch, sequence] = this->DrawSizes(random);
    const auto expected = example.Outputs(batch, sequence);
    const auto shapes = engine.OutputShapes(example.Shapes(batch, sequence));
    ASSERT_EQ(shapes.size(), expected.size());
    for (size_t o = 0; o < expected.size(); ++o) {
      const TensorDef& def = example.op.outputs[o];
      EXPECT_EQ(engine.output_types()[o], example.TypeOf(def)) << def.name;
      const std::vector<int64_t> shape(shapes[o].d, shapes[o].d + shapes[o].nbDims);
      const std::vector<int64_t> whole(expected[o].shape, expected[o].shape + expected[o].rank);
      EXPECT_EQ(shape, example.CrossingShapeOf(def, whole)) << def.name;
    }
  });
}

TYPED_TEST(Quantized, GivesWhatTheKernelGives) {
  this->EachDraw(30, [&](const Example& example, std::mt19937& random) {
    auto engine = this->Build(example);
    typename TestFixture::Context context(engine, nullptr);
    for (int run = 0; run < 3; ++run) {
      const auto [batch, sequence] = this->DrawSizes(random);
      Tensors tensors(example, batch, sequence);
      const auto direct = tensors.Direct(example);
      EXPECT_NE(direct, tensors.Poisoned());
      EXPECT_EQ(Execute(engine, context, tensors), direct) << batch << " x " << sequence;
    }
  });
}

// Columns that TensorRT lost track of are those of the weight, which is constant.
TYPED_TEST(Quantized, BoundsAreNarrowedByWeights) {
  this->EachDraw(20, [&](const Example& example, std::mt19937& random) {
    if (example.op.inputs[1].dtype != Variable::kW || example.op.inputs[0].dtype != Variable::kT) return;
    auto inputs = example.Inputs();
    const int32_t last = inputs[0].max.nbDims - 1;
    inputs[0].min.d[last] = 1 + random() % static_cast<uint32_t>(inputs[0].min.d[last]);
    inputs[0].max.d[last] += random() % 1000;
    EXPECT_EQ(
        Thrown([&] { typename TestFixture::Engine(this->host, example.op.name, example.fields.collection(), inputs); }),
        "");
  });
}

// A tensor of 8 bits with a type or a size that it cannot have, and one input too many or too few, are named.
TYPED_TEST(Quantized, WrongInputsAreNamed) {
  const auto refused = [&](const Example& example, const std::vector<Input>& inputs) {
    return Thrown(
        [&] { typename TestFixture::Engine(this->host, example.op.name, example.fields.collection(), inputs); });
  };
  this->EachDraw(20, [&](const Example& example, std::mt19937& random) {
    std::vector<int> of_8_bits, names;
    for (int i = 0, place = 0; i < example.op.num_inputs; ++i) {
      if ((example.present >> i & 1) == 0) continue;
      if (example.IsOf8Bits(example.op.inputs[i])) of_8_bits.push_back(place), names.push_back(i);
      ++place;
    }
    const size_t one = random() % of_8_bits.size();
    const std::string name = std::string("'") + example.op.inputs[names[one]].name + "'";
    auto inputs = example.Inputs();
    Input& input = inputs[of_8_bits[one]];
    const abi::DataType types[] = {abi::DataType::kINT8, abi::DataType::kFLOAT, abi::DataType::kHALF,
                                   abi::DataType::kINT64, abi::DataType::kFP8};
    input.type = types[random() % std::size(types)];
    const std::string type = refused(example, inputs);
    EXPECT_NE(type.find("input " + name + " is "), std::string::npos) << type;
    EXPECT_NE(type.find("expected int32"), std::string::npos) << type;
    inputs = example.Inputs();
    if (random() % 2 == 0) {
      inputs.pop_back();
    } else {
      inputs.push_back(inputs[random() % inputs.size()]);
    }
    const std::string number = refused(example, inputs);
    EXPECT_NE(number.find(" inputs, expected "), std::string::npos) << number;
    inputs = example.Inputs();
    const int rank = inputs[of_8_bits[one]].max.nbDims;
    if (rank < 1) return;
    Input& resized = inputs[of_8_bits[one]];
    const int64_t more = 1 + random() % 1000;
    for (abi::Dims* dims : {&resized.min, &resized.opt, &resized.max}) dims->d[rank - 1] += more;
    const std::string size = refused(example, inputs);
    const std::string columns = std::to_string(4 * resized.max.d[rank - 1]);
    EXPECT_NE(size.find(name), std::string::npos) << size;
    EXPECT_NE(size.find(columns), std::string::npos) << size;
    EXPECT_NE(size.find(", expected "), std::string::npos) << size;
  });
}

TYPED_TEST(Quantized, ResultsThatDoNotFillInt32AreNamed) {
  const OpDef& op = *FindOp("FusedAttention");
  for (const int64_t size : {1, 2, 3, 5}) {
    Example example(op, (1u << op.num_inputs) - 1 - (1u << 3), BERTFUSE_FLOAT16, BERTFUSE_INT32, BERTFUSE_ABSENT,
                    BERTFUSE_INT8);  // padded
    example.fixed["H"] = 2 * size;
    const std::string message = Thrown([&] { this->Build(example); });
    if (2 * size % 4 == 0) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_NE(message.find("output 'y_quantized' has " + std::to_string(2 * size) + " columns, expected a multiple"),
                std::string::npos)
          << message;
    }
  }
}

using QuantizedFields = Quantized<V10>;

// The fields that are wrong, by what they say: inputs of the op, with all that are not optional and all that another
// one needs; a type of 8 bits for a weight whose scales are there, and for a result whose zero point is, else none.
// Wrong inputs tell nothing of the types.
std::vector<std::string> WrongFields(const OpDef& op, int64_t given, int64_t weight_type, int64_t result_type) {
  const auto has = [&](int input) { return (given >> input & 1) != 0; };
  bool weight = false, result = false;
  if (given < 0 || given >> op.num_inputs != 0) return {"given_inputs"};
  for (int i = 0; given != 0 && i < op.num_inputs; ++i) {
    const TensorDef& tensor = op.inputs[i];
    if (has(i) ? tensor.needs >= 0 && !has(tensor.needs) : !tensor.optional) return {"given_inputs"};
    if (!has(i)) continue;
    weight |= tensor.scales >= 0 && op.inputs[tensor.scales].dtype == Variable::kW;
    result |= tensor.dtype == Variable::kQ;
  }
  const auto is_wrong = [](bool wanted, int64_t type) { return wanted ? type != 3 && type != 17 : type != 0; };
  std::vector<std::string> wrong;
  if (is_wrong(weight, weight_type)) wrong.push_back("weight_type");
  if (is_wrong(result, result_type)) wrong.push_back("result_type");
  return wrong;
}

// Masks and types, drawn: a plugin where WrongFields() has none, or none and a message with the op and one of them.
TEST_F(QuantizedFields, AtRandom) {
  int made = 0, refused = 0;
  this->EachDraw(300, [&](const Example& example, std::mt19937& random) {
    const int64_t types[] = {0, 1, 3, 10, 16, 17, -1, 6, INT64_MAX, int64_t{1} << 32 | 3};
    ExampleFields fields(example.op);
    const auto some = [&](int64_t right) { return random() % 3 == 0 ? types[random() % std::size(types)] : right; };
    const int64_t flipped = example.present ^ (uint64_t{1} << random() % (example.op.num_inputs + 2));
    const int64_t given = random() % 4 == 0   ? flipped
                          : random() % 8 == 0 ? types[random() % std::size(types)]
                                              : example.present;
    const bool weight = IsQuantized(example.dtypes[3]);
    const auto add = [&](const char* name, int64_t value) -> int64_t {
      if (random() % 8 == 0) return 0;
      fields.Add(name, value);
      return value;
    };
    const int64_t inputs = add("given_inputs", given);
    const int64_t weight_type = add("weight_type", some(weight ? example.dtypes[3] : 0));
    const int64_t result_type = add("result_type", some(example.dtypes[5]));
    const std::vector<std::string> wrong = WrongFields(example.op, inputs, weight_type, result_type);
    const auto create = [&](const abi::PluginFieldCollection& collection, abi::TensorRTPhase phase) {
      return PluginPointer(host.Creator(example.op.name).createPlugin("l", &collection, phase));
    };
    const PluginPointer plugin = create(fields.collection(), abi::TensorRTPhase::kBUILD);
    const std::string log = host.TakeLog();
    ASSERT_EQ(plugin == nullptr, !log.empty()) << log;
    ASSERT_EQ(plugin == nullptr, !wrong.empty())
        << "inputs " << inputs << ", types " << weight_type << " and " << result_type << "; " << log;
    if (plugin == nullptr) {
      ++refused;
      const bool named = std::any_of(wrong.begin(), wrong.end(), [&](const std::string& field) {
        return log.find(std::string(example.op.name) + ": field '" + field + "'") != std::string::npos;
      });
      EXPECT_TRUE(named) << log;
      return;
    }
    ++made;
    auto& build = CapabilityOf<abi::IPluginV3OneBuild>(*plugin, abi::PluginCapabilityType::kBUILD);
    const std::string text = build.getMetadataString();
    for (const std::string field : {"weight_type=", "result_type="}) {
      const size_t at = text.find(field);
      if (at == std::string::npos) continue;
      const std::string type = text.substr(at + field.size(), text.find(',', at) - at - field.size());
      EXPECT_TRUE(type == "3" || type == "17") << text;
    }
    int outputs = example.op.num_outputs;  // a residual in 8 bits has a type, too, and no outputs
    for (int i = 0; i < example.op.num_quantized_outputs; ++i) {
      const int needed = example.op.outputs[example.op.num_outputs + i].needs;
      outputs += static_cast<int>(static_cast<uint64_t>(inputs) >> needed & 1);
    }
    EXPECT_EQ(build.getNbOutputs(), outputs) << text;
    auto& runtime = CapabilityOf<abi::IPluginV3OneRuntime>(*plugin, abi::PluginCapabilityType::kRUNTIME);
    const OwnedFields kept(*runtime.getFieldsToSerialize());
    EXPECT_NE(create(*kept.collection(), abi::TensorRTPhase::kRUNTIME), nullptr) << host.TakeLog();
  });
  EXPECT_GT(made, 100);
  EXPECT_GT(refused, 100);
}

// An engine's inputs are those that its fields give; without such fields none is quantised.
TEST_F(QuantizedFields, AnEngineAgreesWithThem) {
  this->EachDraw(20, [&](const Example& example, std::mt19937& random) {
    auto engine = this->Build(example);
    const abi::PluginFieldCollection& kept = engine.serialized();
    std::vector<abi::PluginField> fields(kept.fields, kept.fields + kept.nbFields);
    const auto create = [&] {
      const abi::PluginFieldCollection collection = {static_cast<int32_t>(fields.size()), fields.data()};
      return PluginPointer(host.Creator(example.op.name).createPlugin("l", &collection, abi::TensorRTPhase::kRUNTIME));
    };
    EXPECT_NE(create(), nullptr) << host.TakeLog();
    const bool without = random() % 2 == 0;
    int64_t other = AllInputs(example.op);
    const auto is = [](const char* name) {
      return [name](const abi::PluginField& field) { return std::string(field.name) == name; };
    };
    if (without) {
      for (const char* name : {"given_inputs", "weight_type", "result_type"}) {
        fields.erase(std::remove_if(fields.begin(), fields.end(), is(name)), fields.end());
      }
    } else {
      std::find_if(fields.begin(), fields.end(), is("present_inputs"))->data = &other;
    }
    EXPECT_EQ(create(), nullptr);
    const std::string log = host.TakeLog();
    EXPECT_NE(log.find("field 'present_inputs' is missing or names inputs"), std::string::npos) << log;
  });
}

// Where no kernel can be asked, there is room for an x that it rounds: 8 bits an element, and a scale for each row.
TEST_F(QuantizedFields, WorkspaceHasRoomForARoundedX) {
  this->EachDraw(20, [&](const Example& example, std::mt19937&) {
    if (example.op.name != std::string("FusedGemm")) return;
    std::vector<abi::DynamicPluginTensorDesc> tensors;
    const auto add = [&](abi::DataType type, const abi::Dims& dims) {
      tensors.push_back({{dims, type, abi::TensorFormat::kLINEAR, 1.0f}, dims, dims, dims});
    };
    for (const Input& input : example.Inputs()) add(input.type, input.max);
    const auto inputs = static_cast<int>(tensors.size());
    add(example.TypeOf(example.op.outputs[0]), Example::DimsOf(example.ShapeOf(example.op.outputs[0], 4, 16)));
    const bertfuse::tensorrt::Form form = {example.present, example.dtypes[3]};
    const size_t bytes = bertfuse::tensorrt::WorkspaceFor(example.op, nullptr, -1, example.fields.values(), form,
                                                          {tensors.data(), inputs, tensors.data() + inputs});
    const auto rows = size_t{4 * 16}, columns = static_cast<size_t>(example.fixed.at("K"));
    const size_t sums = 4 * sizeof(float) * rows * static_cast<size_t>(example.fixed.at("N"));
    const auto aligned = [](size_t size) { return (size + 255) / 256 * 256; };
    if ((example.present >> FusedGemm::In::x_quantized & 1) != 0) {
      EXPECT_EQ(bytes, sums);
    } else {
      EXPECT_GE(bytes, sums + aligned(rows * columns) + aligned(rows * sizeof(float)));
    }
  });
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
