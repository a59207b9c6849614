#include "ort/op_class.h"

#include <string>

#include "ort/op_kernel.h"

namespace bertfuse::ort {
namespace {

const OpClass& Self(const OrtCustomOp* op) { return *static_cast<const OpClass*>(op); }

OrtCustomOpInputOutputCharacteristic Characteristic(const TensorDef& tensor) {
  return tensor.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

OrtStatusPtr Create(const OrtCustomOp* self, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
  *kernel = nullptr;
  const OpClass& op_class = Self(self);
  const ApiScope scope(&op_class.api());
  std::string where;
  try {
    where = "node '" + NodeName(info) + "': ";
    *kernel = new OpKernel(op_class.api(), op_class.op(), op_class.kernel(), op_class.settings(), info);
    return nullptr;
  } catch (...) {
    return StatusFromCurrentException(where.c_str());
  }
}

OrtStatusPtr Compute(void* kernel, OrtKernelContext* context) {
  const OpKernel& op_kernel = *static_cast<OpKernel*>(kernel);
  const ApiScope scope(&op_kernel.api());
  return GuardedStatus(op_kernel.where(), [&] { op_kernel.Compute(context); });
}

OrtStatusPtr Infer(const OrtCustomOp* self, OrtShapeInferContext* context) {
  const ApiScope scope(&Self(self).api());
  return GuardedStatus("shape inference: ", [&] { InferShapes(Self(self).op(), context); });
}

void Destroy(void* kernel) {
  auto* op_kernel = static_cast<OpKernel*>(kernel);
  const ApiScope scope(&op_kernel->api());
  delete op_kernel;
}

}  // namespace

OpClass::OpClass(const OrtApi& api, const OpDef& op, const bertfuse_kernel& kernel, const CallSettings& settings,
                 int32_t dtype, int32_t index_dtype, int32_t weight_dtype, int32_t result_dtype, bool infer_shapes)
    : OrtCustomOp{},
      api_(api),
      op_(op),
      kernel_(kernel),
      settings_(settings),
      dtypes_{dtype, index_dtype, BERTFUSE_INT32, weight_dtype, BERTFUSE_FLOAT32, result_dtype} {
  version = kApiVersion;
  OrtCustomOp::GetName = [](const OrtCustomOp* self) { return Self(self).op().name; };
  OrtCustomOp::GetExecutionProviderType = [](const OrtCustomOp* self) {
    return Self(self).kernel().device == BERTFUSE_CUDA ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  OrtCustomOp::GetInputTypeCount = [](const OrtCustomOp* self) {
    return static_cast<size_t>(Self(self).op().num_inputs);
  };
  OrtCustomOp::GetInputType = [](const OrtCustomOp* self, size_t index) {
    return Self(self).TypeOf(Self(self).op().inputs[index]);
  };
  OrtCustomOp::GetInputCharacteristic = [](const OrtCustomOp* self, size_t index) {
    return Characteristic(Self(self).op().inputs[index]);
  };
  OrtCustomOp::GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  OrtCustomOp::GetOutputTypeCount = [](const OrtCustomOp* self) {
    return static_cast<size_t>(Self(self).op().num_outputs + Self(self).op().num_quantized_outputs);
  };
  OrtCustomOp::GetOutputType = [](const OrtCustomOp* self, size_t index) {
    return Self(self).TypeOf(Self(self).op().outputs[index]);
  };
  OrtCustomOp::GetOutputCharacteristic = [](const OrtCustomOp* self, size_t index) {
    return Characteristic(Self(self).op().outputs[index]);
  };
  OrtCustomOp::GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  OrtCustomOp::GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  OrtCustomOp::GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  OrtCustomOp::GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  OrtCustomOp::GetStartVersion = [](const OrtCustomOp*) { return 1; };
  OrtCustomOp::GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  CreateKernelV2 = Create;
  KernelComputeV2 = Compute;
  KernelDestroy = Destroy;
  if (infer_shapes) InferOutputShapeFn = Infer;
}

ONNXTensorElementDataType OpClass::TypeOf(const TensorDef& tensor) const {
  return static_cast<ONNXTensorElementDataType>(dtypes_[static_cast<int>(tensor.dtype)]);
}

}  // namespace bertfuse::ort
