// Where errors are written: the logger of whatever TensorRT loaded the library, the context's recorder, or stderr.
#include <gtest/gtest.h>

#include "core/kernel_table.h"
#include "example.h"
#include "tensorrt/version.h"

namespace bertfuse::test::tensorrt {
namespace {

constexpr const char* kMissing = "bertfuse layer 'l': FusedAttention: attribute 'num_heads' is missing";

std::string StderrOf(Host& host) {
  ::testing::internal::CaptureStderr();
  const abi::PluginFieldCollection none = {0, nullptr};
  const PluginPointer plugin(host.Creator("FusedAttention").createPlugin("l", &none, abi::TensorRTPhase::kBUILD));
  EXPECT_EQ(plugin, nullptr);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Messages, GoToTheLoggerOfEveryKnownVersion) {
  Host host(BERTFUSE_TRT_LIBRARY);
  for (LoggerForm form : {LoggerForm::kV8, LoggerForm::kV10, LoggerForm::kV11, LoggerForm::kRtx}) {
    host.SetLogger(form);
    EXPECT_EQ(StderrOf(host), "");
    EXPECT_EQ(host.TakeLog().find(kMissing), 0u);
  }
}

// The logger and the registry (autoload.cc) are read by the same table.
TEST(Messages, AreWrittenToWhatHasAKnownForm) {
  using bertfuse::tensorrt::FormOf;
  using bertfuse::tensorrt::HostForm;
  for (int32_t version : {10700, 10701, 19999, 110000, 110100, 119999}) EXPECT_EQ(FormOf(version), HostForm::kV11);
  for (int32_t version : {100000, 100900, 109999}) EXPECT_EQ(FormOf(version), HostForm::kV10);
  for (int32_t version : {8500, 8503, 8600, 8601, 9000, 9300}) EXPECT_EQ(FormOf(version), HostForm::kV8);
  for (int32_t version : {0, 7200, 8401, 10699, 20000, 99999, 120000, 130000}) {
    EXPECT_EQ(FormOf(version), HostForm::kUnknown) << version;
  }
}

TEST(Messages, GoToStderrWhereTheLoggerIsUnknown) {
  Host host(BERTFUSE_TRT_LIBRARY);
  for (LoggerForm form : {LoggerForm::kUnknownVersion, LoggerForm::kV12, LoggerForm::kNone}) {
    host.SetLogger(form);
    EXPECT_EQ(StderrOf(host).find(kMissing), 0u);
    EXPECT_EQ(host.TakeLog(), "");
  }
}

// TensorRT has no way to hand a layer the tuning file or the TF32 switch: they are in the environment.
TEST(Messages, NameASettingThatCannotBe) {
  Host host(BERTFUSE_TRT_LIBRARY);
  host.SetLogger(LoggerForm::kV11);
  const Example example(*FindOp("FusedGemm"), 7, BERTFUSE_FLOAT32, BERTFUSE_INT32);
  const abi::PluginFieldCollection fields = example.fields.collection();
  const auto create = [&] {
    return PluginPointer(host.Creator("FusedGemm").createPlugin("l", &fields, abi::TensorRTPhase::kBUILD));
  };
  setenv("BERTFUSE_TF32", "fast", 1);
  const bool made = create() != nullptr;
  unsetenv("BERTFUSE_TF32");
  // A process reads them once: another test may have been the first.
  if (!made) {
    EXPECT_EQ(host.TakeLog(), "bertfuse layer 'l': BERTFUSE_TF32 is 'fast', expected '0' or '1'\n");
    EXPECT_NE(create(), nullptr);
  }
}

class Recorder final : public abi::IErrorRecorder {
 public:
  abi::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IErrorRecorder", 1, 0}; }
  int32_t getNbErrors() const noexcept override { return 0; }
  abi::ErrorCode getErrorCode(int32_t) const noexcept override { return code; }
  const char* getErrorDesc(int32_t) const noexcept override { return description.c_str(); }
  bool hasOverflowed() const noexcept override { return false; }
  void clear() noexcept override {}
  bool reportError(abi::ErrorCode reported, const char* desc) noexcept override {
    code = reported;
    description = desc;
    return true;
  }
  int32_t incRefCount() noexcept override { return 1; }
  int32_t decRefCount() noexcept override { return 1; }

  abi::ErrorCode code = abi::ErrorCode::kSUCCESS;
  std::string description;
};

TEST(Messages, GoToTheRecorderOfTheContext) {
  Host host(BERTFUSE_TRT_LIBRARY);
  const Example example(*FindOp("FusedGemmLayerNorm"), 63, BERTFUSE_FLOAT32, BERTFUSE_INT32);
  Engine engine(host, "FusedGemmLayerNorm", example.fields.collection(), example.Inputs());
  Recorder recorder, other;
  Context context(engine, &recorder), beside(engine, &other);
  auto shapes = example.Shapes(2, 8);
  shapes[0].d[2] += 1;
  EXPECT_NE(Thrown([&] { context.SetShapes(shapes); }), "");
  EXPECT_EQ(recorder.code, abi::ErrorCode::kINVALID_ARGUMENT);
  EXPECT_EQ(recorder.description.find("FusedGemmLayerNorm: input 'weight' axis 1 is "), 0u) << recorder.description;
  EXPECT_EQ(other.description, "");
}

TEST(Messages, AreCutToWhatARecorderKeeps) {
  Host host(BERTFUSE_TRT_LIBRARY);
  if (bertfuse_find_kernel("FusedGemmGeluLayerNorm", BERTFUSE_CUDA) != nullptr) GTEST_SKIP() << "has CUDA kernels";
  const Example example(*FindOp("FusedGemmGeluLayerNorm"), 63, BERTFUSE_FLOAT32, BERTFUSE_INT32);
  Engine engine(host, "FusedGemmGeluLayerNorm", example.fields.collection(), example.Inputs());
  Recorder recorder;
  Context context(engine, &recorder);
  context.SetShapes(example.Shapes(2, 8));
  EXPECT_NE(Thrown([&] { context.Enqueue(nullptr, nullptr, nullptr, nullptr); }), "");
  EXPECT_EQ(recorder.code, abi::ErrorCode::kUNSUPPORTED_STATE);
  EXPECT_EQ(recorder.description.size(), abi::IErrorRecorder::kMaxDescLength);
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
