#include <cstdint>
#include <cstring>

#include "fake_cudart.h"

namespace fake_cudart {
namespace {

struct EncodedMap {
  const void* data;
  uint8_t type, rank, interleave, swizzle, promotion, fill;
  uint16_t box[5];
  uint32_t sizes[5];
  uint8_t element_strides[5];
  uint64_t strides[4];
};
static_assert(sizeof(EncodedMap) <= sizeof(CUtensorMap));

}  // namespace

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                     const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const bool wide = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32, byte = type == CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const uint64_t element = wide ? 4 : byte ? 1 : 2;
  const uint64_t span = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 32;
  if (rank < 1 || rank > 5 || address == 0 || address % 16 != 0 || box[0] * element > span) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memset(map, 0, sizeof(*map));
  EncodedMap encoded = {};
  encoded.data = data, encoded.type = static_cast<uint8_t>(type), encoded.rank = static_cast<uint8_t>(rank);
  encoded.interleave = static_cast<uint8_t>(interleave), encoded.swizzle = static_cast<uint8_t>(swizzle);
  encoded.promotion = static_cast<uint8_t>(promotion), encoded.fill = static_cast<uint8_t>(fill);
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] < 1 || sizes[i] > uint64_t{1} << 32 || box[i] < 1 || box[i] > 256 || element_strides[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    encoded.sizes[i] = static_cast<uint32_t>(sizes[i] - 1), encoded.box[i] = static_cast<uint16_t>(box[i]);
    encoded.element_strides[i] = static_cast<uint8_t>(element_strides[i]);
    if (i + 1 == rank) continue;
    if (strides[i] % 16 != 0 || strides[i] >= uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
    encoded.strides[i] = strides[i];
  }
  std::memcpy(map, &encoded, sizeof(encoded));
  return CUDA_SUCCESS;
}

}  // namespace fake_cudart
