// x wᵀ of float32 matrices for many rows of x: the weight's rows are turned into panels, a few hundred of k at a time,
// where what a tile's columns multiply with one element of x lies side by side. The turning costs as much as some
// eight rows, the sums along k need no adding up of lanes, and nothing is kept beside the model's weights.
#ifndef BERTFUSE_CPU_VECTOR_PANELS_H_
#define BERTFUSE_CPU_VECTOR_PANELS_H_

#include <utility>

#include "cpu/vector.h"
#include "cpu/vector_gemm.h"

namespace bertfuse::cpu {
namespace {

// A tile is so many rows of x by two vectors of columns: its sums, a broadcast and two vectors of the panel fit the
// registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPanelTileRows = 12;
#else
constexpr int kPanelTileRows = 6;
#endif
constexpr int kPanelWidth = 2 * kLanes;
// What a tile reads of its panel and of x stays in the first cache level (45 KB with AVX-512), all panels of a chunk of
// columns in the second.
constexpr int64_t kPanelDepth = 256, kPanelStride = kPanelDepth + 16, kChunkColumns = 192;
static_assert(kChunkColumns % kPanelWidth == 0, "a chunk is whole panels");

// Where lane `at` comes from when blocks of `size` are exchanged between two vectors, the second's lanes from kLanes
// on.
constexpr int ExchangedFrom(int at, int size, bool second) {
  const bool own = (at & size) == (second ? size : 0);
  return second ? (own ? at + kLanes : at + size) : (own ? at : at - size + kLanes);
}

template <int size, bool second, int... kAt>
inline Vec Exchanged(Vec a, Vec b, std::integer_sequence<int, kAt...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, ExchangedFrom(kAt, size, second)...);
#else  // GCC has that one from 12 on only
  return __builtin_shuffle(a, b, VecInt{ExchangedFrom(kAt, size, second)...});
#endif
}

// A square of kLanes by kLanes, turned: blocks of 1, 2, 4, … lanes change places between vectors as far apart.
template <int size>
inline void Transpose(Vec* v) {
  if constexpr (size < kLanes) {
    constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & size) != 0) continue;
      const Vec a = v[i], b = v[i + size];
      v[i] = Exchanged<size, false>(a, b, kAll);
      v[i + size] = Exchanged<size, true>(a, b, kAll);
    }
    Transpose<2 * size>(v);
  }
}

// panel[depth, kPanelWidth] = weight[columns, depth]ᵀ, its rows k apart; zeros in columns that do not exist.
void PackPanel(const float* weight, int64_t columns, int64_t k, int64_t depth, float* panel) {
  for (int64_t side = 0; side < kPanelWidth; side += kLanes) {
    for (int64_t i = 0; i < depth; i += kLanes) {
      const int64_t count = depth - i < kLanes ? depth - i : kLanes;
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int c = 0; c < kLanes; ++c) {
        const float* from = weight + (side + c) * k + i;
        square[c] = side + c >= columns ? Vec{} : count == kLanes ? Load(from) : LoadPart(from, count);
      }
      Transpose<1>(square);
      for (int64_t r = 0; r < count; ++r) Store(panel + (i + r) * kPanelWidth + side, square[r]);
    }
  }
}

// y[kRows, columns] = x panel, or its sum with y.
template <int kRows>
inline void PanelTile(const float* x, const float* panel, int64_t depth, bool add, float* y, int64_t y_stride,
                      int64_t columns) {
  Vec left[kRows], right[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) left[r] = right[r] = Vec{};
  for (int64_t i = 0; i < depth; ++i) {
    const Vec w0 = Load(panel + i * kPanelWidth), w1 = Load(panel + i * kPanelWidth + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Vec v = Splat(x[r * kPanelStride + i]);
      left[r] = MultiplyAdd(v, w0, left[r]);
      right[r] = MultiplyAdd(v, w1, right[r]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    float* to = y + r * y_stride;
    if (columns == kPanelWidth) {
      Store(to, add ? Load(to) + left[r] : left[r]);
      Store(to + kLanes, add ? Load(to + kLanes) + right[r] : right[r]);
    } else {
      float sums[kPanelWidth];
      Store(sums, left[r]);
      Store(sums + kLanes, right[r]);
      for (int64_t c = 0; c < columns; ++c) to[c] = add ? to[c] + sums[c] : sums[c];
    }
  }
}

template <int kRows>
inline void PanelRows(int64_t rows, const float* x, const float* panel, int64_t depth, bool add, float* y,
                      int64_t y_stride, int64_t columns) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return PanelTile<kRows>(x, panel, depth, add, y, y_stride, columns);
    PanelRows<kRows - 1>(rows, x, panel, depth, add, y, y_stride, columns);
  }
}

// As Gemm of vector_gemm.h. A row's bits depend on nothing but it and the weights here, too, but are others.
void PanelGemm(const float* x, const float* weight, float* y, int64_t rows, int64_t columns, int64_t k,
               int64_t y_stride) {
  float panels[kChunkColumns * kPanelDepth];
  float piece[kPanelTileRows * kPanelStride];
  for (int64_t first = 0; first < columns; first += kChunkColumns) {
    const int64_t chunk = columns - first < kChunkColumns ? columns - first : kChunkColumns;
    for (int64_t begin = 0; begin == 0 || begin < k; begin += kPanelDepth) {
      const int64_t depth = k - begin < kPanelDepth ? k - begin : kPanelDepth;
      for (int64_t j = 0; j < chunk; j += kPanelWidth) {
        PackPanel(weight + (first + j) * k + begin, chunk - j, k, depth, panels + j * kPanelDepth);
      }
      for (int64_t row = 0; row < rows; row += kPanelTileRows) {
        const int64_t height = rows - row < kPanelTileRows ? rows - row : kPanelTileRows;
        for (int64_t r = 0; r < height; ++r) {
          __builtin_memcpy(piece + r * kPanelStride, x + (row + r) * k + begin,
                           static_cast<size_t>(depth) * sizeof(float));
        }
        for (int64_t j = 0; j < chunk; j += kPanelWidth) {
          PanelRows<kPanelTileRows>(height, piece, panels + j * kPanelDepth, depth, begin > 0,
                                    y + row * y_stride + first + j, y_stride,
                                    chunk - j < kPanelWidth ? chunk - j : kPanelWidth);
        }
      }
    }
  }
}

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_PANELS_H_
