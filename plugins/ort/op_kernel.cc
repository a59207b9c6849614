#include "ort/op_kernel.h"

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/kernel_call.h"

namespace bertfuse::ort {
namespace {

constexpr size_t kWorkspaceAlignment = 256;

// Whether the call succeeded; a failure means "no such attribute" here.
bool Succeeded(OrtStatus* status) {
  if (status == nullptr) return true;
  Api().ReleaseStatus(status);
  return false;
}

class KernelInfoSource : public AttributeSource {
 public:
  explicit KernelInfoSource(const OrtKernelInfo* info) : info_(info) {}
  bool Read(const char* name, int64_t* value) const override {
    return Succeeded(Api().KernelInfoGetAttribute_int64(info_, name, value));
  }
  bool Read(const char* name, float* value) const override {
    return Succeeded(Api().KernelInfoGetAttribute_float(info_, name, value));
  }
  bool Read(const char* name, std::string* value) const override {
    size_t size = 0;
    if (!Succeeded(Api().KernelInfoGetAttribute_string(info_, name, nullptr, &size))) return false;
    std::string text(size, '\0');
    if (!Succeeded(Api().KernelInfoGetAttribute_string(info_, name, text.data(), &size))) return false;
    *value = text.c_str();
    return true;
  }

 private:
  const OrtKernelInfo* info_;
};

void* DataOf(const OrtValue* value) {
  void* data = nullptr;
  Check(Api().GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

// Element type and shape.
bertfuse_tensor Describe(const OpDef& op, const TensorDef& def, const OrtValue* value) {
  bertfuse_tensor tensor = {};
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(Api().GetTensorTypeAndShape(value, &raw));
  const Owned<OrtTensorTypeAndShapeInfo> info(raw);
  ONNXTensorElementDataType type;
  Check(Api().GetTensorElementType(info.get(), &type));
  size_t rank = 0;
  Check(Api().GetDimensionsCount(info.get(), &rank));
  if (rank > BERTFUSE_MAX_RANK) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' has rank %zu, expected at most %d", op.name, def.name, rank,
         BERTFUSE_MAX_RANK);
  }
  // ONNX Runtime numbers its element types as ONNX does, and so does bertfuse_dtype.
  tensor.dtype = static_cast<int32_t>(type);
  tensor.rank = static_cast<int32_t>(rank);
  Check(Api().GetDimensions(info.get(), tensor.shape, rank));
  return tensor;
}

// Scratch from the runtime's own allocator, given back when the run's work is queued. With a stream the arena knows
// that it is this run's, and hands it to a run on another stream only when that has waited for this one. (It would hand
// what AllocatorAlloc() gives to anybody at once.)
class Workspace {
 public:
  Workspace(OrtKernelContext* context, const OrtMemoryInfo* memory, const void* stream, size_t size) {
    if (size == 0) return;
    Check(Api().KernelContext_GetAllocator(context, memory, &allocator_));
    try {
      size += kWorkspaceAlignment;
      Check(stream != nullptr ? Api().KernelContext_GetScratchBuffer(context, memory, size, &data_)
                              : Api().AllocatorAlloc(allocator_, size, &data_));
      if (data_ == nullptr) Fail(BERTFUSE_RUNTIME_ERROR, "out of memory for %zu bytes of workspace", size);
    } catch (...) {
      Api().ReleaseAllocator(allocator_);
      throw;
    }
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (data_ != nullptr) Succeeded(Api().AllocatorFree(allocator_, data_));
    if (allocator_ != nullptr) Api().ReleaseAllocator(allocator_);
  }
  void* aligned() const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(data_);
    return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
  }

 private:
  OrtAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

// The session's logger, or null.
const void* SessionOf(const OrtKernelInfo* info) {
  const OrtLogger* logger = nullptr;
  return Succeeded(Api().KernelInfo_GetLogger(info, &logger)) ? logger : nullptr;
}

}  // namespace

std::string NodeName(const OrtKernelInfo* info) {
  size_t size = 0;
  if (!Succeeded(Api().KernelInfo_GetNodeName(info, nullptr, &size)) || size == 0) return "";
  std::string name(size, '\0');
  if (!Succeeded(Api().KernelInfo_GetNodeName(info, name.data(), &size))) return "";
  return name.c_str();
}

OpKernel::OpKernel(const OrtApi& api, const OpDef& op, const bertfuse_kernel& kernel, const CallSettings& settings,
                   const OrtKernelInfo* info)
    : api_(api),
      op_(op),
      kernel_(kernel),
      settings_(settings),
      where_("node '" + NodeName(info) + "': "),
      attributes_(op, KernelInfoSource(info)),
      order_(SessionOf(info)) {
  if (op.num_inputs > kMaxTensors || op.num_outputs + op.num_quantized_outputs > kMaxTensors) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: more than %d tensors", op.name, kMaxTensors);
  }
  OrtMemoryInfo* memory = nullptr;
  Check(Api().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  cpu_memory_.reset(memory);
  std::array<bertfuse_tensor, kMaxTensors> constants = {};
  for (int i = 0; i < op.num_inputs; ++i) {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    if (Succeeded(Api().KernelInfoGetConstantInput_tensor(info, i, &is_constant, &value)) && is_constant != 0 &&
        value != nullptr) {
      constant_inputs_ |= uint64_t{1} << i;
      constants[i] = inputs_[i] = Describe(op, op.inputs[i], value);
      constants[i].data = DataOf(value);
      if (std::strcmp(op.inputs[i].name, "weight") == 0) weight_ = i;
    }
  }
  Prepare(constants.data());
}

void OpKernel::Prepare(const bertfuse_tensor* inputs) {
  if (kernel_.prepare == nullptr) return;
  const std::array<bertfuse_tensor, kMaxTensors> outputs = {};
  bertfuse_call call = {};
  call.struct_size = sizeof(call);
  call.num_inputs = op_.num_inputs;
  call.inputs = inputs;
  call.num_outputs = op_.num_outputs;
  call.outputs = outputs.data();
  call.num_attributes = op_.num_attributes;
  call.attributes = attributes_.data();
  call.constant_inputs = constant_inputs_;
  constexpr size_t kAlignment = 64;
  const size_t size = (PreparedSize(kernel_, call) + kAlignment - 1) / kAlignment * kAlignment;
  if (size == 0) return;
  prepared_.reset(std::aligned_alloc(kAlignment, size));
  if (prepared_ == nullptr) Fail(BERTFUSE_RUNTIME_ERROR, "%s: out of memory for %zu bytes of weights", op_.name, size);
  bertfuse::Prepare(kernel_, call, prepared_.get());
}

void OpKernel::Compute(OrtKernelContext* context) const {
  std::array<bertfuse_tensor, kMaxTensors> inputs = inputs_, outputs = {};
  size_t given = 0;
  Check(Api().KernelContext_GetInputCount(context, &given));
  const OrtMemoryInfo* device_memory = cpu_memory_.get();
  for (int i = 0; i < op_.num_inputs && i < static_cast<int>(given); ++i) {
    const OrtValue* value = nullptr;
    Check(Api().KernelContext_GetInput(context, i, &value));
    if (value == nullptr) {
      inputs[i] = {};
      continue;
    }
    // ONNX Runtime allocates for an answer about shapes, and most inputs are weights.
    if ((constant_inputs_ >> i & 1) == 0) inputs[i] = Describe(op_, op_.inputs[i], value);
    inputs[i].data = DataOf(value);
    // Every input lies on the device that runs the kernel; the first one names it.
    if (i == 0) Check(Api().GetTensorMemoryInfo(value, &device_memory));
  }
  const int num_outputs =
      InferOutputs(op_, inputs.data(), attributes_.data(), outputs.data());  // and checks the inputs
  for (int i = 0; i < num_outputs; ++i) {
    OrtValue* value = nullptr;
    Check(Api().KernelContext_GetOutput(context, i, outputs[i].shape, static_cast<size_t>(outputs[i].rank), &value));
    if (value == nullptr) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: output '%s' is missing", op_.name, op_.outputs[i].name);
    }
    Check(Api().GetTensorMutableData(value, &outputs[i].data));
  }

  bertfuse_call call = {};
  call.struct_size = sizeof(call);
  call.num_inputs = op_.num_inputs;
  call.inputs = inputs.data();
  call.num_outputs = num_outputs;
  call.outputs = outputs.data();
  call.num_attributes = op_.num_attributes;
  call.attributes = attributes_.data();
  call.tactic = -1;
  call.constant_inputs = constant_inputs_;
  call.flags = settings_.flags;
  call.tuning = settings_.tuning;
  call.prepared = prepared_.get();
  if (kernel_.device == BERTFUSE_CUDA) {
    Weight mine;
    if (weight_ >= 0) {
      const bertfuse_tensor& weight = inputs[weight_];
      mine = {weight.data, static_cast<size_t>(NumElements(weight)) * DtypeSize(weight.dtype)};
    }
    const Weight next = order_.Enter(mine);
    call.next_weight = next.data, call.next_weight_bytes = next.bytes;
  }
  RunKernel(context, &call, device_memory);
}

void OpKernel::RunKernel(OrtKernelContext* context, bertfuse_call* call, const OrtMemoryInfo* device_memory) const {
  if (kernel_.device == BERTFUSE_CUDA) Check(Api().MemoryInfoGetId(device_memory, &call->device_id));
  const size_t size = WorkspaceSize(kernel_, *call);
  if (kernel_.device == BERTFUSE_CPU) {
    const Host host(context);
    const Workspace workspace(context, cpu_memory_.get(), nullptr, size);
    call->host = host.host();
    call->workspace = size == 0 ? nullptr : workspace.aligned();
    call->workspace_size = size;
    Run(kernel_, *call);
    return;
  }
  Check(Api().KernelContext_GetGPUComputeStream(context, &call->stream));
  const Workspace workspace(context, device_memory, call->stream, size);
  call->workspace = size == 0 ? nullptr : workspace.aligned();
  call->workspace_size = size;
  Run(kernel_, *call);
}

}  // namespace bertfuse::ort
