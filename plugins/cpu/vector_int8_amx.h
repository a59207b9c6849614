// Products of 8-bit integers by AMX. x's rows and the weight lie as they do for VNNI, which are tiles as they are.
#ifndef BERTFUSE_CPU_VECTOR_INT8_AMX_H_
#define BERTFUSE_CPU_VECTOR_INT8_AMX_H_

#include "cpu/vector_int8.h"

namespace bertfuse::cpu {
namespace {

// What LDTILECFG reads: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int kAmxRows = 16;

// The sums of kDown * 16 rows of x by kAcross vectors of the weight's rows, all of k.
template <int kDown, int kAcross>
inline void AmxSums(const char* rows, int64_t stride, const char* weight, int64_t groups,
                    int32_t (&sums)[kDown * kAmxRows][kAcross * kLanes]) {
  constexpr int kBytes = 64;
  _tile_zero(0);
  if constexpr (kAcross > 1) _tile_zero(1);
  if constexpr (kDown > 1) _tile_zero(2);
  if constexpr (kDown > 1 && kAcross > 1) _tile_zero(3);
  for (int64_t group = 0; group < groups; group += kGroupsStep) {
    const char* const x = rows + group * kGroup;
    const char* const w = weight + group * kVectorBytes;
    _tile_loadd(4, x, stride);
    _tile_loadd(6, w, kBytes);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kAcross > 1) {
      _tile_loadd(7, w + groups * kVectorBytes, kBytes);
      _tile_dpbsud(1, 4, 7);
    }
    if constexpr (kDown > 1) {
      _tile_loadd(5, x + kAmxRows * stride, stride);
      _tile_dpbsud(2, 5, 6);
    }
    if constexpr (kDown > 1 && kAcross > 1) _tile_dpbsud(3, 5, 7);
  }
  constexpr int kRowBytes = kAcross * kBytes;
  _tile_stored(0, sums[0], kRowBytes);
  if constexpr (kAcross > 1) _tile_stored(1, sums[0] + kLanes, kRowBytes);
  if constexpr (kDown > 1) _tile_stored(2, sums[kAmxRows], kRowBytes);
  if constexpr (kDown > 1 && kAcross > 1) _tile_stored(3, sums[kAmxRows] + kLanes, kRowBytes);
}

template <int kDown, int kAcross>
inline void AmxTile(const Int8Rows& x, int64_t first, const char* weight, const int32_t* weight_sums, int64_t columns,
                    const float* weight_scale, float* y, int64_t y_stride) {
  alignas(64) int32_t sums[kDown * kAmxRows][kAcross * kLanes];
  AmxSums<kDown, kAcross>(static_cast<const char*>(x.rows) + first * x.stride, x.stride, weight, Groups(x.k), sums);
  for (int64_t r = 0; r < kDown * kAmxRows; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < kAcross; ++c) {
      const VecInt all = FirstSums(x, first + r, weight_sums + c * kLanes) + LoadInt(sums[r] + c * kLanes);
      StoreScaled(all, x.scales[first + r], weight_scale + c * kLanes, y + r * y_stride + c * kLanes,
                  columns - c * kLanes);
    }
  }
}

// Rows beyond a multiple of 16 are left to VNNI.
void GemmInt8Amx(const Int8Rows& x, int64_t first, int64_t rows, const void* packed, const float* weight_scale,
                 int64_t column, int64_t columns, float* y, int64_t y_stride) {
  const int64_t vector_stride = Groups(x.k) * kVectorBytes, by_tiles = rows / kAmxRows * kAmxRows;
  const char* const weight = static_cast<const char*>(packed) + column / kLanes * vector_stride;
  if (by_tiles > 0) {
    const TileConfig config;
    _tile_loadconfig(&config);
    const auto tile = [&](auto down, auto across, int64_t row, int64_t j) {
      AmxTile<down(), across()>(x, first + row, weight + j / kLanes * vector_stride, x.sums + column + j, columns - j,
                                weight_scale + column + j, y + row * y_stride + j, y_stride);
    };
    const auto rows_of = [&](auto across, int64_t j) {
      int64_t row = 0;
      for (; row + 2 * kAmxRows <= by_tiles; row += 2 * kAmxRows) {
        tile(std::integral_constant<int, 2>(), across, row, j);
      }
      if (row < by_tiles) tile(std::integral_constant<int, 1>(), across, row, j);
    };
    int64_t j = 0;
    for (; columns - j > kLanes; j += 2 * kLanes) rows_of(std::integral_constant<int, 2>(), j);
    if (columns > j) rows_of(std::integral_constant<int, 1>(), j);
    _tile_release();  // ONNX Runtime's products reload their configuration only where they find another
  }
  if (by_tiles == rows) return;
  GemmInt8(x, first + by_tiles, rows - by_tiles, packed, weight_scale, column, columns, y + by_tiles * y_stride,
           y_stride);
}

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_INT8_AMX_H_
