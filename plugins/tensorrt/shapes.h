// Output shapes as expressions over input shapes, from the op description.
#ifndef BERTFUSE_TENSORRT_SHAPES_H_
#define BERTFUSE_TENSORRT_SHAPES_H_

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "tensorrt/abi.h"
#include "tensorrt/form.h"

namespace bertfuse::tensorrt {

// Fills in outputs[0..NumOutputs(op, form.present)). `inputs` are the layer's. Sizes that are constant are checked
// against each other; throws INVALID_ARGUMENT with op and tensor.
void ExpressOutputs(const OpDef& op, const bertfuse_value* attributes, const Form& form, const abi::DimsExprs* inputs,
                    abi::DimsExprs* outputs, abi::IExprBuilder& builder);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_SHAPES_H_
