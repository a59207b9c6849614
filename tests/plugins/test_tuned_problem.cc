// How tuning files name problems.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>

#include "core/dtype.h"
#include "core/op_table.h"
#include "op_table.generated.h"
#include "ops/tuned_problem.h"

namespace bertfuse::cuda {
namespace {

TEST(TunedProblem, NamesAreRead) {
  for (const char* text :
       {"FusedGemmGelu float16 4096x3072x768", "FusedGemm float16 4096x3072x768 gelu_tanh",
        "FusedGemm float16 1-131x768x768 packed deterministic", "FusedGemmLayerNorm bfloat16 1025-4096x768x768 packed",
        "FusedGemm float16-int8 4096x3072x768", "FusedGemm bfloat16-fp8 4096x3072x768 gelu",
        "FusedGemmLayerNorm float32-int8 10-40x768x3072 packed", "FusedGemm tf32 7x8x9",
        "FusedAttention float16 32x4096x12x64 packed", "FusedAttention float32 3x4x5x6",
        "FusedAttention tf32 3x4x5x6"}) {
    const auto range = ParseProblem(text);
    ASSERT_TRUE(range.has_value()) << text;
    EXPECT_EQ(Describe(range->problem, range->first_rows), text);
  }
  const auto range = ParseProblem("FusedGemm float16 10-131x768x512 packed");
  EXPECT_EQ(range->first_rows, 10);
  EXPECT_EQ(range->problem.sizes[0], 131);
  EXPECT_TRUE(range->problem.packed);
}

TEST(TunedProblem, NothingElseIs) {
  for (const char* text : {"",
                           "FusedGemm",
                           "FusedGemm float16",
                           "FusedGemm float16 1x2",
                           "FusedGemm float16 1x2x3x4",
                           "FusedGemm int8 1x2x3",
                           "FusedGemm tf32-int8 1x2x3",
                           "FusedGemm float16-int8x 1x2x3",
                           "FusedGemm float16-fp8-int8 1x2x3",
                           "FusedAttention float16-int8 1x3x4x5",
                           "FusedGemm float16 0x2x3",
                           "FusedGemm float16 5-4x2x3",
                           "FusedGemm float16 4-4x2x3",
                           "FusedGemm float16 -4x2x3",
                           "FusedGemm float16 1x2x3 relu",
                           "FusedGemm float16 1x2x3 deterministic packed",
                           "FusedGemm float16 1x2x3 ",
                           "FusedGemm float16 01x2x3",
                           "FusedGemmGelu float16 1x2x3 gelu",
                           "Gemm float16 1x2x3",
                           "FusedAttention float16 1-2x3x4x5",
                           "FusedAttention float16 1x3x4x5 deterministic",
                           "FusedGemm float16 99999999999999999999x2x3"}) {
    EXPECT_FALSE(ParseProblem(text).has_value()) << text;
  }
}

TEST(TunedProblem, RangesOfRowsLieSideBySide) {
  const TunedProblem one = ParseProblem("FusedGemm float16 1-131x768x512")->problem;
  EXPECT_TRUE(one.IsLikeButForRows(ParseProblem("FusedGemm float16 132x768x512")->problem));
  for (const char* other : {"FusedGemm float16-int8 1-131x768x512", "FusedGemm float16-fp8 1-131x768x512",
                            "FusedGemm float16 1-131x768x768", "FusedGemm float16 1-131x768x512 packed",
                            "FusedGemm bfloat16 1-131x768x512", "FusedGemm float16 1-131x768x512 gelu"}) {
    EXPECT_FALSE(one.IsLikeButForRows(ParseProblem(other)->problem)) << other;
  }
  EXPECT_LT(one, ParseProblem("FusedGemm float16 132x768x512")->problem);
  EXPECT_FALSE(ParseProblem("FusedGemm float16 7x768x768")->problem < one);
}

}  // namespace
}  // namespace bertfuse::cuda
