#include "core/op_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "core/dtype.h"
#include "core/status.h"
#include "op_table.generated.h"

namespace bertfuse {
namespace {

std::string JoinChoices(const AttrDef& attribute) {
  std::string text;
  for (int i = 0; i < attribute.num_choices; ++i) {
    text += i == 0 ? "'" : i + 1 == attribute.num_choices ? " or '" : ", '";
    text += std::string(attribute.choices[i]) + "'";
  }
  return text;
}

void CheckRange(const OpDef& op, const AttrDef& attribute, double value) {
  // Written so that NaN fails.
  if (value >= attribute.minimum && value <= attribute.maximum) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute '%s' is %.9g, expected %.9g to %.9g", op.name, attribute.name, value,
       attribute.minimum, attribute.maximum);
}

void CheckChoice(const OpDef& op, const AttrDef& attribute, const char* value) {
  if (attribute.num_choices == 0) return;
  for (int i = 0; i < attribute.num_choices; ++i) {
    if (std::strcmp(attribute.choices[i], value) == 0) return;
  }
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute '%s' is '%.64s', expected %s", op.name, attribute.name, value,
       JoinChoices(attribute).c_str());
}

DimList ShapeOf(const OpDef& op, const TensorDef& def, const char* role, const bertfuse_tensor& tensor) {
  if (tensor.rank < 0 || tensor.rank > BERTFUSE_MAX_RANK) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' has rank %d, expected at most %d", op.name, role, def.name,
         tensor.rank, BERTFUSE_MAX_RANK);
  }
  DimList shape;
  shape.rank = tensor.rank;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' axis %d is %lld, expected a size", op.name, role, def.name, i,
           static_cast<long long>(tensor.shape[i]));
    }
    shape.dims[i].size = tensor.shape[i];
  }
  return shape;
}

// A required input that is missing, or one that another needs.
void CheckPresence(const OpDef& op, const bertfuse_tensor* inputs) {
  for (int i = 0; i < op.num_inputs; ++i) {
    const TensorDef& def = op.inputs[i];
    const bool absent = inputs[i].dtype == BERTFUSE_ABSENT;
    if (absent && !def.optional) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' is missing", op.name, def.name);
    }
    if (!absent && def.needs >= 0 && inputs[def.needs].dtype == BERTFUSE_ABSENT) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' is given without '%s', which it needs", op.name, def.name,
           op.inputs[def.needs].name);
    }
    if (def.scales < 0 || FitsScaled(op.inputs[def.scales], absent, inputs[def.scales].dtype)) continue;
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' is %s, and its scales '%s' are %s", op.name,
         op.inputs[def.scales].name, DtypeName(inputs[def.scales].dtype), def.name, absent ? "missing" : "given");
  }
}

void BindInputs(const OpDef& op, const bertfuse_tensor* inputs, DtypeBinder& dtypes, AxisBinder& axes) {
  CheckPresence(op, inputs);
  for (int i = 0; i < op.num_inputs; ++i) {
    if (inputs[i].dtype == BERTFUSE_ABSENT) continue;
    dtypes.Bind(op.inputs[i], "input", inputs[i].dtype);
    axes.Bind(op.inputs[i], "input", ShapeOf(op, op.inputs[i], "input", inputs[i]));
  }
  axes.CheckDivisors();
}

}  // namespace

OpList AllOps() { return {kOps, static_cast<int>(std::size(kOps))}; }

const OpDef* FindOp(const char* name) {
  for (const OpDef& op : AllOps()) {
    if (std::strcmp(op.name, name) == 0) return &op;
  }
  return nullptr;
}

DtypeList DtypesOf(Variable variable) {
  switch (variable) {
    case Variable::kT:
      return {kDtypesT, static_cast<int>(std::size(kDtypesT))};
    case Variable::kI:
      return {kDtypesI, static_cast<int>(std::size(kDtypesI))};
    case Variable::kW:
      return {kDtypesW, static_cast<int>(std::size(kDtypesW))};
    case Variable::kS:
      return {kDtypesS, static_cast<int>(std::size(kDtypesS))};
    case Variable::kQ:
      return {kDtypesQ, static_cast<int>(std::size(kDtypesQ))};
    case Variable::kC:
      break;
  }
  return {kDtypesC, static_cast<int>(std::size(kDtypesC))};
}

bool Allows(Variable variable, int32_t dtype) {
  for (int32_t allowed : DtypesOf(variable)) {
    if (allowed == dtype) return true;
  }
  return false;
}

Variable BoundBy(const TensorDef& tensor, int32_t dtype) {
  return tensor.dtype == Variable::kW && IsFloat(dtype) ? Variable::kT : tensor.dtype;
}

bool FitsScaled(const TensorDef& tensor, bool absent, int32_t scaled_dtype) {
  return tensor.dtype != Variable::kW || absent != IsQuantized(scaled_dtype);
}

bool Uses(const OpDef& op, Variable variable) {
  const auto is_of = [&](const TensorDef& tensor) { return tensor.dtype == variable; };
  return std::any_of(op.inputs, op.inputs + op.num_inputs, is_of) ||
         std::any_of(op.outputs, op.outputs + op.num_outputs + op.num_quantized_outputs, is_of);
}

int32_t DtypeBinder::Of(Variable variable) const {
  const int32_t bound = dtypes_[static_cast<int>(variable)];
  const DtypeList choices = DtypesOf(variable);
  return bound == BERTFUSE_ABSENT && choices.count == 1 ? *choices.first : bound;
}

void DtypeBinder::Bind(const TensorDef& tensor, const char* role, int32_t given) {
  const int variable = static_cast<int>(BoundBy(tensor, given));
  static constexpr const char* kLetters[] = {"T", "I", "C", "W", "S", "Q"};
  if (!Allows(tensor.dtype, given)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' is %s (%d), expected %s", op_.name, role, tensor.name,
         DtypeName(given), given, DtypeNames(DtypesOf(tensor.dtype)).c_str());
  }
  if (from_[variable] == nullptr) {
    dtypes_[variable] = given;
    from_[variable] = tensor.name;
  } else if (dtypes_[variable] != given) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' is %s, expected %s (%s from '%s')", op_.name, role, tensor.name,
         DtypeName(given), DtypeName(dtypes_[variable]), kLetters[variable], from_[variable]);
  }
}

void CheckAttributes(const OpDef& op, const bertfuse_value* attributes) {
  for (int i = 0; i < op.num_attributes; ++i) {
    const AttrDef& attribute = op.attributes[i];
    switch (attribute.kind) {
      case AttrKind::kInt:
        CheckRange(op, attribute, static_cast<double>(attributes[i].i));
        break;
      case AttrKind::kFloat:
        CheckRange(op, attribute, attributes[i].f);
        break;
      case AttrKind::kString:
        CheckChoice(op, attribute, attributes[i].s);
        break;
    }
  }
}

void SetDefault(const AttrDef& attribute, bertfuse_value* value) {
  switch (attribute.kind) {
    case AttrKind::kInt:
      value->i = attribute.default_int;
      break;
    case AttrKind::kFloat:
      value->f = attribute.default_float;
      break;
    case AttrKind::kString:
      value->s = attribute.default_string;
      break;
  }
}

void Validate(const OpDef& op, const bertfuse_call& call) {
  CheckCallSize(op.name, call);
  const int outputs = call.num_inputs == op.num_inputs ? NumOutputs(op, call.inputs) : op.num_outputs;
  if (call.num_inputs != op.num_inputs || call.num_outputs != outputs || call.num_attributes != op.num_attributes) {
    Fail(BERTFUSE_INVALID_ARGUMENT,
         "%s: the call has %d inputs, %d outputs and %d attributes, expected %d, %d and %d (absent inputs keep their "
         "place)",
         op.name, call.num_inputs, call.num_outputs, call.num_attributes, op.num_inputs, outputs, op.num_attributes);
  }
  CheckAttributes(op, call.attributes);
  DtypeBinder dtypes(op);
  AxisBinder axes(op, call.attributes);
  BindInputs(op, call.inputs, dtypes, axes);
  for (int i = 0; i < outputs; ++i) {
    dtypes.Bind(op.outputs[i], "output", call.outputs[i].dtype);
    axes.Bind(op.outputs[i], "output", ShapeOf(op, op.outputs[i], "output", call.outputs[i]));
  }
}

int NumOutputs(const OpDef& op, const bertfuse_tensor* inputs) {
  int count = op.num_outputs;
  while (count < op.num_outputs + op.num_quantized_outputs && inputs[op.outputs[count].needs].dtype != BERTFUSE_ABSENT)
    ++count;
  return count;
}

int InferOutputs(const OpDef& op, const bertfuse_tensor* inputs, const bertfuse_value* attributes,
                 bertfuse_tensor* outputs) {
  CheckAttributes(op, attributes);
  DtypeBinder dtypes(op);
  AxisBinder axes(op, attributes);
  BindInputs(op, inputs, dtypes, axes);
  const int count = NumOutputs(op, inputs);
  for (int i = 0; i < count; ++i) {
    const DimList shape = axes.Resolve(op.outputs[i]);
    outputs[i].dtype = dtypes.Of(op.outputs[i].dtype);
    outputs[i].rank = shape.rank;
    for (int axis = 0; axis < shape.rank; ++axis) outputs[i].shape[axis] = shape.dims[axis].size;
  }
  return count;
}

int64_t NumElements(const bertfuse_tensor& tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) count *= tensor.shape[i];
  return count;
}

}  // namespace bertfuse
