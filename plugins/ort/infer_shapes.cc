#include <array>
#include <atomic>
#include <string>

#include "ort/op_class.h"
#include "ort/op_kernel.h"

namespace bertfuse::ort {
namespace {

bool Succeeded(OrtStatus* status) {
  if (status == nullptr) return true;
  Api().ReleaseStatus(status);
  return false;
}

class ContextSource : public AttributeSource {
 public:
  explicit ContextSource(const OrtShapeInferContext* context) : context_(context) {}
  bool Read(const char* name, int64_t* value) const override {
    return ReadAs(name, ORT_OP_ATTR_INT, value, sizeof(*value));
  }
  bool Read(const char* name, float* value) const override {
    return ReadAs(name, ORT_OP_ATTR_FLOAT, value, sizeof(*value));
  }
  bool Read(const char* name, std::string* value) const override {
    std::array<char, 256> buffer = {};
    if (!ReadAs(name, ORT_OP_ATTR_STRING, buffer.data(), buffer.size() - 1)) return false;
    *value = buffer.data();
    return true;
  }

 private:
  bool ReadAs(const char* name, OrtOpAttrType type, void* value, size_t size) const {
    const OrtOpAttr* attribute = nullptr;
    size_t needed = 0;
    return Succeeded(Api().ShapeInferContext_GetAttribute(context_, name, &attribute)) &&
           Succeeded(Api().ReadOpAttr(attribute, type, value, size, &needed));
  }
  const OrtShapeInferContext* context_;
};

// The known part of an input's shape; rank 0 where nothing is known, and for a scalar, which has no axis to bind.
// The object and the names in it belong to the context.
DimList InputShape(const OpDef& op, int index, const OrtShapeInferContext* context, ONNXTensorElementDataType* dtypes) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(Api().ShapeInferContext_GetInputTypeShape(context, static_cast<size_t>(index), &raw));
  ONNXTensorElementDataType type;
  Check(Api().GetTensorElementType(raw, &type));
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) {
    dtypes[static_cast<int>(BoundBy(op.inputs[index], static_cast<int32_t>(type)))] = type;
  }
  DimList shape;
  size_t rank = 0;
  Check(Api().GetDimensionsCount(raw, &rank));
  if (rank > BERTFUSE_MAX_RANK) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' has rank %zu, expected at most %d", op.name, op.inputs[index].name,
         rank, BERTFUSE_MAX_RANK);
  }
  shape.rank = static_cast<int>(rank);
  std::array<int64_t, BERTFUSE_MAX_RANK> sizes = {};
  std::array<const char*, BERTFUSE_MAX_RANK> names = {};
  Check(Api().GetDimensions(raw, sizes.data(), rank));
  Check(Api().GetSymbolicDimensions(raw, names.data(), rank));
  for (size_t i = 0; i < rank; ++i) {
    shape.dims[i].size = sizes[i];
    if (sizes[i] < 0 && names[i] != nullptr && names[i][0] != '\0') shape.dims[i].name = names[i];
  }
  return shape;
}

// A name for a size that nothing is known of: without one, ONNX Runtime takes the -1 for the size itself.
const char* FreshName(std::string* name) {
  static std::atomic<int64_t> count{0};
  *name = "bertfuse_unknown_" + std::to_string(count++);
  return name->c_str();
}

void SetOutputShape(OrtShapeInferContext* context, int index, ONNXTensorElementDataType type, const DimList& shape) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(Api().CreateTensorTypeAndShapeInfo(&raw));
  const Owned<OrtTensorTypeAndShapeInfo> info(raw);
  Check(Api().SetTensorElementType(raw, type));
  std::array<int64_t, BERTFUSE_MAX_RANK> sizes = {};
  std::array<const char*, BERTFUSE_MAX_RANK> names = {};
  std::array<std::string, BERTFUSE_MAX_RANK> made;
  for (int i = 0; i < shape.rank; ++i) {
    sizes[i] = shape.dims[i].size;
    if (sizes[i] < 0) names[i] = shape.dims[i].name == nullptr ? FreshName(&made[i]) : shape.dims[i].name;
    if (names[i] == nullptr) names[i] = "";
  }
  Check(Api().SetDimensions(raw, sizes.data(), static_cast<size_t>(shape.rank)));
  Check(Api().SetSymbolicDimensions(raw, names.data(), static_cast<size_t>(shape.rank)));
  Check(Api().ShapeInferContext_SetOutputTypeShape(context, static_cast<size_t>(index), raw));
}

}  // namespace

void InferShapes(const OpDef& op, OrtShapeInferContext* context) {
  ONNXTensorElementDataType dtypes[kNumVariables] = {};  // of the variables in this node
  dtypes[static_cast<int>(Variable::kC)] = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  dtypes[static_cast<int>(Variable::kS)] = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  const Attributes attributes(op, ContextSource(context));
  AxisBinder axes(op, attributes.data());
  size_t given = 0;
  Check(Api().ShapeInferContext_GetInputCount(context, &given));
  for (int i = 0; i < op.num_inputs && i < static_cast<int>(given); ++i) {
    const DimList shape = InputShape(op, i, context, dtypes);
    if (shape.rank > 0) axes.Bind(op.inputs[i], "input", shape);
  }
  axes.CheckDivisors();
  // Optional outputs are there where something gave their type.
  const bool quantizes = dtypes[static_cast<int>(Variable::kQ)] != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  for (int i = 0; i < op.num_outputs + (quantizes ? op.num_quantized_outputs : 0); ++i) {
    const DimList shape = axes.Resolve(op.outputs[i]);
    const ONNXTensorElementDataType type = dtypes[static_cast<int>(op.outputs[i].dtype)];
    if (shape.rank >= 0 && type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) SetOutputShape(context, i, type, shape);
  }
}

}  // namespace bertfuse::ort
