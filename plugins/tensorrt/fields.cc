#include "tensorrt/fields.h"

#include <cstdio>
#include <cstring>

#include "core/op_table.h"
#include "core/status.h"
#include "tensorrt/arrange.h"

namespace bertfuse::tensorrt {
namespace {

using abi::PluginFieldType;

constexpr int32_t kLongestString = 4096;
constexpr const char* kConstantField = "constant_inputs";
constexpr const char* kElementField = "element_type";
constexpr const char* kGivenField = "given_inputs";
constexpr const char* kWeightField = "weight_type";
constexpr const char* kResultField = "result_type";

// What describes a layer beside its attributes: an int, 0 where it is left out.
constexpr AttrDef LayerField(const char* name) {
  return {name, AttrKind::kInt, false, 0, 0, nullptr, 0, 0, nullptr, 0, nullptr};
}
constexpr AttrDef kLayerFields[] = {LayerField(kConstantField), LayerField(kElementField), LayerField(kGivenField),
                                    LayerField(kWeightField), LayerField(kResultField)};
constexpr const char* kPresentField = "present_inputs";
constexpr const char* kWorkspaceField = "workspace_bytes";

const char* TypeName(PluginFieldType type) {
  switch (type) {
    case PluginFieldType::kFLOAT16:
      return "float16";
    case PluginFieldType::kFLOAT32:
      return "float32";
    case PluginFieldType::kFLOAT64:
      return "float64";
    case PluginFieldType::kINT8:
      return "int8";
    case PluginFieldType::kINT16:
      return "int16";
    case PluginFieldType::kINT32:
      return "int32";
    case PluginFieldType::kCHAR:
      return "char";
    case PluginFieldType::kDIMS:
      return "dims";
    case PluginFieldType::kBF16:
      return "bfloat16";
    case PluginFieldType::kINT64:
      return "int64";
    default:
      return "of an unknown type";
  }
}

bool IsOfKind(const abi::PluginField& field, AttrKind kind) {
  switch (kind) {
    case AttrKind::kInt:
      return field.type == PluginFieldType::kINT32 || field.type == PluginFieldType::kINT64;
    case AttrKind::kFloat:
      return field.type == PluginFieldType::kFLOAT32 || field.type == PluginFieldType::kFLOAT64;
    default:
      return field.type == PluginFieldType::kCHAR;
  }
}

bool IsFloat(int64_t dtype) { return dtype <= INT32_MAX && Allows(Variable::kT, static_cast<int32_t>(dtype)); }

// An attribute, or what describes another field of a layer.
const AttrDef* FindAttribute(const OpDef& op, const char* name) {
  for (const AttrDef& field : kLayerFields) {
    if (std::strcmp(field.name, name) == 0) return &field;
  }
  for (int i = 0; i < op.num_attributes; ++i) {
    if (std::strcmp(op.attributes[i].name, name) == 0) return &op.attributes[i];
  }
  return nullptr;
}

template <class T>
T Load(const abi::PluginField& field) {
  T value;
  std::memcpy(&value, field.data, sizeof(value));  // nothing says that it is aligned
  return value;
}

// Throws unless the field holds one value of the attribute's kind.
void CheckField(const OpDef& op, const AttrDef& attribute, const abi::PluginField& field) {
  if (!IsOfKind(field, attribute.kind)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %s (%d), expected %s", op.name, attribute.name,
         TypeName(field.type), static_cast<int>(field.type), KindName(attribute.kind));
  }
  const bool text = attribute.kind == AttrKind::kString;
  if (field.length < (text ? 0 : 1) || field.length > (text ? kLongestString : 1)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' has length %d, expected %s", op.name, attribute.name, field.length,
         text ? "0 to 4096" : "1");
  }
  if (field.data == nullptr && field.length > 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' has no data", op.name, attribute.name);
  }
}

// Throws unless the collection can be walked.
void CheckCollection(const OpDef& op, const abi::PluginFieldCollection* given) {
  if (given == nullptr) return;
  if (given->nbFields < 0 || (given->nbFields > 0 && given->fields == nullptr)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: a collection of %d fields that are nowhere", op.name, given->nbFields);
  }
  for (int32_t i = 0; i < given->nbFields; ++i) {
    if (given->fields[i].name == nullptr) Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field %d has no name", op.name, i);
  }
}

class FieldSource : public AttributeSource {
 public:
  FieldSource(const OpDef& op, const abi::PluginFieldCollection* given) : given_(given) {
    CheckCollection(op, given);
    for (int32_t i = 0; given != nullptr && i < given->nbFields; ++i) {
      const char* name = given->fields[i].name;
      const AttrDef* attribute = FindAttribute(op, name);
      if (attribute == nullptr) {
        Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%.64s' is none of the op's attributes", op.name, name);
      }
      if (Find(name) != &given->fields[i]) {
        Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is given twice", op.name, name);
      }
      CheckField(op, *attribute, given->fields[i]);
    }
  }

  bool Read(const char* name, int64_t* value) const override {
    const abi::PluginField* field = Find(name, AttrKind::kInt);
    if (field == nullptr) return false;
    *value = field->type == PluginFieldType::kINT64 ? Load<int64_t>(*field) : Load<int32_t>(*field);
    return true;
  }
  bool Read(const char* name, float* value) const override {
    const abi::PluginField* field = Find(name, AttrKind::kFloat);
    if (field == nullptr) return false;
    *value = field->type == PluginFieldType::kFLOAT64 ? static_cast<float>(Load<double>(*field)) : Load<float>(*field);
    return true;
  }
  bool Read(const char* name, std::string* value) const override {
    const abi::PluginField* field = Find(name, AttrKind::kString);
    if (field == nullptr) return false;
    // Up to a terminator, which the length may or may not count.
    const char* text = static_cast<const char*>(field->data);
    value->assign(text, text + (text == nullptr ? 0 : strnlen(text, static_cast<size_t>(field->length))));
    return true;
  }

 private:
  // The first field of that name.
  const abi::PluginField* Find(const char* name) const {
    for (int32_t i = 0; given_ != nullptr && i < given_->nbFields; ++i) {
      if (std::strcmp(given_->fields[i].name, name) == 0) return &given_->fields[i];
    }
    return nullptr;
  }
  const abi::PluginField* Find(const char* name, AttrKind kind) const {
    const abi::PluginField* field = Find(name);
    return field != nullptr && IsOfKind(*field, kind) ? field : nullptr;
  }

  const abi::PluginFieldCollection* given_;
};

PluginFieldType TypeOf(AttrKind kind) {
  return kind == AttrKind::kInt     ? PluginFieldType::kINT64
         : kind == AttrKind::kFloat ? PluginFieldType::kFLOAT32
                                    : PluginFieldType::kCHAR;
}

std::string TextOf(const AttrDef& attribute, const bertfuse_value& value) {
  char text[64];
  if (attribute.kind == AttrKind::kString) return value.s;
  if (attribute.kind == AttrKind::kInt) {
    std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(value.i));
  } else {
    std::snprintf(text, sizeof(text), "%.9g", value.f);
  }
  return text;
}

// Whether the bits are those of inputs that the op can have, or none: not known.
bool MayBeComplete(const OpDef& op, int64_t present) {
  if (present == 0) return true;
  return present > 0 && present <= UINT32_MAX && IsComplete(op, static_cast<Present>(present));
}

[[noreturn]] void CannotHave(const OpDef& op) {
  Fail(BERTFUSE_INVALID_ARGUMENT,
       "%s: field '%s' is missing or names inputs that the op cannot have; build the engine again", op.name,
       kPresentField);
}

// Throws INVALID_ARGUMENT, with the field, for what is no form of the op.
Form CheckedForm(const OpDef& op, int64_t given, int64_t weight_type, int64_t result_type) {
  if (!MayBeComplete(op, given)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %lld, which names inputs that the op cannot have", op.name,
         kGivenField, static_cast<long long>(given));
  }
  const auto narrow = [&](const char* field, int64_t type) {
    if (type < 0 || type > INT32_MAX) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %lld, expected ONNX's number of a type", op.name, field,
           static_cast<long long>(type));
    }
    return static_cast<int32_t>(type);
  };
  const Form form = {static_cast<Present>(given), narrow(kWeightField, weight_type), narrow(kResultField, result_type)};
  CheckForm(op, form);
  return form;
}

}  // namespace

std::vector<abi::PluginField> FieldNames(const OpDef& op) {
  std::vector<abi::PluginField> fields;
  for (int i = 0; i < op.num_attributes; ++i) {
    fields.push_back({op.attributes[i].name, nullptr, TypeOf(op.attributes[i].kind), 1});
  }
  for (const AttrDef& field : kLayerFields) fields.push_back({field.name, nullptr, PluginFieldType::kINT64, 1});
  return fields;
}

Fields::Fields(const OpDef& op, const abi::PluginFieldCollection* given) : attributes_(op, FieldSource(op, given)) {
  const FieldSource source(op, given);
  source.Read(kConstantField, &constant_inputs_);
  source.Read(kElementField, &element_type_);
  source.Read(kGivenField, &given_inputs_);
  source.Read(kWeightField, &weight_type_);
  source.Read(kResultField, &result_type_);
  if (element_type_ != BERTFUSE_ABSENT && !IsFloat(element_type_)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %lld, expected ONNX's number of a floating-point type", op.name,
         kElementField, static_cast<long long>(element_type_));
  }
  if (constant_inputs_ < 0 || constant_inputs_ >> op.num_inputs != 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %lld, expected a bit for each of %d inputs", op.name,
         kConstantField, static_cast<long long>(constant_inputs_), op.num_inputs);
  }
  form_ = CheckedForm(op, given_inputs_, weight_type_, result_type_);
  for (int i = 0; i < op.num_attributes; ++i) {
    const AttrDef& attribute = op.attributes[i];
    const bertfuse_value& value = values()[i];
    const bool text = attribute.kind == AttrKind::kString;
    const void* data = text ? static_cast<const void*>(value.s) : &value;
    const int32_t length = text ? static_cast<int32_t>(std::strlen(value.s)) + 1 : 1;
    fields_.push_back({attribute.name, data, TypeOf(attribute.kind), length});
    text_ += (text_.empty() ? "" : ", ") + std::string(attribute.name) + "=" + TextOf(attribute, value);
  }
  const auto add = [&](const char* name, const int64_t& value) {
    if (value == 0) return;
    fields_.push_back({name, &value, PluginFieldType::kINT64, 1});
    text_ += (text_.empty() ? "" : ", ") + std::string(name) + "=" + std::to_string(value);
  };
  add(kConstantField, constant_inputs_);
  add(kElementField, element_type_);
  add(kGivenField, given_inputs_);
  add(kWeightField, weight_type_);
  add(kResultField, result_type_);
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

bool Fields::MayHave(int32_t dtype) const {
  return element_type_ == BERTFUSE_ABSENT || !IsFloat(dtype) || dtype == element_type_;
}

void AppendBuilt(const Built& built, std::vector<abi::PluginField>* fields) {
  fields->push_back({kPresentField, &built.present, PluginFieldType::kINT64, 1});
  fields->push_back({kWorkspaceField, &built.workspace, PluginFieldType::kINT64, 1});
}

Built ReadBuilt(const OpDef& op, const abi::PluginFieldCollection* given, std::vector<abi::PluginField>* attributes) {
  CheckCollection(op, given);
  Built built = {-1, -1};
  for (int32_t i = 0; given != nullptr && i < given->nbFields; ++i) {
    const abi::PluginField& field = given->fields[i];
    const bool present = std::strcmp(field.name, kPresentField) == 0;
    if (!present && std::strcmp(field.name, kWorkspaceField) != 0) {
      attributes->push_back(field);
      continue;
    }
    if (field.type != PluginFieldType::kINT64 || field.length != 1 || field.data == nullptr) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is %s of length %d, expected one int64", op.name, field.name,
           TypeName(field.type), field.length);
    }
    (present ? built.present : built.workspace) = Load<int64_t>(field);
  }
  if (!MayBeComplete(op, built.present)) CannotHave(op);
  if (built.workspace < 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: field '%s' is missing or negative; build the engine again", op.name,
         kWorkspaceField);
  }
  return built;
}

void CheckBuilt(const OpDef& op, const Built& built, const Fields& fields) {
  if (built.present == 0) return;
  const auto present = static_cast<Present>(built.present);
  const Present given = fields.form().present;
  if (given == 0 ? HasQuantized(op, present) : present != given) CannotHave(op);
}

}  // namespace bertfuse::tensorrt
