// plugins/kernels/cublaslt/abi.h against NVIDIA's header: every enumerator, every structure, and of every function the
// number and kinds of its parameters. Built only where the header is found (cmake/CublasLtHeader.cmake).
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "kernels/cublaslt/abi.h"

namespace ours = bertfuse::kernels::cublaslt;

namespace {

// Two types that a caller passes alike: both pointers, or both numbers of one size.
template <class A, class B>
constexpr bool kAlike = std::is_pointer_v<A> == std::is_pointer_v<B> && sizeof(A) == sizeof(B) &&
                        std::is_floating_point_v<A> == std::is_floating_point_v<B>;

template <class Theirs, class Ours>
struct SameCall : std::false_type {};
template <class R, class... P, class S, class... Q>
struct SameCall<R (*)(P...), S (*)(Q...)> {
  static constexpr bool kValue = [] {
    if constexpr (sizeof...(P) == sizeof...(Q)) {
      return kAlike<R, S> && (kAlike<P, Q> && ...);
    } else {
      return false;
    }
  }();
};

}  // namespace

namespace bertfuse::kernels::cublaslt {

#define BERTFUSE_SAME(NAME, RESULT, ...) \
  static_assert(SameCall<decltype(&::cublasLt##NAME), RESULT (*)(__VA_ARGS__)>::kValue, "cublasLt" #NAME);
BERTFUSE_CUBLASLT_FUNCTIONS(BERTFUSE_SAME)
#undef BERTFUSE_SAME
static_assert(SameCall<decltype(&::cublasLtGetStatusName), const char* (*)(int)>::kValue);

}  // namespace bertfuse::kernels::cublaslt

namespace {

#define EXPECT_NUMBER(THEIRS, OURS) EXPECT_EQ(static_cast<int64_t>(THEIRS), static_cast<int64_t>(ours::OURS))

TEST(OfficialCublasLtHeader, Numbers) {
  EXPECT_NUMBER(CUBLAS_STATUS_SUCCESS, kSuccess);
  EXPECT_NUMBER(CUBLAS_STATUS_NOT_INITIALIZED, kNotInitialized);
  EXPECT_NUMBER(CUBLAS_STATUS_INVALID_VALUE, kInvalidValue);
  EXPECT_NUMBER(CUBLAS_STATUS_INTERNAL_ERROR, kInternalError);
  EXPECT_NUMBER(CUBLAS_STATUS_NOT_SUPPORTED, kNotSupported);
  EXPECT_NUMBER(CUBLAS_COMPUTE_32F, kCompute32F);
  EXPECT_NUMBER(CUBLAS_COMPUTE_32F_FAST_TF32, kCompute32FFastTf32);
  EXPECT_NUMBER(CUBLAS_OP_N, kOpN);
  EXPECT_NUMBER(CUBLAS_OP_T, kOpT);
  EXPECT_NUMBER(CUBLASLT_EPILOGUE_DEFAULT, kEpilogueDefault);
  EXPECT_NUMBER(CUBLASLT_EPILOGUE_BIAS, kEpilogueBias);
  EXPECT_NUMBER(CUBLASLT_REDUCTION_SCHEME_NONE, kReductionNone);
  EXPECT_NUMBER(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, kReductionComputeType);
  EXPECT_NUMBER(CUBLASLT_MATMUL_DESC_TRANSA, kDescTransA);
  EXPECT_NUMBER(CUBLASLT_MATMUL_DESC_TRANSB, kDescTransB);
  EXPECT_NUMBER(CUBLASLT_MATMUL_DESC_EPILOGUE, kDescEpilogue);
  EXPECT_NUMBER(CUBLASLT_MATMUL_DESC_BIAS_POINTER, kDescBiasPointer);
  EXPECT_NUMBER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kPreferenceMaxWorkspaceBytes);
  EXPECT_NUMBER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kPreferenceReductionSchemeMask);
  EXPECT_NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kPreferenceMinAlignmentA);
  EXPECT_NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kPreferenceMinAlignmentB);
  EXPECT_NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kPreferenceMinAlignmentC);
  EXPECT_NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kPreferenceMinAlignmentD);
}

TEST(OfficialCublasLtHeader, Structures) {
  EXPECT_EQ(sizeof(cublasLtMatmulAlgo_t), sizeof(ours::Algorithm));
  EXPECT_EQ(sizeof(cublasLtMatmulHeuristicResult_t), sizeof(ours::HeuristicResult));
  EXPECT_EQ(offsetof(cublasLtMatmulHeuristicResult_t, algo), offsetof(ours::HeuristicResult, algorithm));
  EXPECT_EQ(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), offsetof(ours::HeuristicResult, workspace_bytes));
  EXPECT_EQ(offsetof(cublasLtMatmulHeuristicResult_t, state), offsetof(ours::HeuristicResult, state));
  EXPECT_EQ(offsetof(cublasLtMatmulHeuristicResult_t, wavesCount), offsetof(ours::HeuristicResult, waves));
}

// An attribute is set with the size of its type.
TEST(OfficialCublasLtHeader, AttributeTypes) {
  EXPECT_EQ(sizeof(int32_t), sizeof(ours::kOpT));            // int32_t, by the header's comments
  EXPECT_EQ(sizeof(uint32_t), sizeof(ours::kEpilogueBias));  // uint32_t
  EXPECT_EQ(sizeof(uint32_t), sizeof(ours::kReductionComputeType));
}

}  // namespace
