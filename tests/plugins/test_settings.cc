// What a process or a session says to the kernels.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/settings.h"
#include "core/status.h"

namespace bertfuse {
namespace {

template <class Body>
std::string Message(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), BERTFUSE_INVALID_ARGUMENT);
    return error.what();
  }
  return "";
}

TEST(Settings, Tf32IsOffUnlessAsked) {
  EXPECT_EQ(Tf32Flags("", "x"), 0u);
  EXPECT_EQ(Tf32Flags("0", "x"), 0u);
  EXPECT_EQ(Tf32Flags("1", "x"), static_cast<uint32_t>(BERTFUSE_ALLOW_TF32));
  for (const char* value : {"2", "yes", " 1", "true"}) {
    EXPECT_EQ(Message([&] { Tf32Flags(value, kTf32Variable); }),
              std::string("BERTFUSE_TF32 is '") + value + "', expected '0' or '1'");
  }
}

TEST(Settings, RowHintsAreOnUnlessTurnedOff) {
  EXPECT_EQ(RowHintFlags("", "x"), 0u);
  EXPECT_EQ(RowHintFlags("1", "x"), 0u);
  EXPECT_EQ(RowHintFlags("0", "x"), static_cast<uint32_t>(BERTFUSE_NO_ROW_HINTS));
  EXPECT_EQ(Message([] { RowHintFlags("off", kRowHintsVariable); }),
            "BERTFUSE_ROW_HINTS is 'off', expected '0' or '1'");
}

TEST(Settings, RowsAreDeterministicIfAsked) {
  EXPECT_EQ(DeterministicRowsFlags("", "x"), 0u);
  EXPECT_EQ(DeterministicRowsFlags("1", "x"), static_cast<uint32_t>(BERTFUSE_DETERMINISTIC_ROWS));
  EXPECT_EQ(Message([] { DeterministicRowsFlags("on", kDeterministicRowsVariable); }),
            "BERTFUSE_DETERMINISTIC_ROWS is 'on', expected '0' or '1'");
}

TEST(Settings, CublasLtIsOnUnlessTurnedOff) {
  EXPECT_EQ(CublasLtFlags("", "x"), 0u);
  EXPECT_EQ(CublasLtFlags("1", "x"), 0u);
  EXPECT_EQ(CublasLtFlags("0", "x"), static_cast<uint32_t>(BERTFUSE_NO_CUBLASLT));
  EXPECT_EQ(Message([] { CublasLtFlags("no", kCublasLtVariable); }), "BERTFUSE_CUBLASLT is 'no', expected '0' or '1'");
}

TEST(Settings, ATuningFileThatIsNotThereIsNamed) {
  EXPECT_EQ(Message([] { ReadTuningFile("no/such/file.tsv"); }),
            "no/such/file.tsv: the tuning file cannot be read; write one with 'bertfuse tune'");
}

TEST(Settings, ComeFromTheEnvironment) {
  setenv("BERTFUSE_TEST_SETTING", "1", 1);
  EXPECT_EQ(FromEnvironment("BERTFUSE_TEST_SETTING"), "1");
  unsetenv("BERTFUSE_TEST_SETTING");
  EXPECT_EQ(FromEnvironment("BERTFUSE_TEST_SETTING"), "");
}

}  // namespace
}  // namespace bertfuse
