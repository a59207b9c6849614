// What the CUDA ops share: the call's device and stream, typed pointers, and launch failures as errors.
#ifndef BERTFUSE_OPS_CALL_H_
#define BERTFUSE_OPS_CALL_H_

#include <cstdio>
#include <string>
#include <type_traits>

#include "bertfuse/op.h"
#include "core/dtype.h"
#include "core/kernel_call.h"
#include "core/op_table.h"
#include "core/status.h"
#include "kernels/backend.h"
#include "kernels/elements.h"
#include "kernels/launch.h"
#include "ops/tuning.h"

namespace bertfuse::cuda {

template <bertfuse_dtype kDtype>
struct ElementOf;
#define BERTFUSE_ELEMENT(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template <>                                                        \
  struct ElementOf<BERTFUSE_##DTYPE> {                               \
    using Type = TYPE;                                               \
  };
BERTFUSE_DTYPES(BERTFUSE_ELEMENT)
#undef BERTFUSE_ELEMENT

// Whether tensor cores multiply T as it is: the types of the kernels for Hopper, and of attention on tensor cores.
template <class T>
inline constexpr bool kIsHalf = false;
#define BERTFUSE_IS_HALF(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template <>                                                        \
  inline constexpr bool kIsHalf<TYPE> = true;
BERTFUSE_HALF_DTYPES(BERTFUSE_IS_HALF)
#undef BERTFUSE_IS_HALF

// Calls body(T()) with the CUDA element type of a float dtype.
template <class Body>
auto SwitchElement(int32_t dtype, Body&& body) {
  return SwitchFloat(dtype, [&](auto constant) { return body(typename ElementOf<decltype(constant)::value>::Type()); });
}

// The call's device. Throws where there is none of that number.
const kernels::Device& DeviceOf(const bertfuse_call& call);

inline cudaStream_t StreamOf(const bertfuse_call& call) { return static_cast<cudaStream_t>(call.stream); }

// Throws RUNTIME_ERROR with the op's name unless `error` is success.
void CheckCuda(cudaError_t error, const char* op);

// Of rows that LayerNorm's kernels do not take.
[[noreturn]] void FailTooWide(const char* op, int64_t columns);

// Whether no kernel that may still be running writes the input: it is a constant, or not given.
inline bool IsConstant(const bertfuse_call& call, const bertfuse_tensor* input) {
  return input == nullptr || input->data == nullptr || (call.constant_inputs >> (input - call.inputs) & 1) != 0;
}

// Throws NOT_SUPPORTED where a tensor is bfloat16 and the GPU is older than that type.
inline void RefuseBfloat16(const char* op_name, const bertfuse_call& call, const kernels::Device& device) {
  if (device.compute_capability >= kernels::kFirstWithAllMmaTypes) return;
  const OpDef& op = *FindOp(op_name);
  for (int i = 0; i < call.num_inputs; ++i) {
    if (call.inputs[i].dtype != BERTFUSE_BFLOAT16) continue;
    Fail(
        BERTFUSE_NOT_SUPPORTED,
        "%s: input '%s' is bfloat16, which this GPU of compute capability %d.%d does not multiply: make the model with "
        "--dtype fp16",
        op.name, op.inputs[i].name, device.compute_capability / 10, device.compute_capability % 10);
  }
}

// Where a tensor is given, its data; else null.
template <class T>
T* Data(const bertfuse_tensor& tensor) {
  return tensor.dtype == BERTFUSE_ABSENT ? nullptr : static_cast<T*>(tensor.data);
}

// An op that has a choice.
struct Tactics {
  int32_t (*count)(const bertfuse_call& call);
  std::string (*describe)(const bertfuse_call& call, int32_t tactic);
  TunedProblem (*problem)(const bertfuse_call& call);
  const char* (*chosen_by)(const bertfuse_call& call) = nullptr;
};

inline int32_t Write(const std::string& from, char* text, size_t size) {
  return std::snprintf(text, size, "%s", from.c_str());
}

// One table entry: `kRun` throws, and launches on the call's device whichever is current.
template <class Op, void (*kRun)(const bertfuse_call&), size_t (*kWorkspaceSize)(const bertfuse_call&) = nullptr,
          const Tactics* kTactics = nullptr>
constexpr bertfuse_kernel CudaKernel() {
  bertfuse_kernel kernel = {};
  kernel.struct_size = sizeof(bertfuse_kernel);
  kernel.device = BERTFUSE_CUDA;
  kernel.op = Op::kName;
  kernel.run = [](const bertfuse_call* call, bertfuse_error* error) -> int32_t {
    return Guarded(error, [&] {
      CheckCallSize(Op::kName, *call);
      const kernels::Device& device = DeviceOf(*call);
      RefuseBfloat16(Op::kName, *call, device);
      const kernels::DeviceScope scope(device.id);
      CheckCuda(scope.error(), Op::kName);
      kRun(*call);
    });
  };
  if constexpr (kWorkspaceSize != nullptr) {
    kernel.workspace_size = [](const bertfuse_call* call, size_t* bytes, bertfuse_error* error) -> int32_t {
      return Guarded(error, [&] {
        CheckCallSize(Op::kName, *call);
        *bytes = kWorkspaceSize(*call);
      });
    };
  }
  if constexpr (kTactics != nullptr) {
    kernel.num_tactics = [](const bertfuse_call* call, int32_t* count, bertfuse_error* error) -> int32_t {
      return Guarded(error, [&] { *count = kTactics->count(*call); });
    };
    kernel.describe_tactic = [](const bertfuse_call* call, int32_t tactic, char* text, size_t size,
                                bertfuse_error* error) -> int32_t {
      return Guarded(error, [&] { Write(kTactics->describe(*call, tactic), text, size); });
    };
    kernel.describe_problem = [](const bertfuse_call* call, char* text, size_t size, bertfuse_error* error) -> int32_t {
      return Guarded(error, [&] {
        Validate(*FindOp(Op::kName), *call);
        Write(Describe(kTactics->problem(*call)), text, size);
      });
    };
    if constexpr (kTactics->chosen_by != nullptr) {
      kernel.describe_choice = [](const bertfuse_call* call, char* text, size_t size,
                                  bertfuse_error* error) -> int32_t {
        return Guarded(error, [&] { Write(kTactics->chosen_by(*call), text, size); });
      };
    }
  }
  return kernel;
}

extern const bertfuse_kernel kAddQKVBias;
extern const bertfuse_kernel kEmbedLayerNorm;
extern const bertfuse_kernel kFirstTokens;
extern const bertfuse_kernel kFusedAttention;
extern const bertfuse_kernel kFusedAttentionVariant;
extern const bertfuse_kernel kFusedGatedGemm;
extern const bertfuse_kernel kFusedGemm;
extern const bertfuse_kernel kFusedGemmGelu;
extern const bertfuse_kernel kFusedGemmGeluLayerNorm;
extern const bertfuse_kernel kFusedGemmLayerNorm;
extern const bertfuse_kernel kFusedGemmResidualNorm;
extern const bertfuse_kernel kFusedGemmRotary;
extern const bertfuse_kernel kFusedRMSNorm;
extern const bertfuse_kernel kPackTokens;
extern const bertfuse_kernel kRaggedPositions;
extern const bertfuse_kernel kRotaryTables;
extern const bertfuse_kernel kUnpackTokens;

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_CALL_H_
