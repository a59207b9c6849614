// Layers executed on the CPU, by a copy of the library that takes the CPU kernels for CUDA's (cpu_kernels.cc).
#ifndef BERTFUSE_TESTS_TENSORRT_EXECUTION_H_
#define BERTFUSE_TESTS_TENSORRT_EXECUTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../call_builder.h"
#include "core/dtype.h"
#include "core/kernel_call.h"
#include "core/kernel_table.h"
#include "example.h"
#include "host_v8.h"

namespace bertfuse::test::tensorrt {

using Bytes = std::vector<unsigned char>;
inline constexpr size_t kGuard = 64;

// Through IPluginV3 and through IPluginV2DynamicExt.
struct V10 {
  static constexpr LoggerForm kForm = LoggerForm::kV10;
  using Engine = tensorrt::Engine;
  using Context = tensorrt::Context;
};
struct V8 {
  static constexpr LoggerForm kForm = LoggerForm::kV8;
  using Engine = v8::Engine;
  using Context = v8::Context;
};

template <class Interface>
class Execution : public ::testing::Test {
 protected:
  using Engine = typename Interface::Engine;
  using Context = typename Interface::Context;
  Host host{BERTFUSE_TRT_ON_CPU_LIBRARY, Interface::kForm};
};
using Interfaces = ::testing::Types<V10, V8>;

// One layer's tensors at some shapes, every input different from the others.
struct Tensors {
  Tensors(const Example& example, int64_t batch, int64_t sequence)
      : shapes(example.Shapes(batch, sequence)),
        described(example.op.num_inputs),
        outputs(example.Outputs(batch, sequence)) {
    for (int i = 0; i < example.op.num_inputs; ++i) {
      if ((example.present >> i & 1) == 0) continue;
      const TensorDef& def = example.op.inputs[i];
      const auto shape = example.ShapeOf(def, batch, sequence);
      bertfuse_tensor& tensor = described[i];
      tensor.dtype = example.DtypeOf(def);
      tensor.rank = static_cast<int32_t>(shape.size());
      std::copy(shape.begin(), shape.end(), tensor.shape);
      // A scalar of 8 bits lies in an int32.
      const size_t size = static_cast<size_t>(NumElements(tensor)) * DtypeSize(tensor.dtype);
      Bytes& bytes = inputs.emplace_back(std::max<size_t>(size, 4));
      if (def.dtype == Variable::kC) {
        FillPacked(tensor, def.name == std::string("places"), batch, sequence, &bytes);
      } else {
        Fill(tensor, i, &bytes);
      }
      tensor.data = bytes.data();
    }
  }

  // Zeros and ones for integers (all of them in their tables), a pattern for floats and those of 8 bits.
  static void Fill(const bertfuse_tensor& tensor, int input, Bytes* bytes) {
    for (int64_t i = 0; i < NumElements(tensor); ++i) {
      const float wave = std::sin(0.7f * static_cast<float>(i) + static_cast<float>(input));
      const int64_t bit = (i + input) % 3 == 0;
      const auto byte = static_cast<uint8_t>((i * 37 + input * 11) % 0x78 + (i % 2) * 0x80);  // as e4m3 no NaN
      uint32_t bits;
      std::memcpy(&bits, &wave, sizeof(bits));
      const auto brain = static_cast<uint16_t>(bits >> 16);
      const auto half = static_cast<uint16_t>(0x3800 + (i * 37 + input * 11) % 0x400 + (i % 2) * 0x8000);  // ±0.5 to 1
      const auto store = [&](const auto& value) {
        std::memcpy(bytes->data() + i * sizeof(value), &value, sizeof(value));
      };
      if (tensor.dtype == BERTFUSE_FLOAT32) store(wave);
      if (tensor.dtype == BERTFUSE_FLOAT16) store(half);
      if (tensor.dtype == BERTFUSE_BFLOAT16) store(brain);
      if (IsQuantized(tensor.dtype)) store(byte);
      if (tensor.dtype == BERTFUSE_INT32) store(static_cast<int32_t>(bit));
      if (tensor.dtype == BERTFUSE_INT64) store(bit);
    }
  }

  // As a batch without padding has them: what rows behind the real ones hold is not specified.
  static void FillPacked(const bertfuse_tensor& tensor, bool places, int64_t batch, int64_t sequence, Bytes* bytes) {
    const bool offsets = tensor.rank == 1 && tensor.shape[0] == batch + 1;
    for (int64_t i = 0; i < NumElements(tensor); ++i) {
      const auto value = static_cast<int32_t>(tensor.rank == 0 ? batch * sequence
                                              : offsets        ? i * sequence
                                              : places         ? i % sequence
                                                               : i);
      std::memcpy(bytes->data() + i * sizeof(value), &value, sizeof(value));
    }
  }

  std::vector<Bytes> Poisoned() const {
    std::vector<Bytes> made;
    for (const bertfuse_tensor& tensor : outputs) {
      made.emplace_back(static_cast<size_t>(NumElements(tensor)) * DtypeSize(tensor.dtype) + kGuard, 0xff);
    }
    return made;
  }

  // What the kernel itself gives.
  std::vector<Bytes> Direct(const Example& example) {
    std::vector<Bytes> results = Poisoned();
    for (size_t i = 0; i < results.size(); ++i) outputs[i].data = results[i].data();
    const bertfuse_kernel& kernel = *bertfuse_find_kernel(example.op.name, BERTFUSE_CPU);
    const bertfuse_host serial = SerialHost();
    bertfuse_call call = {};
    call.struct_size = sizeof(call);
    call.num_inputs = example.op.num_inputs;
    call.inputs = described.data();
    call.num_outputs = static_cast<int32_t>(outputs.size());
    call.outputs = outputs.data();
    call.num_attributes = example.op.num_attributes;
    call.attributes = example.fields.values();
    call.tactic = -1;
    call.host = &serial;
    Bytes workspace(WorkspaceSize(kernel, call));
    call.workspace = workspace.data();
    call.workspace_size = workspace.size();
    bertfuse_error error = {};
    EXPECT_EQ(kernel.run(&call, &error), BERTFUSE_OK) << error.message;
    return results;
  }

  std::vector<abi::Dims> shapes;  // of the inputs that are present
  std::vector<Bytes> inputs;
  std::vector<bertfuse_tensor> described, outputs;
};

template <class Engine, class Context>
std::vector<Bytes> Execute(const Engine& engine, Context& context, const Tensors& tensors) {
  context.SetShapes(tensors.shapes);
  std::vector<Bytes> results = tensors.Poisoned();
  Bytes workspace(engine.workspace() + kGuard, 0xff);
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Bytes& bytes : tensors.inputs) in.push_back(bytes.data());
  for (Bytes& bytes : results) out.push_back(bytes.data());
  context.Enqueue(in.data(), out.data(), engine.workspace() == 0 ? nullptr : workspace.data(), nullptr);
  EXPECT_EQ(Bytes(workspace.end() - kGuard, workspace.end()), Bytes(kGuard, 0xff)) << "wrote behind the workspace";
  return results;
}

}  // namespace bertfuse::test::tensorrt
#endif  // BERTFUSE_TESTS_TENSORRT_EXECUTION_H_
