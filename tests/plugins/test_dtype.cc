#include <gtest/gtest.h>

#include "call_builder.h"
#include "core/dtype.h"
#include "core/op_table.h"

namespace bertfuse::test {
namespace {

TEST(Dtype, SwitchMakesConstants) {
  for (bertfuse_dtype dtype : {BERTFUSE_FLOAT32, BERTFUSE_FLOAT16, BERTFUSE_BFLOAT16}) {
    const int32_t seen = SwitchFloat(dtype, [](auto constant) {
      constexpr bertfuse_dtype kDtype = constant();
      return static_cast<int32_t>(kDtype);
    });
    EXPECT_EQ(seen, dtype);
  }
  EXPECT_EQ(SwitchIndex(BERTFUSE_INT32, [](auto tag) { return sizeof(tag); }), 4u);
  EXPECT_EQ(SwitchIndex(BERTFUSE_INT64, [](auto tag) { return sizeof(tag); }), 8u);
}

TEST(Dtype, SwitchRefusesTheRest) {
  for (int32_t dtype : {0, 6, 7, 9, 11, -1, 1000}) {
    EXPECT_NE(MessageOf([&] { SwitchFloat(dtype, [](auto) {}); }), "") << dtype;
  }
  for (int32_t dtype : {0, 1, 10, 16, 5}) {
    EXPECT_NE(MessageOf([&] { SwitchIndex(dtype, [](auto) {}); }), "") << dtype;
  }
}

TEST(Dtype, OpsTakeThoseThatAreListed) {
  const auto names = [](Variable variable) { return DtypeNames(DtypesOf(variable)); };
  EXPECT_EQ(names(Variable::kT), DtypeNames(kFloatDtypes));
  EXPECT_EQ(names(Variable::kI), DtypeNames(kIndexDtypes));
  EXPECT_EQ(names(Variable::kT), "float32, float16 or bfloat16");
  EXPECT_EQ(names(Variable::kC), "int32");
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(DtypeSize(BERTFUSE_FLOAT32), 4u);
  EXPECT_EQ(DtypeSize(BERTFUSE_BFLOAT16), 2u);
  EXPECT_EQ(DtypeSize(BERTFUSE_INT64), 8u);
  EXPECT_EQ(DtypeSize(BERTFUSE_ABSENT), 0u);
  EXPECT_STREQ(DtypeName(BERTFUSE_BFLOAT16), "bfloat16");
  EXPECT_STREQ(DtypeName(99), "an unknown dtype");
}

}  // namespace
}  // namespace bertfuse::test
