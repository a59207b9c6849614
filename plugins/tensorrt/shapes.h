// Output shapes as expressions over input shapes, from the op description.
#ifndef BERTFUSE_TENSORRT_SHAPES_H_
#define BERTFUSE_TENSORRT_SHAPES_H_

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "tensorrt/abi.h"

namespace bertfuse::tensorrt {

// Fills in outputs[0..op.num_outputs). `inputs` come in the op's order; an absent one is null. Sizes that are constant
// are checked against each other; throws INVALID_ARGUMENT with op and tensor.
void ExpressOutputs(const OpDef& op, const bertfuse_value* attributes, const abi::DimsExprs* const* inputs,
                    abi::DimsExprs* outputs, abi::IExprBuilder& builder);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_SHAPES_H_
