#include "tensorrt/form.h"

#include "core/dtype.h"
#include "core/op_table.h"
#include "core/status.h"

namespace bertfuse::tensorrt {
namespace {

// Throws unless the type is one of 8 bits and wanted, or neither.
void CheckType(const OpDef& op, const char* field, Variable variable, int32_t type, bool wanted, const char* why) {
  const bool given = type != BERTFUSE_ABSENT;
  if (given && !(IsQuantized(type) && Allows(variable, type))) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %d, expected ONNX's number of %s", op.name, field, type,
         DtypeNames(kQuantizedDtypes).c_str());
  }
  if (given == wanted) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %s, but 'given_inputs' has %s %s", op.name, field,
       given ? "given" : "missing", given ? "no" : "a", why);
}

}  // namespace

int32_t Form::DtypeOf(const TensorDef& tensor, int32_t crossing) const {
  if (CrossesAsInt32(tensor)) return crossing == BERTFUSE_INT32 ? EightBitType(tensor) : -1;
  return IsQuantized(crossing) ? -1 : crossing;
}

int NumOutputs(const OpDef& op, Present present) {
  int count = op.num_outputs;
  while (count < op.num_outputs + op.num_quantized_outputs && Has(present, op.outputs[count].needs)) ++count;
  return count;
}

const TensorDef* InputAt(const OpDef& op, Present present, int place) {
  for (int i = 0; i < op.num_inputs; ++i) {
    if (Has(present, i) && place-- == 0) return &op.inputs[i];
  }
  return nullptr;
}

int32_t RestoredDtype(const OpDef& op, const Form& form, const TensorDef& tensor, const char* role, int32_t crossing) {
  if (!form.CrossesAsInt32(tensor)) return crossing;
  if (crossing == BERTFUSE_INT32) return form.EightBitType(tensor);
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' is %s, expected int32, in which its %s is to be", op.name, role,
       tensor.name, DtypeName(crossing), DtypeName(form.EightBitType(tensor)));
}

void CheckForm(const OpDef& op, const Form& form) {
  bool weight = false, result = false;
  for (int i = 0; i < op.num_inputs; ++i) {
    if (!Has(form.present, i)) continue;
    const TensorDef& tensor = op.inputs[i];
    weight |= tensor.scales >= 0 && op.inputs[tensor.scales].dtype == Variable::kW;
    result |= tensor.dtype == Variable::kQ;
  }
  CheckType(op, "weight_type", Variable::kW, form.weight_type, weight, "scale of a weight");
  CheckType(op, "result_type", Variable::kQ, form.result_type, result,
            "zero point of a result, or a residual in 8 bits");
}

}  // namespace bertfuse::tensorrt
