// Plugin fields as bytes: what an engine of TensorRT 8 and 9 keeps of a layer.
#ifndef BERTFUSE_TENSORRT_PACKED_FIELDS_H_
#define BERTFUSE_TENSORRT_PACKED_FIELDS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "core/op_def.h"
#include "tensorrt/abi.h"

namespace bertfuse::tensorrt {

std::string Pack(const std::vector<abi::PluginField>& fields);

// The fields again; they point into `data`. Throws INVALID_ARGUMENT for bytes that Pack did not write.
std::vector<abi::PluginField> Unpack(const OpDef& op, const void* data, size_t size);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_PACKED_FIELDS_H_
