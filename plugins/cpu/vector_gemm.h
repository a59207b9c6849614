// x wᵀ of float32 matrices as they lie in memory: both run along k, so that nothing is packed before or kept beside the
// model's weights. A tile's sums are vectors of partial sums along k until its end.
#ifndef BERTFUSE_CPU_VECTOR_GEMM_H_
#define BERTFUSE_CPU_VECTOR_GEMM_H_

#include <utility>

#include "cpu/vector.h"

namespace bertfuse::cpu {
namespace {

// A tile is kTileRows of x by 4 of the weight. Its sums, and the vectors that they are made of, fit the registers: 32
// of AVX-512 and of 64-bit ARM, else 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 3;
#endif
// Of k at a time, rows of x that a tile's columns are multiplied with before the next ones, and their distance: what a
// tile reads of x and of the weight stays in the first cache level (25 KB). 48 rows of 768 took a sixth longer.
constexpr int64_t kDepth = 384;
constexpr int64_t kPieceRows = 12, kPieceStride = kDepth + 16;
// How far ahead of a tile the weight is asked for, in elements.
constexpr int64_t kAhead = 4096;

typedef float Vec4 __attribute__((vector_size(16)));
typedef float UnalignedVec4 __attribute__((vector_size(16), aligned(4), may_alias));

// Where lane `at` comes from if each group of four takes elements i, j, k, l of a's group (0 to 3) and b's (4 to 7).
constexpr int LaneFrom(int at, int i, int j, int k, int l) {
  const int element = at % 4 == 0 ? i : at % 4 == 1 ? j : at % 4 == 2 ? k : l;
  return at / 4 * 4 + element % 4 + element / 4 * kLanes;
}

template <int i, int j, int k, int l, int... kAt>
inline Vec Shuffle(Vec a, Vec b, std::integer_sequence<int, kAt...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, LaneFrom(kAt, i, j, k, l)...);
#else  // GCC has that one from 12 on only
  return __builtin_shuffle(a, b, VecInt{LaneFrom(kAt, i, j, k, l)...});
#endif
}

template <int i, int j, int k, int l>
inline Vec Shuffle(Vec a, Vec b) {
  return Shuffle<i, j, k, l>(a, b, std::make_integer_sequence<int, kLanes>());
}

// The sums of four vectors' lanes.
inline Vec4 Sums(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = Shuffle<0, 4, 1, 5>(a, b) + Shuffle<2, 6, 3, 7>(a, b);
  const Vec cd = Shuffle<0, 4, 1, 5>(c, d) + Shuffle<2, 6, 3, 7>(c, d);
  const Vec abcd = Shuffle<0, 1, 4, 5>(ab, cd) + Shuffle<2, 3, 6, 7>(ab, cd);
  Vec4 groups[kLanes / 4];
  __builtin_memcpy(groups, &abcd, sizeof(abcd));
  for (int group = 1; group < kLanes / 4; ++group) groups[0] += groups[group];
  return groups[0];
}

// The first `count` elements, and zeros.
inline Vec LoadPart(const float* p, int64_t count) {
  Vec v = {};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}

// One tile over `depth` of k: its sums become y (or are added to it, where y has those of what came before).
template <int kRows, int kColumns>
inline void Tile(const float* x, const float* weight, int64_t k, int64_t depth, bool add, float* y, int64_t y_stride) {
  Vec sums[kRows][4];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = Vec{};
  const auto multiply = [&](auto load, int64_t i) {
    const Vec w0 = load(weight + i), w1 = kColumns > 1 ? load(weight + k + i) : Vec{};
    const Vec w2 = kColumns > 2 ? load(weight + 2 * k + i) : Vec{};
    const Vec w3 = kColumns > 3 ? load(weight + 3 * k + i) : Vec{};
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec v = load(x + r * kPieceStride + i);
      sums[r][0] = MultiplyAdd(v, w0, sums[r][0]);
      if (kColumns > 1) sums[r][1] = MultiplyAdd(v, w1, sums[r][1]);
      if (kColumns > 2) sums[r][2] = MultiplyAdd(v, w2, sums[r][2]);
      if (kColumns > 3) sums[r][3] = MultiplyAdd(v, w3, sums[r][3]);
    }
  };
  // For few rows the weight comes from memory, and the hardware's prefetchers give up at each of its short rows:
  // without these k = 384 reads 10 GB/s instead of 15. Rows that are next to each other are one stretch.
  const bool whole = depth == k;
  const float* ahead = weight + (kAhead / (4 * depth + 1) + 1) * 4 * k;
  const int64_t step = whole ? 4 : 1, stride = whole ? kLanes : k;
  int64_t i = 0;
  for (; i + kLanes <= depth; i += kLanes) {
    if (kColumns == 4) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) __builtin_prefetch(ahead + i * step + c * stride);
    }
    multiply(Load, i);
  }
  if (i < depth) multiply([=](const float* p) { return LoadPart(p, depth - i); }, i);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Vec4 made = Sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    float* to = y + r * y_stride;
    if (kColumns == 4) {
      UnalignedVec4* all = reinterpret_cast<UnalignedVec4*>(to);  // with auto GCC would take it for aligned
      *all = add ? *all + made : made;
    } else {
      for (int c = 0; c < kColumns; ++c) to[c] = add ? to[c] + made[c] : made[c];
    }
  }
}

// All rows of one tile's columns, so that those stay in the first cache level: kRows at a time, fewer where fewer are
// left.
template <int kRows, int kColumns>
inline void Rows(const float* x, const float* weight, int64_t rows, int64_t k, int64_t depth, bool add, float* y,
                 int64_t y_stride) {
  if constexpr (kRows > 0) {
    for (; rows >= kRows; rows -= kRows, x += kRows * kPieceStride, y += kRows * y_stride) {
      Tile<kRows, kColumns>(x, weight, k, depth, add, y, y_stride);
    }
    Rows<kRows - 1, kColumns>(x, weight, rows, k, depth, add, y, y_stride);
  }
}

void Gemm(const float* x, const float* weight, float* y, int64_t rows, int64_t columns, int64_t k, int64_t y_stride) {
  // x in pieces of its own stride: rows 4096 bytes apart would all lie in the same few lines of the first cache level.
  float piece[kPieceRows * kPieceStride];
  const int64_t parts = k <= kDepth ? 1 : (k + kDepth - 1) / kDepth;
  const int64_t depth = ((k + parts - 1) / parts + kLanes - 1) / kLanes * kLanes;
  for (int64_t row = 0; row < rows; row += kPieceRows) {
    const int64_t height = rows - row < kPieceRows ? rows - row : kPieceRows;
    for (int64_t begin = 0; begin == 0 || begin < k; begin += depth) {
      const int64_t here = k - begin < depth ? k - begin : depth;
      for (int64_t r = 0; r < height; ++r) {
        __builtin_memcpy(piece + r * kPieceStride, x + (row + r) * k + begin,
                         static_cast<size_t>(here) * sizeof(float));
      }
      const float* w = weight + begin;
      float* to = y + row * y_stride;
      int64_t j = 0;
      for (; j + 4 <= columns; j += 4, w += 4 * k) {
        Rows<kTileRows, 4>(piece, w, height, k, here, begin > 0, to + j, y_stride);
      }
      for (; j < columns; ++j, w += k) Rows<kTileRows, 1>(piece, w, height, k, here, begin > 0, to + j, y_stride);
      if (depth == 0) break;
    }
  }
}

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_GEMM_H_
