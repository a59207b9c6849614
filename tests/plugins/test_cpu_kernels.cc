// Edges of the CPU kernels that a test through ONNX Runtime cannot reach: workspace bounds, failing hosts, order of
// ranges. Numbers are checked in test_ops.py.
#include <gtest/gtest.h>

#include <cmath>

#include "call_builder.h"

namespace bertfuse::test {
namespace {

void ExpectFinite(const CallBuilder& call) {
  for (int i = 0; i < call.op.num_outputs; ++i) {
    const bertfuse_tensor& output = call.output(i);
    for (int64_t at = 0; at < NumElements(output); ++at) {
      ASSERT_TRUE(std::isfinite(static_cast<const float*>(output.data)[at])) << call.op.name << " " << at;
    }
  }
}

CallBuilder Attention(int64_t batch, int64_t sequence, int64_t hidden, int64_t heads) {
  CallBuilder call("FusedAttention");
  call.In("qkv", {batch, sequence, 3 * hidden}).In("bias", {3 * hidden}).Int("num_heads", heads).Float("scale", 0.3f);
  return call;
}

CallBuilder Embed(int64_t batch, int64_t sequence, int64_t id) {
  CallBuilder call("EmbedLayerNorm");
  call.In("ids", {batch, sequence}, BERTFUSE_INT32, id).In("word_table", {7, 5}).In("position_table", {9, 5});
  call.In("gamma", {5}).In("beta", {5}).Float("epsilon", 1e-6f);
  return call;
}

TEST(CpuKernels, WriteTheirOutputsAndNothingBehindTheWorkspace) {
  for (int64_t sequence : {1, 31, 32, 33, 127, 128, 129, 300}) {
    CallBuilder call = Attention(2, sequence, 12, 3);
    call.Run();
    ExpectFinite(call);
  }
  for (int64_t sequence : {1, 9}) {
    CallBuilder call = Embed(3, sequence, 6);
    call.Run();
    ExpectFinite(call);
  }
}

TEST(CpuKernels, EmptyTensors) {
  Attention(0, 4, 12, 3).Run();
  Attention(4, 0, 12, 3).Run();
  Attention(2, 3, 0, 3).Run();
  Embed(0, 4, 0).Run();
  Embed(4, 0, 0).Run();
  CallBuilder gemm("FusedGemmGelu");
  gemm.In("x", {0, 4}).In("weight", {3, 4}).In("bias", {3}).Run();
  CallBuilder no_columns("FusedGemmLayerNorm");
  no_columns.In("x", {2, 4}).In("weight", {0, 4}).In("bias", {0}).In("residual", {2, 0}).In("gamma", {0});
  no_columns.In("beta", {0}).Run();
}

TEST(CpuKernels, AttentionWithEveryKeyHiddenIsTheMeanOfTheValues) {
  CallBuilder call = Attention(1, 200, 4, 1);
  call.In("mask", {1, 200}, BERTFUSE_INT64, 0);
  const float* y = call.Run();
  for (int64_t d = 0; d < 4; ++d) {
    double mean = 0;
    for (int64_t s = 0; s < 200; ++s) mean += (call.data<float>("qkv")[s * 12 + 8 + d]) / 200.0;
    mean += call.data<float>("bias")[8 + d];
    for (int64_t s = 0; s < 200; ++s) EXPECT_NEAR(y[s * 4 + d], mean, 1e-6);
  }
}

TEST(CpuKernels, AttentionWithScaleZeroIsTheMeanOfTheValues) {
  for (int64_t sequence : {5, 32, 200}) {  // with padding behind the keys, and without
    CallBuilder call = Attention(1, sequence, 4, 1);
    call.Float("scale", 0.0f);
    const float* y = call.Run();
    for (int64_t d = 0; d < 4; ++d) {
      double mean = call.data<float>("bias")[8 + d];
      for (int64_t s = 0; s < sequence; ++s)
        mean += call.data<float>("qkv")[s * 12 + 8 + d] / static_cast<double>(sequence);
      for (int64_t s = 0; s < sequence; ++s) EXPECT_NEAR(y[s * 4 + d], mean, 1e-6);
    }
  }
}

TEST(CpuKernels, AttentionIgnoresWhatIsHidden) {
  // Enormous values under hidden keys would show if their weight were not exactly 0.
  CallBuilder call = Attention(1, 150, 4, 1);
  call.In("mask", {1, 150}, BERTFUSE_INT32, 0);
  call.data<int32_t>("mask")[149] = 1;
  for (int64_t s = 0; s < 149; ++s) {
    for (int64_t d = 0; d < 4; ++d) call.data<float>("qkv")[s * 12 + 8 + d] = 1e30f;
  }
  const float* y = call.Run();
  for (int64_t d = 0; d < 4; ++d) {
    const float expected = call.data<float>("qkv")[149 * 12 + 8 + d] + call.data<float>("bias")[8 + d];
    EXPECT_FLOAT_EQ(y[d], expected);
  }
}

TEST(CpuKernels, IndicesOutOfRangeAreNamed) {
  EXPECT_EQ(MessageOf([] { Embed(2, 3, 7).Run(); }),
            "EmbedLayerNorm: input 'ids' holds the index 7, but 'word_table' has 7 rows");
  EXPECT_EQ(MessageOf([] { Embed(2, 3, -8).Run(); }),
            "EmbedLayerNorm: input 'ids' holds the index -8, but 'word_table' has 7 rows");
  EXPECT_EQ(MessageOf([] { Embed(2, 3, -7).Run(); }), "");
  EXPECT_EQ(MessageOf([] { Embed(1, 10, 0).Run(); }),
            "EmbedLayerNorm: the sequence has 10 tokens, but 'position_table' only 9 rows");
}

TEST(CpuKernels, TooSmallAWorkspaceIsRefused) {
  CallBuilder builder = Attention(1, 8, 12, 3);
  bertfuse_call call = builder.Build();
  const bertfuse_kernel* kernel = bertfuse_find_kernel("FusedAttention", BERTFUSE_CPU);
  std::vector<unsigned char> workspace(WorkspaceSize(*kernel, call));
  call.workspace = workspace.data();
  call.workspace_size = workspace.size() - 1;
  bertfuse_error error = {};
  EXPECT_EQ(kernel->run(&call, &error), BERTFUSE_RUNTIME_ERROR);
  EXPECT_NE(std::string(error.message).find("workspace"), std::string::npos);
  call.workspace = nullptr;
  EXPECT_EQ(kernel->run(&call, &error), BERTFUSE_RUNTIME_ERROR);
}

}  // namespace
}  // namespace bertfuse::test
