#include "kernels/tensor_map.h"

namespace bertfuse::kernels {
namespace {

// Asked of the runtime, so that the library does not link against the driver and still loads on a host without one.
decltype(&cuTensorMapEncodeTiled) EncodeFunction() {
  static const auto function = [] {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) symbol = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(symbol);
  }();
  return function;
}

}  // namespace

cudaError_t MakeTensorMap(const MatrixView& matrix, bool bfloat16, CUtensorMap* map) {
  const auto encode = EncodeFunction();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t pitch = static_cast<cuuint64_t>(matrix.pitch) * 2, rows = static_cast<cuuint64_t>(matrix.rows);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(matrix.columns), rows, static_cast<cuuint64_t>(matrix.count)};
  const cuuint64_t pitch_bytes[2] = {pitch, pitch * rows};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(matrix.box_columns), static_cast<cuuint32_t>(matrix.box_rows), 1};
  const cuuint32_t strides[3] = {1, 1, 1};
  const CUtensorMapSwizzle swizzle = matrix.box_columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : matrix.box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult result = encode(map, bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                 matrix.count > 0 ? 3 : 2, const_cast<void*>(matrix.data), sizes, pitch_bytes, box,
                                 strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace bertfuse::kernels
