// Layers executed on the CPU, in a copy of the library that takes the CPU kernels for CUDA's (cpu_kernels.cc): inputs
// and outputs in their places, shapes that change, contexts apart. tests/gpu does the same with the real kernels.
#include <dlfcn.h>

#include <thread>

#include "execution.h"

namespace bertfuse::test::tensorrt {
namespace {

TYPED_TEST_SUITE(Execution, Interfaces, );

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
