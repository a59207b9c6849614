#include "cpu/call.h"

#include <array>
#include <cstring>

#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/vector_loops.h"

namespace bertfuse::cpu {
namespace {

// Whether a tensor is of floats, but not of those that kernels compute with.
bool IsConverted(const bertfuse_tensor& tensor) { return IsFloat(tensor.dtype) && tensor.dtype != BERTFUSE_FLOAT32; }

// The same call with such tensors replaced by float32 ones in the workspace.
struct ConvertedCall {
  ConvertedCall(const bertfuse_call& original, Arena& arena) : call(original) {
    if (call.num_inputs > kMaxTensors || call.num_outputs > kMaxTensors) {
      Fail(BERTFUSE_RUNTIME_ERROR, "more than %d tensors", kMaxTensors);
    }
    Replace(original.inputs, call.num_inputs, inputs.data(), arena);
    Replace(original.outputs, call.num_outputs, outputs.data(), arena);
    call.inputs = inputs.data();
    call.outputs = outputs.data();
    call.workspace = arena.rest();
    call.workspace_size = original.workspace_size - std::min(original.workspace_size, arena.used());
  }

  static void Replace(const bertfuse_tensor* from, int count, bertfuse_tensor* to, Arena& arena) {
    for (int i = 0; i < count; ++i) {
      to[i] = from[i];
      if (!IsConverted(from[i])) continue;
      to[i].data = arena.Take<float>(NumElements(from[i]));
      to[i].dtype = BERTFUSE_FLOAT32;
    }
  }

  bertfuse_call call;
  std::array<bertfuse_tensor, kMaxTensors> inputs;
  std::array<bertfuse_tensor, kMaxTensors> outputs;
};

template <class Convert>
void ConvertAll(const bertfuse_call& call, const bertfuse_tensor* tensors, int count, Convert convert) {
  for (int i = 0; i < count; ++i) {
    if (!IsConverted(tensors[i])) continue;
    ParallelFor(call, NumElements(tensors[i]), kGrainElements,
                [&](int64_t begin, int64_t end) { convert(i, begin, end - begin); });
  }
}

}  // namespace

void ToFloat(int32_t dtype, const void* x, float* y, int64_t count) {
  SwitchFloat(dtype, [&](auto constant) {
    if constexpr (constant() == BERTFUSE_FLOAT32) {
      std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float));
    } else if constexpr (constant() == BERTFUSE_FLOAT16) {
      Loops().float16_to_float(static_cast<const uint16_t*>(x), y, count);
    } else {
      static_assert(constant() == BERTFUSE_BFLOAT16, "an element type has its conversion here");
      Loops().bfloat16_to_float(static_cast<const uint16_t*>(x), y, count);
    }
  });
}

void FromFloat(int32_t dtype, const float* x, void* y, int64_t count) {
  SwitchFloat(dtype, [&](auto constant) {
    if constexpr (constant() == BERTFUSE_FLOAT32) {
      std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float));
    } else if constexpr (constant() == BERTFUSE_FLOAT16) {
      Loops().float_to_float16(x, static_cast<uint16_t*>(y), count);
    } else {
      static_assert(constant() == BERTFUSE_BFLOAT16, "an element type has its conversion here");
      Loops().float_to_bfloat16(x, static_cast<uint16_t*>(y), count);
    }
  });
}

size_t AnyFloatWorkspaceSize(const bertfuse_call& call, const Float32Kernel& kernel) {
  Arena arena;
  const ConvertedCall converted(call, arena);
  return arena.used() + (kernel.workspace_size == nullptr ? 0 : kernel.workspace_size(converted.call));
}

void RunAnyFloat(const bertfuse_call& call, const Float32Kernel& kernel) {
  RequireWorkspace(call, AnyFloatWorkspaceSize(call, kernel));
  Arena arena(call.workspace);
  const ConvertedCall converted(call, arena);
  ConvertAll(call, call.inputs, call.num_inputs, [&](int i, int64_t begin, int64_t count) {
    const bertfuse_tensor& from = call.inputs[i];
    ToFloat(from.dtype, ElementAt(from, begin), static_cast<float*>(converted.inputs[i].data) + begin, count);
  });
  kernel.run(converted.call);
  ConvertAll(call, call.outputs, call.num_outputs, [&](int i, int64_t begin, int64_t count) {
    const bertfuse_tensor& to = call.outputs[i];
    FromFloat(to.dtype, static_cast<const float*>(converted.outputs[i].data) + begin, ElementAt(to, begin), count);
  });
}

}  // namespace bertfuse::cpu
