#include <gtest/gtest.h>

#include <set>
#include <string>

#include "call_builder.h"
#include "core/kernel_table.h"
#include "op_table.generated.h"

namespace bertfuse::test {
namespace {

TEST(OpTable, EveryOpHasDistinctNamesAndAKernelOnTheCpu) {
  std::set<std::string> ops;
  for (const OpDef& op : AllOps()) {
    EXPECT_TRUE(ops.insert(op.name).second) << op.name;
    EXPECT_EQ(FindOp(op.name), &op);
    std::set<std::string> names;
    for (int i = 0; i < op.num_inputs; ++i) EXPECT_TRUE(names.insert(op.inputs[i].name).second) << op.name;
    for (int i = 0; i < op.num_outputs; ++i) EXPECT_TRUE(names.insert(op.outputs[i].name).second) << op.name;
    const bertfuse_kernel* kernel = bertfuse_find_kernel(op.name, BERTFUSE_CPU);
    ASSERT_NE(kernel, nullptr) << op.name;
    EXPECT_EQ(kernel->struct_size, sizeof(bertfuse_kernel));
    EXPECT_EQ(kernel->device, BERTFUSE_CPU);
    ASSERT_NE(kernel->run, nullptr);
  }
  EXPECT_EQ(static_cast<size_t>(CpuKernels().count), ops.size()) << "a kernel of no op";
}

TEST(OpTable, UnknownNamesAreNull) {
  EXPECT_EQ(FindOp("NoSuchOp"), nullptr);
  EXPECT_EQ(FindOp(""), nullptr);
  EXPECT_EQ(bertfuse_find_kernel("NoSuchOp", BERTFUSE_CPU), nullptr);
  EXPECT_EQ(bertfuse_find_kernel("FusedAttention", 17), nullptr);
}

TEST(OpTable, ACallOfAnotherReleaseIsRefused) {
  bertfuse_call call = {};
  call.struct_size = sizeof(call) - 8;
  try {
    Validate(*FindOp("FusedGemm"), call);
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), BERTFUSE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("caller and library are of two releases"), std::string::npos);
  }
  for (const bertfuse_kernel* kernel : CpuKernels()) {
    size_t bytes = 0;
    bertfuse_error error = {};
    EXPECT_EQ(kernel->run(&call, &error), BERTFUSE_INVALID_ARGUMENT) << kernel->op;
    EXPECT_EQ(kernel->workspace_size(&call, &bytes, &error), BERTFUSE_INVALID_ARGUMENT) << kernel->op;
    EXPECT_NE(std::string(error.message).find("two releases"), std::string::npos) << error.message;
  }
}

TEST(OpTable, GeneratedIndicesMatchTheTable) {
  const OpDef& op = *FindOp("FusedAttention");
  EXPECT_STREQ(op.inputs[FusedAttention::In::mask].name, "mask");
  EXPECT_TRUE(op.inputs[FusedAttention::In::mask].optional);
  EXPECT_EQ(op.inputs[FusedAttention::In::mask].dtype, Variable::kI);
  EXPECT_STREQ(op.attributes[FusedAttention::Attr::scale].name, "scale");
  EXPECT_TRUE(op.attributes[FusedAttention::Attr::scale].required);
  const AxisDef& packed = op.inputs[FusedAttention::In::qkv].axes[2];
  EXPECT_STREQ(packed.symbol, "H");
  EXPECT_EQ(packed.multiplier, 3);
  const AxisDef& heads = FindOp("AddQKVBias")->outputs[AddQKVBias::Out::q].axes[1];
  EXPECT_EQ(heads.value, static_cast<int>(AddQKVBias::Attr::num_heads));
}

TEST(OpTable, OffsetsAreOneMoreThanSequences) {
  CallBuilder pack("PackTokens");
  pack.In("mask", {3, 5}, BERTFUSE_INT64, 1).Build();
  EXPECT_EQ(pack.output(1).rank, 1);
  EXPECT_EQ(pack.output(1).shape[0], 4);
  EXPECT_EQ(pack.output(1).dtype, BERTFUSE_INT32);
  EXPECT_EQ(pack.output(2).rank, 0);
}

TEST(OpTable, DefaultsAreTheDescriptions) {
  const OpDef& op = *FindOp("FusedGemmGeluLayerNorm");
  bertfuse_value value;
  SetDefault(op.attributes[FusedGemmGeluLayerNorm::Attr::epsilon], &value);
  EXPECT_EQ(value.f, 1e-12f);
  SetDefault(op.attributes[FusedGemmGeluLayerNorm::Attr::approximate], &value);
  EXPECT_STREQ(value.s, "none");
}

TEST(Attributes, RangeAndChoices) {
  const OpDef& op = *FindOp("FusedGemmGeluLayerNorm");
  bertfuse_value values[2];
  auto check = [&](float epsilon, const char* approximate) {
    values[FusedGemmGeluLayerNorm::Attr::epsilon].f = epsilon;
    values[FusedGemmGeluLayerNorm::Attr::approximate].s = approximate;
    return MessageOf([&] { CheckAttributes(op, values); });
  };
  EXPECT_EQ(check(0.0f, "none"), "");
  EXPECT_EQ(check(1.0f, "tanh"), "");
  EXPECT_EQ(check(1.5f, "none"), "FusedGemmGeluLayerNorm: attribute 'epsilon' is 1.5, expected 0 to 1");
  EXPECT_NE(check(NAN, "none"), "");
  EXPECT_NE(check(-1e-9f, "none"), "");
  EXPECT_EQ(check(0.5f, "erf"), "FusedGemmGeluLayerNorm: attribute 'approximate' is 'erf', expected 'none' or 'tanh'");
  EXPECT_NE(check(0.5f, ""), "");
}

TEST(Status, LongMessagesAreCutOffAndTerminated) {
  const std::string text(2000, 'x');
  bertfuse_error error;
  std::memset(&error, 0x7f, sizeof(error));
  EXPECT_EQ(Guarded(&error, [&] { Fail(BERTFUSE_NOT_SUPPORTED, "%s", text.c_str()); }), BERTFUSE_NOT_SUPPORTED);
  EXPECT_EQ(error.code, BERTFUSE_NOT_SUPPORTED);
  EXPECT_EQ(std::strlen(error.message), size_t{BERTFUSE_MAX_MESSAGE} - 1);
}

TEST(Status, EveryExceptionBecomesACode) {
  bertfuse_error error = {};
  EXPECT_EQ(Guarded(&error, [] {}), BERTFUSE_OK);
  EXPECT_EQ(Guarded(&error, [] { throw std::runtime_error("told you"); }), BERTFUSE_RUNTIME_ERROR);
  EXPECT_STREQ(error.message, "told you");
  EXPECT_EQ(Guarded(&error, [] { throw 3; }), BERTFUSE_RUNTIME_ERROR);
  EXPECT_EQ(Guarded(nullptr, [] { throw std::bad_alloc(); }), BERTFUSE_RUNTIME_ERROR);
}

}  // namespace
}  // namespace bertfuse::test
