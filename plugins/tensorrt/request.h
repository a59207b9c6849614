// A call of the kernels' C ABI, filled in from TensorRT's tensor descriptions.
#ifndef BERTFUSE_TENSORRT_REQUEST_H_
#define BERTFUSE_TENSORRT_REQUEST_H_

#include <array>

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "core/settings.h"
#include "tensorrt/abi.h"
#include "tensorrt/form.h"

namespace bertfuse::tensorrt {

// The bertfuse_dtype, or -1 for a type that no op takes; and back, for one that ops take.
int32_t DtypeOf(abi::DataType type);
abi::DataType DataTypeOf(int32_t dtype);

// Tensors and call; not copyable, as the call points into it.
class Request {
 public:
  // `description_of(i)` is the abi::PluginTensorDesc of the layer's tensor i: first the inputs that are present, then
  // the outputs. Data is null. Throws INVALID_ARGUMENT for a tensor of 8 bits that is not int32 there.
  template <class DescriptionOf>
  Request(const OpDef& op, const bertfuse_value* attributes, const Form& form, const CallSettings& settings,
          DescriptionOf&& description_of) {
    int next = 0;
    for (int i = 0; i < op.num_inputs; ++i) {
      if (!Has(form.present, i)) continue;
      Describe(description_of(next++), &inputs_[i]);
      Restore(op, form, op.inputs[i], "input", &inputs_[i]);
    }
    call_.num_outputs = NumOutputs(op, form.present);
    for (int i = 0; i < call_.num_outputs; ++i) {
      Describe(description_of(next++), &outputs_[i]);
      Restore(op, form, op.outputs[i], "output", &outputs_[i]);
    }
    Finish(op, attributes, settings);
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  bertfuse_call& call() { return call_; }
  const bertfuse_call& call() const { return call_; }
  bertfuse_tensor& input(int index) { return inputs_[index]; }
  bertfuse_tensor& output(int index) { return outputs_[index]; }

 private:
  static void Describe(const abi::PluginTensorDesc& description, bertfuse_tensor* tensor);
  // Makes 8 bits again of what crosses the network as int32.
  static void Restore(const OpDef& op, const Form& form, const TensorDef& def, const char* role,
                      bertfuse_tensor* tensor);
  void Finish(const OpDef& op, const bertfuse_value* attributes, const CallSettings& settings);

  std::array<bertfuse_tensor, kMaxTensors> inputs_ = {}, outputs_ = {};
  bertfuse_call call_ = {};
};

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_REQUEST_H_
