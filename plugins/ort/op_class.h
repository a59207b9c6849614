// One OrtCustomOp per op, provider and dtypes, all of one class that reads the op table.
#ifndef BERTFUSE_ORT_OP_CLASS_H_
#define BERTFUSE_ORT_OP_CLASS_H_

#include "bertfuse/op.h"
#include "core/op_table.h"
#include "ort/api.h"
#include "ort/options.h"

namespace bertfuse::ort {

class OpClass : public OrtCustomOp {
 public:
  // The dtypes are what the variables T, I, W and Q stand for in this registration (C is int32 always, S float32): ONNX
  // Runtime's custom ops have no type variables of their own; it picks the registration that fits a node.
  OpClass(const OrtApi& api, const OpDef& op, const bertfuse_kernel& kernel, const CallSettings& settings,
          int32_t dtype, int32_t index_dtype, int32_t weight_dtype, int32_t result_dtype, bool infer_shapes);

  const OrtApi& api() const { return api_; }
  const OpDef& op() const { return op_; }
  const bertfuse_kernel& kernel() const { return kernel_; }
  const CallSettings& settings() const { return settings_; }
  ONNXTensorElementDataType TypeOf(const TensorDef& tensor) const;

 private:
  const OrtApi& api_;
  const OpDef& op_;
  const bertfuse_kernel& kernel_;
  CallSettings settings_;
  int32_t dtypes_[kNumVariables];
};

// Output shapes from what a session knows of the input shapes, with names of free dimensions carried through.
// ONNX Runtime keeps one schema per op name and asks the first registration of the op, whatever the node's dtypes.
void InferShapes(const OpDef& op, OrtShapeInferContext* context);

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_OP_CLASS_H_
