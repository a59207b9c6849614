// What is used of cuBLASLt's C ABI, declared anew: the library is looked for while a process runs (library.h), and no
// header of it is needed to build. Names and numbers are those of NVIDIA's cublasLt.h, the same from 11.1 to 13.0;
// tests/plugins/cublaslt compares them where that header is found.
#ifndef BERTFUSE_KERNELS_CUBLASLT_ABI_H_
#define BERTFUSE_KERNELS_CUBLASLT_ABI_H_

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace bertfuse::kernels::cublaslt {

enum Status : int {  // cublasStatus_t, those that are told apart here
  kSuccess = 0,
  kNotInitialized = 1,
  kInvalidValue = 7,
  kInternalError = 14,
  kNotSupported = 15,
};

enum ComputeType : int { kCompute32F = 68, kCompute32FFastTf32 = 77 };  // cublasComputeType_t
enum Operation : int32_t { kOpN = 0, kOpT = 1 };                        // cublasOperation_t
enum Epilogue : uint32_t { kEpilogueDefault = 1, kEpilogueBias = 4 };   // cublasLtEpilogue_t
// cublasLtReductionScheme_t: how partial sums over splits of k are added. A mask of none but kReductionComputeType
// leaves out atomic additions, whose order changes from run to run, and sums that are rounded to 16 bits.
enum ReductionScheme : uint32_t { kReductionNone = 0, kReductionComputeType = 2 };

// cublasLtMatmulDescAttributes_t
enum DescAttribute : int { kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7, kDescBiasPointer = 8 };
// cublasLtMatmulPreferenceAttributes_t
enum PreferenceAttribute : int {
  kPreferenceMaxWorkspaceBytes = 1,
  kPreferenceReductionSchemeMask = 3,
  kPreferenceMinAlignmentA = 5,
  kPreferenceMinAlignmentB = 6,
  kPreferenceMinAlignmentC = 7,
  kPreferenceMinAlignmentD = 8,
};

// cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t
using Handle = struct OpaqueHandle*;
using MatmulDesc = struct OpaqueMatmulDesc*;
using MatrixLayout = struct OpaqueMatrixLayout*;
using Preference = struct OpaquePreference*;

struct Algorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};

struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;  // Status; the other members mean something where it is kSuccess
  float waves;
  int reserved[4];
};

// X(name behind "cublasLt", result, parameters...)
#define BERTFUSE_CUBLASLT_FUNCTIONS(X)                                                                               \
  X(GetVersion, size_t)                                                                                              \
  X(Create, int, Handle*)                                                                                            \
  X(Destroy, int, Handle)                                                                                            \
  X(MatmulDescCreate, int, MatmulDesc*, int, cudaDataType_t)                                                         \
  X(MatmulDescDestroy, int, MatmulDesc)                                                                              \
  X(MatmulDescSetAttribute, int, MatmulDesc, int, const void*, size_t)                                               \
  X(MatrixLayoutCreate, int, MatrixLayout*, cudaDataType_t, uint64_t, uint64_t, int64_t)                             \
  X(MatrixLayoutDestroy, int, MatrixLayout)                                                                          \
  X(MatmulPreferenceCreate, int, Preference*)                                                                        \
  X(MatmulPreferenceDestroy, int, Preference)                                                                        \
  X(MatmulPreferenceSetAttribute, int, Preference, int, const void*, size_t)                                         \
  X(MatmulAlgoGetHeuristic, int, Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout,         \
    Preference, int, HeuristicResult*, int*)                                                                         \
  X(Matmul, int, Handle, MatmulDesc, const void*, const void*, MatrixLayout, const void*, MatrixLayout, const void*, \
    const void*, MatrixLayout, void*, MatrixLayout, const Algorithm*, void*, size_t, cudaStream_t)

}  // namespace bertfuse::kernels::cublaslt
#endif  // BERTFUSE_KERNELS_CUBLASLT_ABI_H_
