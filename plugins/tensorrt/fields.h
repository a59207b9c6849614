// Attributes as TensorRT's plugin fields: read and checked, and written into an engine.
#ifndef BERTFUSE_TENSORRT_FIELDS_H_
#define BERTFUSE_TENSORRT_FIELDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/attributes.h"
#include "core/op_def.h"
#include "tensorrt/abi.h"
#include "tensorrt/form.h"

namespace bertfuse::tensorrt {

// The fields that an op's creator takes: one for each attribute, "constant_inputs", "element_type", and "given_inputs",
// "weight_type" and "result_type" of a quantised form. The parser passes an int as kINT32 and a float as kFLOAT32,
// whatever the type named here.
std::vector<abi::PluginField> FieldNames(const OpDef& op);

// One node's attributes and the same as fields, which point into it.
class Fields {
 public:
  // Throws INVALID_ARGUMENT with the field's name for one that is unknown, given twice, of a wrong type, out of range,
  // or missing. A null collection has no fields.
  Fields(const OpDef& op, const abi::PluginFieldCollection* given);

  const bertfuse_value* values() const { return attributes_.data(); }

  // As in bertfuse_call; the field may be left out. TensorRT does not tell a plugin which tensors are constant, so
  // whoever makes the network does.
  uint64_t constant_inputs() const { return static_cast<uint64_t>(constant_inputs_); }

  // Whether a tensor of the layer may have that bertfuse_dtype. The field "element_type" names the only floating-point
  // type that may (a bertfuse_dtype, which is ONNX's number); it may be left out. In a network that is not strongly
  // typed TensorRT would otherwise choose one, and convert weights to it.
  bool MayHave(int32_t dtype) const;

  // By "given_inputs", a bit for each of the op's inputs, and the types (ONNX's numbers) of the tensors of 8 bits. They
  // may be left out; then inputs are told apart by dtypes and ranks (arrange.h), and none is quantised.
  const Form& form() const { return form_; }

  const abi::PluginFieldCollection* collection() const { return &collection_; }

  // "num_heads=12, scale=0.125": every attribute, floats to their last bit; and the others, where they are.
  const std::string& text() const { return text_; }

 private:
  Attributes attributes_;
  int64_t constant_inputs_ = 0;
  int64_t element_type_ = BERTFUSE_ABSENT;
  int64_t given_inputs_ = 0, weight_type_ = BERTFUSE_ABSENT, result_type_ = BERTFUSE_ABSENT;
  Form form_;
  std::vector<abi::PluginField> fields_;
  abi::PluginFieldCollection collection_;
  std::string text_;
};

// What the build phase found out about a layer: an engine keeps it beside the attributes.
struct Built {
  int64_t present = 0;    // Present; 0: not known yet
  int64_t workspace = 0;  // bytes that the engine hands to enqueue
};

// Appends fields that point into `built`.
void AppendBuilt(const Built& built, std::vector<abi::PluginField>* fields);

// Takes those fields out of what an engine kept; the others go to `attributes`. Throws INVALID_ARGUMENT with the
// field's name for one that is missing or of a wrong type, or whose value cannot be.
Built ReadBuilt(const OpDef& op, const abi::PluginFieldCollection* given, std::vector<abi::PluginField>* attributes);

// Throws INVALID_ARGUMENT unless a layer with these fields can have the inputs that `built` says.
void CheckBuilt(const OpDef& op, const Built& built, const Fields& fields);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_FIELDS_H_
