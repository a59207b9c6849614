// A profile's bounds of a layer's tensors.
#ifndef BERTFUSE_TENSORRT_BOUNDS_H_
#define BERTFUSE_TENSORRT_BOUNDS_H_

#include "core/op_def.h"
#include "tensorrt/abi.h"
#include "tensorrt/form.h"

namespace bertfuse::tensorrt {

// Narrows the bounds of axes that the op has in several tensors to what all of them allow: TensorRT finds those of
// computed shapes by intervals, and up to 4 x 40 tokens seen as [-1, sequence] may then be 160 texts. `tensors`: the
// present inputs, then the outputs. Bounds that exclude each other stay, for Validate to name.
void Agree(const OpDef& op, const Form& form, abi::DynamicPluginTensorDesc* tensors);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_BOUNDS_H_
