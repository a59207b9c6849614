// A layer of any op, with sizes and attributes made from the op table.
#ifndef BERTFUSE_TESTS_TENSORRT_EXAMPLE_H_
#define BERTFUSE_TESTS_TENSORRT_EXAMPLE_H_

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "core/op_table.h"
#include "host.h"
#include "op_table.generated.h"

namespace bertfuse::test::tensorrt {

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

 private:
  std::vector<bertfuse_value> values_;
  std::vector<abi::PluginField> fields_;
  abi::PluginFieldCollection collection_;
};

// One layer: which of the op's inputs it has (bit i: input i) and the dtypes that T and I stand for.
struct Example {
  Example(const OpDef& op, uint32_t present, int32_t t, int32_t i)
      : op(op), present(present), dtypes{t, i, BERTFUSE_INT32, t, BERTFUSE_FLOAT32}, fields(op) {
    // Sizes that weights fix are all different and even; the others are free.
    for (int tensor = 0; tensor < op.num_inputs; ++tensor) {
      for (int axis = 0; op.inputs[tensor].constant && axis < op.inputs[tensor].num_axes; ++axis) {
        const char* symbol = op.inputs[tensor].axes[axis].symbol;
        if (fixed.count(symbol) == 0) fixed[symbol] = 12 + 8 * static_cast<int64_t>(fixed.size());
      }
    }
    // In a head there is room for so many pairs, and heads have a bias in common.
    fixed["R"] = 4, fixed["G"] = fixed["J"] = 1;
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

  // The layer's inputs' shapes at those sizes.
  std::vector<abi::Dims> Shapes(int64_t batch, int64_t sequence) const {
    std::vector<abi::Dims> shapes;
    for (int i = 0; i < op.num_inputs; ++i) {
      if (present >> i & 1) shapes.push_back(DimsOf(ShapeOf(op.inputs[i], batch, sequence)));
    }
    return shapes;
  }

  // The layer's inputs with the profile 1×1, 2×8, 4×16.
  std::vector<Input> Inputs() const {
    const auto low = Shapes(1, 1), usual = Shapes(2, 8), high = Shapes(4, 16);
    std::vector<Input> inputs;
    for (int i = 0, place = 0; i < op.num_inputs; ++i) {
      if ((present >> i & 1) == 0) continue;
      const bool own_type = op.inputs[i].dtype == Variable::kS;
      inputs.push_back({TypeOf(op.inputs[i]), low[place], usual[place], high[place], own_type});
      ++place;
    }
    return inputs;
  }

  // What the op table says comes out.
  std::vector<bertfuse_tensor> Outputs(int64_t batch, int64_t sequence) const {
    std::vector<bertfuse_tensor> inputs(op.num_inputs), outputs(op.num_outputs);
    for (int i = 0; i < op.num_inputs; ++i) {
      if ((present >> i & 1) == 0) continue;
      const auto shape = ShapeOf(op.inputs[i], batch, sequence);
      inputs[i].dtype = dtypes[static_cast<int>(op.inputs[i].dtype)];
      inputs[i].rank = static_cast<int32_t>(shape.size());
      std::copy(shape.begin(), shape.end(), inputs[i].shape);
    }
    InferOutputs(op, inputs.data(), fields.values(), outputs.data());
    return outputs;
  }

  abi::DataType TypeOf(const TensorDef& tensor) const {
    switch (dtypes[static_cast<int>(tensor.dtype)]) {
      case BERTFUSE_FLOAT16:
        return abi::DataType::kHALF;
      case BERTFUSE_BFLOAT16:
        return abi::DataType::kBF16;
      case BERTFUSE_INT32:
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
