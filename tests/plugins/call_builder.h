// A bertfuse_call built up by input name, with a host that runs everything on the calling thread.
#ifndef BERTFUSE_TESTS_CALL_BUILDER_H_
#define BERTFUSE_TESTS_CALL_BUILDER_H_

#include <cmath>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/kernel_call.h"
#include "core/op_table.h"

namespace bertfuse::test {

// Everything on the calling thread, in pieces and backwards: a body must not count on order.
inline bertfuse_host SerialHost() {
  bertfuse_host host = {};
  host.parallel_for = [](void*, int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* user) {
    for (int64_t end = count; end > 0; end -= grain) body(user, end > grain ? end - grain : 0, end);
  };
  return host;
}

class CallBuilder {
 public:
  explicit CallBuilder(const char* name)
      : op(*FindOp(name)), inputs_(op.num_inputs), outputs_(op.num_outputs), attributes_(op.num_attributes) {
    for (int i = 0; i < op.num_attributes; ++i) SetDefault(op.attributes[i], &attributes_[i]);
  }

  // An input filled with a smooth, reproducible pattern (floats) or with `index` (integers).
  CallBuilder& In(const std::string& name, std::initializer_list<int64_t> shape, int32_t dtype = BERTFUSE_FLOAT32,
                  int64_t index = 0) {
    bertfuse_tensor& tensor = inputs_[Index(name)];
    tensor = Shaped(shape, dtype);
    const int64_t count = NumElements(tensor);
    auto& bytes = storage_.emplace_back(static_cast<size_t>(count) * DtypeSize(dtype) + 1);
    tensor.data = bytes.data();
    for (int64_t i = 0; i < count; ++i) {
      if (dtype == BERTFUSE_FLOAT32) static_cast<float*>(tensor.data)[i] = std::sin(0.7f * float(i) + float(name[0]));
      if (dtype == BERTFUSE_INT32) static_cast<int32_t*>(tensor.data)[i] = static_cast<int32_t>(index);
      if (dtype == BERTFUSE_INT64) static_cast<int64_t*>(tensor.data)[i] = index;
    }
    return *this;
  }

  CallBuilder& Int(const std::string& name, int64_t value) {
    attributes_[AttributeIndex(name)].i = value;
    return *this;
  }
  CallBuilder& Float(const std::string& name, float value) {
    attributes_[AttributeIndex(name)].f = value;
    return *this;
  }
  CallBuilder& String(const std::string& name, const char* value) {
    attributes_[AttributeIndex(name)].s = value;
    return *this;
  }

  // Infers and allocates the outputs (NaN), checks the call. Throws Error.
  bertfuse_call Build() {
    outputs_.resize(NumOutputs(op, inputs_.data()));
    InferOutputs(op, inputs_.data(), attributes_.data(), outputs_.data());
    for (bertfuse_tensor& output : outputs_) {
      auto& bytes = storage_.emplace_back(static_cast<size_t>(NumElements(output)) * DtypeSize(output.dtype) + 1);
      std::memset(bytes.data(), 0xff, bytes.size());
      output.data = bytes.data();
    }
    bertfuse_call call = Raw();
    Validate(op, call);
    return call;
  }

  // The call as it stands, unchecked.
  bertfuse_call Raw() {
    bertfuse_call call = {};
    call.struct_size = sizeof(call);
    call.num_inputs = static_cast<int32_t>(inputs_.size());
    call.inputs = inputs_.data();
    call.num_outputs = static_cast<int32_t>(outputs_.size());
    call.outputs = outputs_.data();
    call.num_attributes = static_cast<int32_t>(attributes_.size());
    call.attributes = attributes_.data();
    call.tactic = -1;
    call.host = &host_;
    return call;
  }

  // Builds and runs on the CPU with exactly the workspace asked for; a guard behind it must survive.
  const float* Run() {
    bertfuse_call call = Build();
    const bertfuse_kernel* kernel = bertfuse_find_kernel(op.name, BERTFUSE_CPU);
    if (kernel == nullptr) throw std::runtime_error("no kernel");
    const size_t size = WorkspaceSize(*kernel, call);
    constexpr size_t kGuard = 64;
    std::vector<unsigned char> workspace(size + kGuard, 0xa5);
    call.workspace = size == 0 ? nullptr : workspace.data();
    call.workspace_size = size;
    bertfuse::Run(*kernel, call);
    for (size_t i = 0; i < kGuard; ++i) {
      if (workspace[size + i] != 0xa5) throw std::runtime_error("wrote behind the workspace");
    }
    return static_cast<const float*>(outputs_[0].data);
  }

  const bertfuse_tensor& output(int index = 0) const { return outputs_[index]; }
  template <class T>
  T* data(const std::string& name) {
    return static_cast<T*>(inputs_[Index(name)].data);
  }

  const OpDef& op;

 private:
  static bertfuse_tensor Shaped(std::initializer_list<int64_t> shape, int32_t dtype) {
    bertfuse_tensor tensor = {};
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    int axis = 0;
    for (int64_t size : shape) {
      if (axis < BERTFUSE_MAX_RANK) tensor.shape[axis++] = size;
    }
    return tensor;
  }
  int Index(const std::string& name) const {
    for (int i = 0; i < op.num_inputs; ++i) {
      if (name == op.inputs[i].name) return i;
    }
    throw std::runtime_error("no input " + name);
  }
  int AttributeIndex(const std::string& name) const {
    for (int i = 0; i < op.num_attributes; ++i) {
      if (name == op.attributes[i].name) return i;
    }
    throw std::runtime_error("no attribute " + name);
  }

  std::vector<bertfuse_tensor> inputs_, outputs_;
  std::vector<bertfuse_value> attributes_;
  std::deque<std::vector<unsigned char>> storage_;
  bertfuse_host host_ = SerialHost();
};

// The message of the Error that `body` throws, "" if it throws none.
template <class Body>
std::string MessageOf(Body&& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace bertfuse::test
#endif  // BERTFUSE_TESTS_CALL_BUILDER_H_
