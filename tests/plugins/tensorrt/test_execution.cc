// Layers executed on the CPU, in a copy of the library that takes the CPU kernels for CUDA's (cpu_kernels.cc): inputs
// and outputs in their places, shapes that change, contexts apart. tests/gpu does the same with the real kernels.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "../call_builder.h"
#include "core/dtype.h"
#include "core/kernel_call.h"
#include "core/kernel_table.h"
#include "example.h"
#include "host_v8.h"

namespace bertfuse::test::tensorrt {
namespace {

using Bytes = std::vector<unsigned char>;
constexpr size_t kGuard = 64;

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
TYPED_TEST_SUITE(Execution, Interfaces, );

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
      tensor.dtype = example.dtypes[static_cast<int>(def.dtype)];
      tensor.rank = static_cast<int32_t>(shape.size());
      std::copy(shape.begin(), shape.end(), tensor.shape);
      Bytes& bytes = inputs.emplace_back(static_cast<size_t>(NumElements(tensor)) * DtypeSize(tensor.dtype));
      if (def.dtype == Variable::kC) {
        FillPacked(tensor, def.name == std::string("places"), batch, sequence, &bytes);
      } else {
        Fill(tensor, i, &bytes);
      }
      tensor.data = bytes.data();
    }
  }

  // Zeros and ones for integers (all of them in their tables), a pattern for floats.
  static void Fill(const bertfuse_tensor& tensor, int input, Bytes* bytes) {
    for (int64_t i = 0; i < NumElements(tensor); ++i) {
      const float wave = std::sin(0.7f * static_cast<float>(i) + static_cast<float>(input));
      const int64_t bit = (i + input) % 3 == 0;
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
    call.num_outputs = example.op.num_outputs;
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

TYPED_TEST(Execution, GivesWhatTheKernelGives) {
  for (const OpDef& op : AllOps()) {
    for (uint32_t present : Readings(op)) {
      for (int32_t t : DtypesOf(Variable::kT)) {
        for (int32_t i : DtypesOf(Variable::kI)) {
          SCOPED_TRACE(std::string(op.name) + " with inputs " + std::to_string(present) + " of " + DtypeName(t));
          const Example example(op, present, t, i);
          typename TestFixture::Engine engine(this->host, op.name, example.fields.collection(), example.Inputs());
          typename TestFixture::Context context(engine, nullptr);
          for (const auto& [batch, sequence] : {std::pair<int64_t, int64_t>{2, 8}, {1, 1}, {4, 16}, {3, 5}}) {
            Tensors tensors(example, batch, sequence);
            const auto direct = tensors.Direct(example);
            EXPECT_NE(direct, tensors.Poisoned());
            EXPECT_EQ(Execute(engine, context, tensors), direct) << batch << " x " << sequence;
          }
        }
      }
    }
  }
}

// What the library remembers of the last call.
template <class T>
const T& Remembered(const char* name) {
  static void* library = dlopen(BERTFUSE_TRT_ON_CPU_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  const void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(name);
  return *static_cast<const T*>(symbol);
}

// Numbered as the op's inputs are, also where one is left out.
TYPED_TEST(Execution, ConstantInputsReachTheKernel) {
  const auto& reached = Remembered<uint64_t>("bertfuse_test_constant_inputs");
  const OpDef& op = *FindOp("FusedGemm");
  for (uint32_t present : Readings(op)) {
    for (int64_t constant : {0, 2, 6}) {
      Example example(op, present, BERTFUSE_FLOAT32, BERTFUSE_INT32);
      example.fields.fields().push_back({"constant_inputs", &constant, abi::PluginFieldType::kINT64, 1});
      const abi::PluginFieldCollection fields = {static_cast<int32_t>(example.fields.fields().size()),
                                                 example.fields.fields().data()};
      typename TestFixture::Engine engine(this->host, op.name, fields, example.Inputs());
      typename TestFixture::Context context(engine, nullptr);
      Tensors tensors(example, 2, 8);
      EXPECT_EQ(Execute(engine, context, tensors), tensors.Direct(example));
      EXPECT_EQ(reached, static_cast<uint64_t>(constant));
    }
  }
}

// A process reads them once: in one with other tests it may have.
TYPED_TEST(Execution, SettingsReachTheKernel) {
  setenv("BERTFUSE_TF32", "1", 1);
  setenv("BERTFUSE_DETERMINISTIC_ROWS", "1", 1);
  setenv("BERTFUSE_CUBLASLT", "1", 1);
  const OpDef& op = *FindOp("FusedGemm");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  typename TestFixture::Engine engine(this->host, op.name, example.fields.collection(), example.Inputs());
  typename TestFixture::Context context(engine, nullptr);
  Tensors tensors(example, 2, 8);
  Execute(engine, context, tensors);
  const uint32_t flags = Remembered<uint32_t>("bertfuse_test_flags");
  if (flags == 0) GTEST_SKIP() << "the settings were read before this test";
  EXPECT_EQ(flags, static_cast<uint32_t>(BERTFUSE_ALLOW_TF32 | BERTFUSE_DETERMINISTIC_ROWS));
}

TYPED_TEST(Execution, ContextsAreApart) {
  const OpDef& op = *FindOp("FusedGemmLayerNorm");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  typename TestFixture::Engine engine(this->host, op.name, example.fields.collection(), example.Inputs());
  int failures[4] = {};
  std::vector<std::thread> threads;
  for (int& failed : failures) {
    threads.emplace_back([&] {
      typename TestFixture::Context context(engine, nullptr);
      const auto offset = &failed - failures;
      for (int round = 0; round < 50; ++round) {
        Tensors tensors(example, 1 + (round + offset) % 4, 1 + (3 * round + offset) % 16);
        failed += Execute(engine, context, tensors) != tensors.Direct(example);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int failed : failures) EXPECT_EQ(failed, 0);
}

TYPED_TEST(Execution, ShapesThatWereRefusedLeaveTheOldOnes) {
  const OpDef& op = *FindOp("FusedGemmGelu");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  typename TestFixture::Engine engine(this->host, op.name, example.fields.collection(), example.Inputs());
  typename TestFixture::Context context(engine, nullptr);
  Tensors tensors(example, 2, 8);
  auto wrong = tensors.shapes;
  wrong[0].d[2] += 1;
  EXPECT_NE(Thrown([&] { context.SetShapes(wrong); }).find("input 'weight' axis 1"), std::string::npos);
  EXPECT_EQ(Execute(engine, context, tensors), tensors.Direct(example));
}

TYPED_TEST(Execution, WithoutTensors) {
  const OpDef& op = *FindOp("FusedGemmGelu");
  const Example example(op, AllInputs(op), BERTFUSE_FLOAT32, BERTFUSE_INT32);
  typename TestFixture::Engine engine(this->host, op.name, example.fields.collection(), example.Inputs());
  typename TestFixture::Context context(engine, nullptr);
  context.SetShapes(example.Shapes(2, 8));
  const std::string message = Thrown([&] { context.Enqueue(nullptr, nullptr, nullptr, nullptr); });
  EXPECT_NE(message.find("FusedGemmGelu: enqueue without tensors"), std::string::npos) << message;
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
