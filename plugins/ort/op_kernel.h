// One node of a session: its attributes, its kernel, and one run of it.
#ifndef BERTFUSE_ORT_OP_KERNEL_H_
#define BERTFUSE_ORT_OP_KERNEL_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "bertfuse/op.h"
#include "core/op_table.h"
#include "ort/options.h"
#include "ort/host.h"

namespace bertfuse::ort {

// Where a node's attributes are read from: a kernel's info or a shape inference context. Each returns whether the node
// has an attribute of that name and kind.
class AttributeSource {
 public:
  virtual ~AttributeSource() = default;
  virtual bool Read(const char* name, int64_t* value) const = 0;
  virtual bool Read(const char* name, float* value) const = 0;
  virtual bool Read(const char* name, std::string* value) const = 0;
};

// The attributes of one node in the op's order, defaults filled in, checked.
  CallSettings settings_;
class Attributes {
 public:
  Attributes(const OpDef& op, const AttributeSource& source);
  const bertfuse_value* data() const { return values_.data(); }

 private:
  std::vector<bertfuse_value> values_;
  std::deque<std::string> strings_;  // what string values point to; a deque does not move them
};

class OpKernel {
 public:
  OpKernel(const OpDef& op, const bertfuse_kernel& kernel, const CallSettings& settings, const OrtKernelInfo* info);
  void Compute(OrtKernelContext* context) const;
  // "FusedGemmGelu node 'encoder/…': ", to go in front of what went wrong.
  const char* where() const { return where_.c_str(); }

 private:
  void RunKernel(OrtKernelContext* context, bertfuse_call* call, const OrtMemoryInfo* device_memory) const;

  const OpDef& op_;
  const bertfuse_kernel& kernel_;
  std::string where_;
  Attributes attributes_;
  uint64_t constant_inputs_ = 0;
  std::optional<HostGemm> gemm_;
  Owned<OrtMemoryInfo> cpu_memory_;
};

// A node's name for messages, "" where ONNX Runtime has none.
std::string NodeName(const OrtKernelInfo* info);

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_OP_KERNEL_H_
