// How much workspace a layer asks for, with kernels that are made up: no GPU is needed. And which inputs it has, for
// ops that are.
#include <gtest/gtest.h>

#include "core/status.h"
#include "example.h"
#include "tensorrt/arrange.h"
#include "tensorrt/workspace.h"

namespace bertfuse::test::tensorrt {
namespace {

using bertfuse::tensorrt::FindPresent;
using bertfuse::tensorrt::Profile;
using bertfuse::tensorrt::WorkspaceFor;

constexpr size_t kFloat = sizeof(float);
constexpr int64_t kColumns = 20;

// As a kernel that splits its sums where there are few rows: 511 rows need more than 600.
size_t FewRowsNeedMore(const bertfuse_call* call) {
  const auto rows = static_cast<size_t>(NumElements(call->outputs[0]) / call->outputs[0].shape[2]);
  return rows * static_cast<size_t>(call->outputs[0].shape[2]) * kFloat * (rows < 512 ? 4 : 1);
}
size_t LessThanAFloat(const bertfuse_call*) { return 1; }
size_t Nothing(const bertfuse_call*) { return 0; }
size_t NoDevice(const bertfuse_call*) { Fail(BERTFUSE_RUNTIME_ERROR, "no such device"); }

// A profile of FusedGemmGelu on [batch, sequence, 12] with 20 columns.
class Layer {
 public:
  Layer(int64_t batch_low, int64_t batch_high, int64_t sequence_low, int64_t sequence_high) {
    Add({batch_low, sequence_low, 12}, {batch_high, sequence_high, 12});
    Add({kColumns, 12}, {kColumns, 12});
    Add({kColumns}, {kColumns});
    Add({batch_low, sequence_low, kColumns}, {batch_high, sequence_high, kColumns});
  }
  template <size_t (*kNeeds)(const bertfuse_call*)>
  size_t Workspace(int device = 0) const {
    bertfuse_kernel kernel = {};
    kernel.workspace_size = [](const bertfuse_call* call, size_t* bytes, bertfuse_error* error) -> int32_t {
      return Guarded(error, [&] { *bytes = kNeeds(call); });
    };
    return WorkspaceFor(op_, &kernel, device, fields_.values(), {7}, profile());
  }
  size_t WithKernelThatIsNotAsked() const {
    const bertfuse_kernel kernel = {};
    return WorkspaceFor(op_, &kernel, 0, fields_.values(), {7}, profile());
  }
  size_t WithoutKernel() const { return WorkspaceFor(op_, nullptr, 0, fields_.values(), {7}, profile()); }

 private:
  Profile profile() const { return {tensors_.data(), 3, tensors_.data() + 3}; }
  void Add(const std::vector<int64_t>& low, const std::vector<int64_t>& high) {
    const abi::Dims min = Example::DimsOf(low), max = Example::DimsOf(high);
    tensors_.push_back({{max, abi::DataType::kFLOAT, abi::TensorFormat::kLINEAR, 1.0f}, min, max, max});
  }

  const OpDef& op_ = *FindOp("FusedGemmGelu");
  ExampleFields fields_{op_};
  std::vector<abi::DynamicPluginTensorDesc> tensors_;
};

TEST(Workspace, IsWhatTheNeediestShapeNeeds) {
  EXPECT_EQ(Layer(1, 4, 1, 160).Workspace<FewRowsNeedMore>(), 508 * kColumns * kFloat * 4);  // 4 × 127
  EXPECT_EQ(Layer(1, 1, 1, 600).Workspace<FewRowsNeedMore>(), 511 * kColumns * kFloat * 4);
  EXPECT_EQ(Layer(8, 8, 64, 64).Workspace<FewRowsNeedMore>(), 512 * kColumns * kFloat);
}

TEST(Workspace, OfAWideProfileIsNearlyThat) {
  const size_t asked = Layer(1, 4, 1, 2000).Workspace<FewRowsNeedMore>();
  EXPECT_GE(asked, 511 * kColumns * kFloat * 4);
  EXPECT_EQ(Layer(1, 64, 1, 8192).Workspace<FewRowsNeedMore>(), 64 * 8192 * kColumns * kFloat);
}

TEST(Workspace, IsForSumsInPartsWhereTheKernelCannotBeAsked) {
  const size_t expected = 4 * 160 * kColumns * kFloat * 4;
  EXPECT_EQ(Layer(1, 4, 1, 160).WithoutKernel(), expected);
  EXPECT_EQ(Layer(1, 4, 1, 160).Workspace<FewRowsNeedMore>(-1), expected);
  EXPECT_EQ(Layer(1, 4, 1, 160).Workspace<NoDevice>(), expected);
  EXPECT_EQ(Layer(1, 64, 1, 4096).WithoutKernel(), 64 * 4096 * kColumns * kFloat);
  EXPECT_EQ(Layer(1, 8, 1, 4096).WithoutKernel(), size_t{8} << 20);
}

TEST(Workspace, IsAFloatPerElementAtLeast) {
  EXPECT_EQ(Layer(1, 4, 1, 160).Workspace<LessThanAFloat>(), 4 * 160 * kColumns * kFloat);
}

TEST(Workspace, HoldsBothFactorsOfAGate) {
  const OpDef& op = *FindOp("FusedGatedGemm");
  const ExampleFields fields(op);
  constexpr int64_t kRows = 100000;
  std::vector<abi::DynamicPluginTensorDesc> tensors;
  for (const auto& shape : {std::vector<int64_t>{1, kRows, 12}, {2 * kColumns, 12}, {1, kRows, kColumns}}) {
    const abi::Dims dims = Example::DimsOf(shape);
    tensors.push_back({{dims, abi::DataType::kFLOAT, abi::TensorFormat::kLINEAR, 1.0f}, dims, dims, dims});
  }
  const Profile profile = {tensors.data(), 2, tensors.data() + 2};
  EXPECT_GE(WorkspaceFor(op, nullptr, 0, fields.values(), {3}, profile), 2 * kFloat * kRows * kColumns);
}

TEST(Workspace, IsNoneWhereNoneIsNeeded) {
  EXPECT_EQ(Layer(1, 4, 1, 160).WithKernelThatIsNotAsked(), 0u);
  EXPECT_EQ(Layer(1, 4, 1, 160).Workspace<Nothing>(), 0u);
}

TEST(Arrangement, ThatIsNotCertainIsRefused) {
  static constexpr AxisDef kAxes[] = {{"H", "H", 1, -1, -1, 0}};
  static constexpr TensorDef kInputs[] = {
      {"x", Variable::kT, false, false, false, false, false, -1, -1, kAxes, 1},
      {"bias", Variable::kT, true, false, false, false, false, -1, -1, kAxes, 1},
      {"ids", Variable::kI, true, false, false, false, false, -1, -1, kAxes, 1},
      {"residual", Variable::kT, true, false, false, false, false, -1, -1, kAxes, 1},
  };
  static constexpr OpDef kOp = {"Made", kInputs, 4, kInputs, 1, 0, nullptr, 0};
  const int32_t t = BERTFUSE_FLOAT32, i = BERTFUSE_INT64;
  const int32_t floats[] = {t, t, t}, last[] = {t, t, i}, middle[] = {t, i, t}, indices[] = {t, i};
  const int32_t ranks[] = {1, 1, 1, 1};
  EXPECT_EQ(FindPresent(kOp, 3, floats, ranks), 0b1011u);
  EXPECT_EQ(FindPresent(kOp, 3, last, ranks), 0b0111u);
  EXPECT_EQ(FindPresent(kOp, 3, middle, ranks), 0b1101u);
  EXPECT_EQ(FindPresent(kOp, 2, indices, ranks), 0b0101u);
  EXPECT_EQ(Thrown([&] { FindPresent(kOp, 2, floats, ranks); }),
            "Made: 2 inputs that can be read in several ways as: x, bias?, ids?, residual?");
  EXPECT_EQ(FindPresent(kOp, 2, floats, nullptr), 0b0011u);  // which one is no matter for dtypes
  EXPECT_EQ(Thrown([&] { FindPresent(kOp, 5, floats, nullptr); }),
            "Made: 5 inputs are too many or too few for: x, bias?, ids?, residual?");
}

// What the engines of every op rest on: a number of inputs with their ranks is read in one way.
TEST(Arrangement, OfEveryOpIsCertain) {
  for (const OpDef& op : AllOps()) {
    for (uint32_t present : Readings(op)) {
      const Example example(op, present, BERTFUSE_FLOAT32, BERTFUSE_INT64);
      std::vector<int32_t> ranks, dtypes;
      for (const abi::Dims& shape : example.Shapes(2, 8)) ranks.push_back(shape.nbDims);
      for (int i = 0; i < op.num_inputs; ++i) {
        if (bertfuse::tensorrt::Has(present, i)) dtypes.push_back(example.dtypes[static_cast<int>(op.inputs[i].dtype)]);
      }
      EXPECT_EQ(FindPresent(op, static_cast<int>(ranks.size()), dtypes.data(), ranks.data()), present) << op.name;
    }
  }
}

}  // namespace
}  // namespace bertfuse::test::tensorrt
