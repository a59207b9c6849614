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

CUtensorMapSwizzle SwizzleOf(size_t row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_32B;
}

// Sizes in elements, strides in bytes (of all dimensions but the first).
cudaError_t Encode(const void* data, int rank, const cuuint64_t* sizes, const cuuint64_t* strides,
                   const cuuint32_t* box, TensorMapElement element, CUtensorMap* map) {
  const auto encode = EncodeFunction();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint32_t every[5] = {1, 1, 1, 1, 1};
  const CUresult result = encode(map, element.type, rank, const_cast<void*>(data), sizes, strides, box, every,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, SwizzleOf(box[0] * element.bytes),
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t MakeTensorMap(const MatrixView& matrix, TensorMapElement element, CUtensorMap* map) {
  const cuuint64_t pitch = static_cast<cuuint64_t>(matrix.pitch) * element.bytes,
                   rows = static_cast<cuuint64_t>(matrix.rows);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(matrix.columns), rows, static_cast<cuuint64_t>(matrix.count)};
  const cuuint64_t strides[2] = {pitch, pitch * rows};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(matrix.box_columns), static_cast<cuuint32_t>(matrix.box_rows), 1};
  return Encode(matrix.data, matrix.count > 0 ? 3 : 2, sizes, strides, box, element, map);
}

cudaError_t MakePermutedRowsMap(const MatrixView& matrix, TensorMapElement element, CUtensorMap* map) {
  if (matrix.rows % kPermutedRows != 0 || matrix.box_rows % kPermutedRows != 0) return cudaErrorInvalidValue;
  const cuuint64_t pitch = static_cast<cuuint64_t>(matrix.pitch) * element.bytes;
  const cuuint64_t sizes[5] = {static_cast<cuuint64_t>(matrix.columns), 2, 4, 4,
                               static_cast<cuuint64_t>(matrix.rows / kPermutedRows)};
  // Strides need not grow from dimension to dimension: the driver asks for multiples of 16 bytes.
  const cuuint64_t strides[4] = {pitch, 8 * pitch, 2 * pitch, kPermutedRows * pitch};
  const cuuint32_t box[5] = {static_cast<cuuint32_t>(matrix.box_columns), 2, 4, 4,
                             static_cast<cuuint32_t>(matrix.box_rows / kPermutedRows)};
  return Encode(matrix.data, 5, sizes, strides, box, element, map);
}

}  // namespace bertfuse::kernels
