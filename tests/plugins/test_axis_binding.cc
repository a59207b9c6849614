#include <gtest/gtest.h>

#include "call_builder.h"

namespace bertfuse::test {
namespace {

CallBuilder Attention(int64_t heads = 4) {
  CallBuilder call("FusedAttention");
  call.In("qkv", {2, 5, 48}).In("bias", {48}).Int("num_heads", heads).Float("scale", 0.5f);
  return call;
}

std::string BuildMessage(CallBuilder& call) {
  return MessageOf([&] { call.Build(); });
}

TEST(AxisBinding, OutputsFollowFromTheTable) {
  CallBuilder call = Attention();
  call.Build();
  EXPECT_EQ(call.output().rank, 3);
  EXPECT_EQ(call.output().shape[2], 16);
  EXPECT_EQ(call.output().dtype, BERTFUSE_FLOAT32);

  CallBuilder split("AddQKVBias");
  split.In("qkv", {2, 5, 48}).In("bias", {48}).Int("num_heads", 4).Build();
  for (int i = 0; i < 3; ++i) {
    const bertfuse_tensor& output = split.output(i);
    ASSERT_EQ(output.rank, 4);
    EXPECT_EQ(std::vector<int64_t>(output.shape, output.shape + 4), (std::vector<int64_t>{2, 4, 5, 4}));
  }
}

TEST(AxisBinding, AMultipleSaysWhereItsSymbolComesFrom) {
  CallBuilder call = Attention();
  call.In("bias", {45});
  EXPECT_EQ(BuildMessage(call), "FusedAttention: input 'bias' axis 0 is 45, expected 3*H = 48 (H from 'qkv')");
}

TEST(AxisBinding, AMultipleThatDoesNotDivide) {
  CallBuilder call = Attention();
  call.In("qkv", {2, 5, 47});
  EXPECT_EQ(BuildMessage(call), "FusedAttention: input 'qkv' axis 2 is 47, expected 3*H: a multiple of 3");
}

TEST(AxisBinding, HeadsMustDivide) {
  CallBuilder call = Attention(5);
  EXPECT_EQ(BuildMessage(call),
            "FusedAttention: attribute 'num_heads' is 5, expected a divisor of H = 16 (H from 'qkv')");
}

TEST(AxisBinding, RankSaysWhatIsExpected) {
  CallBuilder call = Attention();
  call.In("qkv", {5, 48});
  EXPECT_EQ(BuildMessage(call), "FusedAttention: input 'qkv' has rank 2 [5, 48], expected 3 [B, S, 3*H]");
  CallBuilder scalar("FusedGemmGelu");
  scalar.In("x", {}).In("weight", {3, 4}).In("bias", {3});
  EXPECT_EQ(BuildMessage(scalar), "FusedGemmGelu: input 'x' has rank 0 [], expected at least 1 [..., K]");
}

TEST(AxisBinding, LeadingAxesAgree) {
  CallBuilder call("FusedGemmLayerNorm");
  call.In("x", {2, 3, 4}).In("weight", {5, 4}).In("bias", {5}).In("gamma", {5}).In("beta", {5});
  call.In("residual", {2, 3, 5});
  EXPECT_EQ(BuildMessage(call), "");
  EXPECT_EQ(call.output().rank, 3);
  call.In("residual", {3, 2, 5});
  EXPECT_EQ(BuildMessage(call),
            "FusedGemmLayerNorm: input 'residual' has the leading axes [3, 2], expected [2, 3] (from 'x')");
  call.In("residual", {6, 5});
  EXPECT_NE(BuildMessage(call), "");
}

TEST(AxisBinding, DtypesAgree) {
  CallBuilder call = Attention();
  call.In("bias", {48}, BERTFUSE_FLOAT16);
  EXPECT_EQ(BuildMessage(call), "FusedAttention: input 'bias' is float16, expected float32 (T from 'qkv')");
  call.In("bias", {48}, BERTFUSE_INT64);
  EXPECT_EQ(BuildMessage(call), "FusedAttention: input 'bias' is int64 (7), expected float32, float16 or bfloat16");
}

TEST(AxisBinding, MissingAndNeededInputs) {
  CallBuilder call("FusedGemmGelu");
  call.In("x", {3, 4}).In("weight", {5, 4});
  EXPECT_EQ(BuildMessage(call), "FusedGemmGelu: input 'bias' is missing");
  CallBuilder embed("EmbedLayerNorm");
  embed.In("ids", {1, 2}, BERTFUSE_INT64).In("token_type_ids", {1, 2}, BERTFUSE_INT64).In("word_table", {9, 4});
  embed.In("position_table", {9, 4}).In("gamma", {4}).In("beta", {4});
  EXPECT_EQ(BuildMessage(embed),
            "EmbedLayerNorm: input 'token_type_ids' is given without 'token_type_table', which it needs");
}

TEST(AxisBinding, ArityAndOutputsOfACall) {
  CallBuilder builder = Attention();
  bertfuse_call call = builder.Build();
  const int all = call.num_inputs--;
  EXPECT_NE(MessageOf([&] { Validate(builder.op, call); }).find("expected " + std::to_string(all) + ", 1 and 2"),
            std::string::npos);
  call.num_inputs = all;
  bertfuse_tensor output = builder.output();
  output.shape[2] = 17;
  call.outputs = &output;
  EXPECT_EQ(MessageOf([&] { Validate(builder.op, call); }),
            "FusedAttention: output 'y' axis 2 is 17, expected H = 16 (H from 'qkv')");
}

TEST(AxisBinding, NegativeSizesAndRanks) {
  CallBuilder call = Attention();
  call.In("qkv", {2, 0, 48});
  EXPECT_EQ(BuildMessage(call), "");
  bertfuse_call raw = call.Raw();
  std::vector<bertfuse_tensor> inputs(raw.inputs, raw.inputs + raw.num_inputs);
  raw.inputs = inputs.data();
  inputs[0].shape[1] = -1;
  EXPECT_NE(MessageOf([&] { Validate(call.op, raw); }).find("axis 1 is -1"), std::string::npos);
  inputs[0].rank = 9;
  EXPECT_NE(MessageOf([&] { Validate(call.op, raw); }).find("rank 9, expected at most 8"), std::string::npos);
  inputs[0].rank = -1;
  EXPECT_NE(MessageOf([&] { Validate(call.op, raw); }), "");
}

DimList Named(std::initializer_list<Dim> dims) {
  DimList list;
  for (const Dim& dim : dims) list.dims[list.rank++] = dim;
  return list;
}

TEST(AxisBinding, UnknownSizesBindByNameAndLearn) {
  const OpDef& op = *FindOp("FusedAttention");
  bertfuse_value attributes[2];
  attributes[0].i = 4;
  attributes[1].f = 1.0f;
  AxisBinder axes(op, attributes);
  axes.Bind(op.inputs[0], "input", Named({{-1, "batch"}, {-1, "sequence"}, {-1, "width"}}));
  axes.CheckDivisors();
  DimList y = axes.Resolve(op.outputs[0]);
  ASSERT_EQ(y.rank, 3);
  EXPECT_STREQ(y.dims[0].name, "batch");
  EXPECT_FALSE(y.dims[2].known());
  EXPECT_EQ(y.dims[2].name, nullptr) << "a third of 'width' is not 'width'";
  axes.Bind(op.inputs[1], "input", Named({{48, nullptr}}));
  y = axes.Resolve(op.outputs[0]);
  EXPECT_EQ(y.dims[2].size, 16);
  axes.Bind(op.inputs[2], "input", Named({{2, nullptr}, {-1, "other"}}));
  y = axes.Resolve(op.outputs[0]);
  EXPECT_EQ(y.dims[0].size, 2) << "a known size replaces a name";
  EXPECT_STREQ(y.dims[1].name, "sequence");
}

TEST(AxisBinding, UnknownRankOfLeadingAxes) {
  const OpDef& op = *FindOp("FusedGemmGelu");
  bertfuse_value attributes[1];
  attributes[0].s = "none";
  AxisBinder axes(op, attributes);
  axes.Bind(op.inputs[1], "input", Named({{5, nullptr}, {4, nullptr}}));
  EXPECT_EQ(axes.Resolve(op.outputs[0]).rank, -1);
}

}  // namespace
}  // namespace bertfuse::test
