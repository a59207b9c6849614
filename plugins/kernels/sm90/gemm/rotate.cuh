// RoPE as a step of the epilogue: heads of Q and K are rotated before they are rounded.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_ROTATE_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_ROTATE_CUH_

#include "kernels/rotation.h"
#include "kernels/sm90/gemm/epilogue.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// Columns i and i + 32 of heads of 64 are a pair, which a thread has in v[4 j] and v[4 (j + 4)]: tiles hold whole
// heads. Tables of T are [places, 32]; a thread's numbers of a row are the same in each head.
template <class T>
struct Rotate : EpilogueStep<> {
  static constexpr bool kRotates = true;
  static constexpr int kPairs = kEpilogueHead / 2, kQuarter = 4;  // j of half a head
  static bool Supports(Activation activation) { return activation == Activation::kNone; }

  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    static_assert(kCount % (8 * kQuarter) == 0, "tiles hold whole heads");
    WaitForDependencies();  // which may still be making the tables
    const Parameters& p = tile.parameters();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = TableRow(p, tile.Row(half)) * kPairs + tile.Column(0) % kPairs;
      if constexpr (Tile::kAdjacentPairs) {
        uint32_t cos[kQuarter], sin[kQuarter];
        LoadFour(static_cast<const T*>(p.cos) + at, cos), LoadFour(static_cast<const T*>(p.sin) + at, sin);
#pragma unroll
        for (int j = 0; j < kQuarter; ++j) TurnHeads(v, tile, half, j, cos[j], sin[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kQuarter; ++j) {
          TurnHeads(v, tile, half, j, LoadPair(p.cos, at + 8 * j), LoadPair(p.sin, at + 8 * j));
        }
      }
    }
    return {};
  }

 private:
  template <class Tile, int kCount>
  __device__ __forceinline__ static void TurnHeads(float (&v)[kCount], const Tile& tile, int half, int j,
                                                   uint32_t cosines, uint32_t sines) {
    const float2 cos = UnpackPair<T>(cosines), sin = UnpackPair<T>(sines);
#pragma unroll
    for (int head = 0; head < kCount / (8 * kQuarter); ++head) {
      if (tile.Column(2 * kQuarter * head) >= tile.parameters().turned_columns) break;
      float* const first = &v[4 * (2 * kQuarter * head + j) + 2 * half];
      float* const second = first + 4 * kQuarter;
      Turn(first[0], second[0], cos.x, sin.x), Turn(first[1], second[1], cos.y, sin.y);
    }
  }
  __device__ __forceinline__ static uint32_t LoadPair(const void* table, int at) {
    return *reinterpret_cast<const uint32_t*>(static_cast<const T*>(table) + at);
  }
  __device__ __forceinline__ static void LoadFour(const T* table, uint32_t (&pairs)[kQuarter]) {
    const int4 four = *reinterpret_cast<const int4*>(table);
    pairs[0] = four.x, pairs[1] = four.y, pairs[2] = four.z, pairs[3] = four.w;
  }
  __device__ __forceinline__ static void Turn(float& u, float& v, float cos, float sin) {
    const float x = u, y = v;
    u = x * cos - y * sin, v = y * cos + x * sin;
  }
  // Rows behind the last one are turned by some angle, and not stored.
  __device__ __forceinline__ static int TableRow(const Parameters& p, int row) {
    int number = row, sequence, place;
    if (p.places != nullptr) number = row < p.m ? max(0, p.places[row]) : 0;
    p.table_rows_divmod(sequence, place, number);
    return place;
  }
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_ROTATE_CUH_
