// A layer of any op, with sizes and attributes made from the op table.
#ifndef BERTFUSE_TESTS_TENSORRT_EXAMPLE_H_
#define BERTFUSE_TESTS_TENSORRT_EXAMPLE_H_

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/op_table.h"
#include "host.h"
#include "op_table.generated.h"

namespace bertfuse::test::tensorrt {

// Every input of the op's float forms.
inline uint32_t AllInputsOfFloatForms(const OpDef& op) {
  uint32_t inputs = 0;
  for (int i = 0; i < op.num_inputs; ++i) inputs |= (op.inputs[i].quantized ? 0u : 1u) << i;
  return inputs;
}

// Every attribute's value and the collection of them; attributes with a default are left out.
class ExampleFields {
 public:
  explicit ExampleFields(const OpDef& op) : values_(op.num_attributes) {
    for (int i = 0; i < op.num_attributes; ++i) {
      const AttrDef& attribute = op.attributes[i];
      SetDefault(attribute, &values_[i]);
      if (!attribute.required) continue;
      if (attribute.kind == AttrKind::kInt) {
        values_[i].i = 2;
        fields_.push_back({attribute.name, &values_[i].i, abi::PluginFieldType::kINT64, 1});
      } else if (attribute.kind == AttrKind::kFloat) {
        values_[i].f = static_cast<float>(std::clamp(0.125, attribute.minimum, attribute.maximum));
        fields_.push_back({attribute.name, &values_[i].f, abi::PluginFieldType::kFLOAT32, 1});
      } else {
        values_[i].s = attribute.choices[0];
        const auto length = static_cast<int32_t>(std::string(values_[i].s).size());
        fields_.push_back({attribute.name, values_[i].s, abi::PluginFieldType::kCHAR, length});
      }
    }
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
  }
  const abi::PluginFieldCollection& collection() const { return collection_; }
  const bertfuse_value* values() const { return values_.data(); }
  std::vector<abi::PluginField>& fields() { return fields_; }

  // The fields of a quantised form.
  void Tell(uint32_t given_inputs, int32_t weight_type, int32_t result_type) {
    Add("given_inputs", given_inputs);
    if (weight_type != BERTFUSE_ABSENT) Add("weight_type", weight_type);
    if (result_type != BERTFUSE_ABSENT) Add("result_type", result_type);
  }
  void Add(const char* name, int64_t value) {
    added_.push_back(value);
    fields_.push_back({name, &added_.back(), abi::PluginFieldType::kINT64, 1});
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
  }

 private:
  std::vector<bertfuse_value> values_;
  std::deque<int64_t> added_;
  std::vector<abi::PluginField> fields_;
  abi::PluginFieldCollection collection_;
};

// One layer: which of the op's inputs it has (bit i: input i) and the dtypes that T and I stand for; in a quantised
// form also those of W and Q, which may be absent.
struct Example {
  Example(const OpDef& op, uint32_t present, int32_t t, int32_t i, int32_t w = BERTFUSE_ABSENT,
          int32_t q = BERTFUSE_ABSENT)
      : op(op),
        present(present),
        dtypes{t, i, BERTFUSE_INT32, w == BERTFUSE_ABSENT ? t : w, BERTFUSE_FLOAT32, q},
        fields(op) {
    if (w != BERTFUSE_ABSENT || q != BERTFUSE_ABSENT) fields.Tell(present, w, q);
    // Sizes that weights fix are all different and even; the others are free.
    for (int tensor = 0; tensor < op.num_inputs; ++tensor) {
      for (int axis = 0; op.inputs[tensor].constant && axis < op.inputs[tensor].num_axes; ++axis) {
        const char* symbol = op.inputs[tensor].axes[axis].symbol;
        if (fixed.count(symbol) == 0) fixed[symbol] = 12 + 8 * static_cast<int64_t>(fixed.size());
      }
    }
    // In a head there is room for so many pairs, and heads have a bias in common.
    fixed["R"] = 4, fixed["G"] = fixed["I"] = fixed["J"] = 1;
    if (op.name == std::string(FusedGemmRotary::kName)) fixed["N"] = 6 * 2 * fixed["R"];  // two heads of each
    if (fixed.count("M") != 0) fixed["P"] = 2;  // vectors by distance: for Q and for K
  }

  // The shape of a tensor where the free sizes, leading axes first, are `batch` and `sequence`.
  std::vector<int64_t> ShapeOf(const TensorDef& tensor, int64_t batch, int64_t sequence) const {
    std::vector<int64_t> shape;
    if (tensor.leading) shape = {batch, sequence};
    for (int i = 0; i < tensor.num_axes; ++i) {
      const AxisDef& axis = tensor.axes[i];
      if (axis.value >= 0) {
        shape.push_back(MultiplierOf(axis, fields.values()) * fields.values()[axis.value].i);
        continue;
      }
      const auto found = fixed.find(axis.symbol);
      const std::string symbol = axis.symbol;
      const bool of_batch = symbol == "B" || symbol == "P" || symbol == "N";
      const int64_t size = found != fixed.end() ? found->second : of_batch ? batch : sequence;
      const int64_t divisor = axis.divisor < 0 ? 1 : fields.values()[axis.divisor].i;
      shape.push_back(MultiplierOf(axis, fields.values()) * size / divisor + axis.offset);
    }
    return shape;
  }

  static abi::Dims DimsOf(const std::vector<int64_t>& shape) {
    abi::Dims dims = {};
    dims.nbDims = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), dims.d);
    return dims;
  }

  // Whether the tensor has 8 bits, and so is int32 for TensorRT.
  bool IsOf8Bits(const TensorDef& tensor) const { return DtypeSize(DtypeOf(tensor)) == 1; }
  int32_t DtypeOf(const TensorDef& tensor) const { return dtypes[static_cast<int>(tensor.dtype)]; }

  // A tensor's shape as TensorRT has it.
  std::vector<int64_t> CrossingShapeOf(const TensorDef& tensor, std::vector<int64_t> shape) const {
    if (IsOf8Bits(tensor) && !shape.empty()) shape.back() /= 4;
    return shape;
  }

  // The layer's inputs' shapes at those sizes, as TensorRT has them.
  std::vector<abi::Dims> Shapes(int64_t batch, int64_t sequence) const {
    std::vector<abi::Dims> shapes;
    for (int i = 0; i < op.num_inputs; ++i) {
      if ((present >> i & 1) == 0) continue;
      shapes.push_back(DimsOf(CrossingShapeOf(op.inputs[i], ShapeOf(op.inputs[i], batch, sequence))));
    }
    return shapes;
  }

  // The layer's inputs with the profile 1×1, 2×8, 4×16.
  std::vector<Input> Inputs() const {
    const auto low = Shapes(1, 1), usual = Shapes(2, 8), high = Shapes(4, 16);
    std::vector<Input> inputs;
    for (int i = 0, place = 0; i < op.num_inputs; ++i) {
      if ((present >> i & 1) == 0) continue;
      // Where the fields say which inputs are there, counts are known as such.
      const bool own_type = op.inputs[i].dtype == Variable::kS || IsOf8Bits(op.inputs[i]) ||
                            (op.inputs[i].dtype == Variable::kC && (present & ~AllInputsOfFloatForms(op)) != 0);
      inputs.push_back({TypeOf(op.inputs[i]), low[place], usual[place], high[place], own_type});
      ++place;
    }
    return inputs;
  }

  // What the op table says comes out.
  std::vector<bertfuse_tensor> Outputs(int64_t batch, int64_t sequence) const {
    std::vector<bertfuse_tensor> inputs(op.num_inputs), outputs(op.num_outputs + op.num_quantized_outputs);
    for (int i = 0; i < op.num_inputs; ++i) {
      if ((present >> i & 1) == 0) continue;
      const auto shape = ShapeOf(op.inputs[i], batch, sequence);
      inputs[i].dtype = DtypeOf(op.inputs[i]);
      inputs[i].rank = static_cast<int32_t>(shape.size());
      std::copy(shape.begin(), shape.end(), inputs[i].shape);
    }
    outputs.resize(InferOutputs(op, inputs.data(), fields.values(), outputs.data()));
    return outputs;
  }

  abi::DataType TypeOf(const TensorDef& tensor) const {
    switch (DtypeOf(tensor)) {
      case BERTFUSE_FLOAT16:
        return abi::DataType::kHALF;
      case BERTFUSE_BFLOAT16:
        return abi::DataType::kBF16;
      case BERTFUSE_INT32:
      case BERTFUSE_INT8:
      case BERTFUSE_FLOAT8E4M3FN:
        return abi::DataType::kINT32;
      case BERTFUSE_INT64:
        return abi::DataType::kINT64;
      default:
        return abi::DataType::kFLOAT;
    }
  }

  const OpDef& op;
  uint32_t present;
  int32_t dtypes[kNumVariables];
  ExampleFields fields;
  std::map<std::string, int64_t> fixed;
};

// Every set of inputs that the op can have.
inline std::vector<uint32_t> Readings(const OpDef& op) {
  std::vector<uint32_t> readings;
  for (uint32_t present = 0; present < (1u << op.num_inputs); ++present) {
    bool complete = true;
    for (int i = 0; i < op.num_inputs; ++i) {
      const bool there = (present >> i & 1) != 0;
      complete &= there ? !op.inputs[i].quantized : op.inputs[i].optional;
      complete &= !there || op.inputs[i].needs < 0 || (present >> op.inputs[i].needs & 1) != 0;
    }
    if (complete) readings.push_back(present);
  }
  return readings;
}

// Whether the op has quantised forms.
inline bool IsQuantizable(const OpDef& op) { return AllInputsOfFloatForms(op) != (1u << op.num_inputs) - 1; }

// One of the op's quantised forms, drawn: any inputs that go together, types of 8 bits that the CPU has kernels for.
inline Example DrawQuantized(const OpDef& op, std::mt19937& random) {
  const auto pick = [&](const auto& list) { return *(std::begin(list) + random() % std::size(list)); };
  const auto one_of = [&](Variable variable) {
    const DtypeList list = DtypesOf(variable);
    return list.first[random() % static_cast<uint32_t>(list.count)];
  };
  while (true) {
    const int32_t weight_type = Uses(op, Variable::kW) ? pick(kQuantizedDtypes) : BERTFUSE_ABSENT;
    const bool words = weight_type != BERTFUSE_ABSENT && op.inputs[0].dtype == Variable::kI;
    if (words && weight_type != BERTFUSE_INT8) continue;  // there are no tables of words of 8-bit floats
    uint32_t present = 0;
    for (int i = 0; i < op.num_inputs; ++i) present |= (!op.inputs[i].optional || random() % 2 == 0 ? 1u : 0u) << i;
    bool weight = false, result = false, fits = true;
    for (int i = 0; i < op.num_inputs; ++i) {
      const TensorDef& tensor = op.inputs[i];
      const bool there = (present >> i & 1) != 0;
      if (there && tensor.needs >= 0) fits &= (present >> tensor.needs & 1) != 0;
      result |= there && tensor.dtype == Variable::kQ;
      const bool of_weight = tensor.scales >= 0 && op.inputs[tensor.scales].dtype == Variable::kW;
      // Scales of an x in 8 bits are there as it is.
      if (of_weight && op.inputs[tensor.scales].optional) fits &= there == ((present >> tensor.scales & 1) != 0);
      weight |= there && of_weight;
      // Neither goes with 8-bit floats.
      const std::string name = tensor.name;
      fits &= !there || weight_type == BERTFUSE_INT8 || (name != "x_zero" && name != "x_compensation");
    }
    if (!fits || !(weight || result)) continue;
    const int32_t t = one_of(Variable::kT);
    Example example(op, present, t, one_of(Variable::kI), weight ? weight_type : static_cast<int32_t>(BERTFUSE_ABSENT),
                    result ? pick(kQuantizedDtypes) : static_cast<int32_t>(BERTFUSE_ABSENT));
    if (random() % 2 == 0) example.fields.Add("element_type", t);
    return example;
  }
}

// Every input of the op's padded form.
inline uint32_t AllInputs(const OpDef& op) {
  uint32_t present = 0;
  for (int i = 0; i < op.num_inputs; ++i) present |= (op.inputs[i].packed || op.inputs[i].quantized ? 0u : 1u) << i;
  return present;
}

// What `body` throws, "" if nothing.
template <class Body>
std::string Thrown(Body&& body) {
  try {
    body();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace bertfuse::test::tensorrt
#endif  // BERTFUSE_TESTS_TENSORRT_EXAMPLE_H_
