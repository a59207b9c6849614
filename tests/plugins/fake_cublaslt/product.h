// A product as fake_cublaslt is given it: descriptors, what is wrong with them, and its result on the host.
#ifndef BERTFUSE_TESTS_PLUGINS_FAKE_CUBLASLT_PRODUCT_H_
#define BERTFUSE_TESTS_PLUGINS_FAKE_CUBLASLT_PRODUCT_H_

#include <string>

#include "kernels/cublaslt/abi.h"

namespace bertfuse::kernels::cublaslt {

struct OpaqueHandle {
  int device;
};
struct OpaqueMatmulDesc {
  int compute = 0, scale = 0;
  int32_t trans_a = kOpN, trans_b = kOpN;
  uint32_t epilogue = kEpilogueDefault;
  const void* bias = nullptr;
};
struct OpaqueMatrixLayout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
  bool operator==(const OpaqueMatrixLayout& o) const {
    return type == o.type && rows == o.rows && columns == o.columns && leading == o.leading;
  }
};
struct OpaquePreference {
  uint64_t workspace = 0;
  uint32_t reductions = 7, alignments[4] = {256, 256, 256, 256};
};

}  // namespace bertfuse::kernels::cublaslt

namespace fake_cublaslt {

using namespace bertfuse::kernels::cublaslt;

inline int64_t BytesOf(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

// What is wrong with a product's description, "" where nothing is.
std::string Judge(const OpaqueMatmulDesc& desc, const OpaqueMatrixLayout& a, const OpaqueMatrixLayout& b,
                  const OpaqueMatrixLayout& c, const OpaqueMatrixLayout& d);

// D = op(A) op(B) + bias, column-major, as cuBLASLt's documentation has it.
void Compute(const OpaqueMatmulDesc& desc, const void* a, const OpaqueMatrixLayout& al, const void* b,
             const OpaqueMatrixLayout& bl, void* d, const OpaqueMatrixLayout& dl);

}  // namespace fake_cublaslt
#endif  // BERTFUSE_TESTS_PLUGINS_FAKE_CUBLASLT_PRODUCT_H_
