#include "tensorrt/request.h"

#include <algorithm>

namespace bertfuse::tensorrt {

int32_t DtypeOf(abi::DataType type) {
  switch (type) {
    case abi::DataType::kFLOAT:
      return BERTFUSE_FLOAT32;
    case abi::DataType::kHALF:
      return BERTFUSE_FLOAT16;
    case abi::DataType::kBF16:
      return BERTFUSE_BFLOAT16;
    case abi::DataType::kINT32:
      return BERTFUSE_INT32;
    case abi::DataType::kINT64:
      return BERTFUSE_INT64;
    default:
      return -1;
  }
}

abi::DataType DataTypeOf(int32_t dtype) {
  switch (dtype) {
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

void Request::Describe(const abi::PluginTensorDesc& description, bertfuse_tensor* tensor) {
  static_assert(abi::Dims::kMaxDims == BERTFUSE_MAX_RANK);
  tensor->dtype = DtypeOf(description.type);
  tensor->rank = description.dims.nbDims;
  std::copy_n(description.dims.d, std::clamp(description.dims.nbDims, 0, BERTFUSE_MAX_RANK), tensor->shape);
}

void Request::Finish(const OpDef& op, const bertfuse_value* attributes, const CallSettings& settings) {
  call_.struct_size = sizeof(call_);
  call_.num_inputs = op.num_inputs;
  call_.inputs = inputs_.data();
  call_.num_outputs = op.num_outputs;
  call_.outputs = outputs_.data();
  call_.num_attributes = op.num_attributes;
  call_.attributes = attributes;
  call_.device_id = -1;
  call_.tactic = -1;
  call_.flags = settings.flags;
  call_.tuning = settings.tuning;
}

}  // namespace bertfuse::tensorrt
