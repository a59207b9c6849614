#include "tensorrt/request.h"

#include <algorithm>

namespace bertfuse::tensorrt {

namespace {

struct Pair {
  abi::DataType type;
  bertfuse_dtype dtype;
};
#define BERTFUSE_PAIR(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) {abi::DataType::TENSORRT, BERTFUSE_##DTYPE},
constexpr Pair kTypes[] = {BERTFUSE_DTYPES(BERTFUSE_PAIR)};
#undef BERTFUSE_PAIR

}  // namespace

int32_t DtypeOf(abi::DataType type) {
  for (const Pair& pair : kTypes) {
    if (pair.type == type) return pair.dtype;
  }
  return -1;
}

abi::DataType DataTypeOf(int32_t dtype) {
  for (const Pair& pair : kTypes) {
    if (pair.dtype == dtype) return pair.type;
  }
  return abi::DataType::kFLOAT;
}

void Request::Describe(const abi::PluginTensorDesc& description, bertfuse_tensor* tensor) {
  static_assert(abi::Dims::kMaxDims == BERTFUSE_MAX_RANK);
  tensor->dtype = DtypeOf(description.type);
  tensor->rank = description.dims.nbDims;
  std::copy_n(description.dims.d, std::clamp(description.dims.nbDims, 0, BERTFUSE_MAX_RANK), tensor->shape);
}

void Request::Restore(const OpDef& op, const Form& form, const TensorDef& def, const char* role,
                      bertfuse_tensor* tensor) {
  if (!form.CrossesAsInt32(def)) return;
  tensor->dtype = RestoredDtype(op, form, def, role, tensor->dtype);
  if (tensor->rank < 1 || tensor->rank > BERTFUSE_MAX_RANK) return;
  int64_t& columns = tensor->shape[tensor->rank - 1];
  columns = ColumnsIn(columns);
}

void Request::Finish(const OpDef& op, const bertfuse_value* attributes, const CallSettings& settings) {
  call_.struct_size = sizeof(call_);
  call_.num_inputs = op.num_inputs;
  call_.inputs = inputs_.data();
  call_.outputs = outputs_.data();
  call_.num_attributes = op.num_attributes;
  call_.attributes = attributes;
  call_.device_id = -1;
  call_.tactic = -1;
  call_.flags = settings.flags;
  call_.tuning = settings.tuning;
}

}  // namespace bertfuse::tensorrt
