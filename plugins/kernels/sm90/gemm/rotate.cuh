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
    constexpr int kHeads = kCount / (8 * kQuarter);
    static_assert(kCount % (8 * kQuarter) == 0, "tiles hold whole heads");
    WaitForDependencies();  // which may still be making the tables
    const Parameters& p = tile.parameters();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = static_cast<int64_t>(TableRow(p, tile.Row(half))) * kPairs;
      float2 cos[kQuarter], sin[kQuarter];
#pragma unroll
      for (int j = 0; j < kQuarter; ++j) {
        const int64_t place = at + tile.Column(j) % kPairs;
        cos[j] = PairAt(p.cos, place), sin[j] = PairAt(p.sin, place);
      }
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        if (tile.Column(2 * kQuarter * head) >= p.turned_columns) break;
#pragma unroll
        for (int j = 0; j < kQuarter; ++j) {
          float* const first = &v[4 * (2 * kQuarter * head + j) + 2 * half];
          float* const second = first + 4 * kQuarter;
          Turn(first[0], second[0], cos[j].x, sin[j].x), Turn(first[1], second[1], cos[j].y, sin[j].y);
        }
      }
    }
    return {};
  }

 private:
  __device__ __forceinline__ static float2 PairAt(const void* table, int64_t place) {
    return UnpackPair<T>(*reinterpret_cast<const uint32_t*>(static_cast<const T*>(table) + place));
  }
  __device__ __forceinline__ static void Turn(float& u, float& v, float cos, float sin) {
    const float x = u, y = v;
    u = x * cos - y * sin, v = y * cos + x * sin;
  }
  // Rows behind the last one are turned by some angle, and not stored. Places out of range read the nearest.
  __device__ __forceinline__ static int TableRow(const Parameters& p, int row) {
    const int last = p.table_rows.divisor - 1;
    if (p.places != nullptr) return row < p.m ? max(0, min(p.places[row], last)) : 0;
    int sequence, place;
    p.table_rows(sequence, place, row);
    return place;
  }
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_ROTATE_CUH_
