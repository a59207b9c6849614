// One node of a session: its attributes, its kernel, and one run of it.
#ifndef BERTFUSE_ORT_OP_KERNEL_H_
#define BERTFUSE_ORT_OP_KERNEL_H_

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

#include "bertfuse/op.h"
#include "core/attributes.h"
#include "core/op_table.h"
#include "ort/host.h"
#include "ort/options.h"
#include "ort/run_order.h"

namespace bertfuse::ort {

class OpKernel {
 public:
  OpKernel(const OrtApi& api, const OpDef& op, const bertfuse_kernel& kernel, const CallSettings& settings,
           const OrtKernelInfo* info);
  void Compute(OrtKernelContext* context) const;
  const OrtApi& api() const { return api_; }
  // "node 'encoder/…': ", to go in front of what went wrong.
  const char* where() const { return where_.c_str(); }

 private:
  void RunKernel(OrtKernelContext* context, bertfuse_call* call, const OrtMemoryInfo* device_memory) const;
  // Has the kernel make what it wants of the constant inputs, whose data are given here.
  void Prepare(const bertfuse_tensor* inputs);

  const OrtApi& api_;
  const OpDef& op_;
  const bertfuse_kernel& kernel_;
  CallSettings settings_;
  std::string where_;
  Attributes attributes_;
  uint64_t constant_inputs_ = 0;
  std::array<bertfuse_tensor, kMaxTensors> inputs_ = {};  // those that are constant, without their data
  int weight_ = -1;                                       // the input that is a constant weight; -1: none is
  RunOrder order_;
  Owned<OrtMemoryInfo> cpu_memory_;
  std::unique_ptr<void, decltype(&std::free)> prepared_{nullptr, &std::free};
};

// A node's name for messages, "" where ONNX Runtime has none.
std::string NodeName(const OrtKernelInfo* info);

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_OP_KERNEL_H_
