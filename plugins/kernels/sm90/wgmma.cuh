// Warpgroup matrix products of Hopper (wgmma): d[64 x kN] += a[64 x 16] * b[kN x 16] transposed. The instructions'
// wrappers are CUTLASS's.
//
// A thread's share of the accumulator d: d[4 j + e] is at row (lane / 4) + 8 (e / 2) of its warp's 16, and column
// 8 j + 2 (lane % 4) + e % 2.
#ifndef BERTFUSE_KERNELS_SM90_WGMMA_CUH_
#define BERTFUSE_KERNELS_SM90_WGMMA_CUH_

#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "kernels/async_copy.cuh"
#include "kernels/elements.cuh"

namespace bertfuse::kernels {

// Where a thread's accumulators start.
__device__ __forceinline__ int FirstRow() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int FirstColumn() { return threadIdx.x % 4 * 2; }

namespace gmma = cute::SM90::GMMA;

template <class T, int kN>
struct WgmmaOp;
#define BERTFUSE_WGMMA(N)                                                                       \
  template <>                                                                                   \
  struct WgmmaOp<__half, N> {                                                                   \
    using SS = gmma::MMA_64x##N##x16_F32F16F16_SS<gmma::Major::K, gmma::Major::K>;              \
    using RS = gmma::MMA_64x##N##x16_F32F16F16_RS<gmma::Major::K, gmma::Major::K>;              \
    using RSTransposed = gmma::MMA_64x##N##x16_F32F16F16_RS<gmma::Major::K, gmma::Major::MN>;   \
  };                                                                                            \
  template <>                                                                                   \
  struct WgmmaOp<__nv_bfloat16, N> {                                                            \
    using SS = gmma::MMA_64x##N##x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;            \
    using RS = gmma::MMA_64x##N##x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::K>;            \
    using RSTransposed = gmma::MMA_64x##N##x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN>; \
  };
BERTFUSE_WGMMA(32)
BERTFUSE_WGMMA(64)
BERTFUSE_WGMMA(96)
BERTFUSE_WGMMA(128)
BERTFUSE_WGMMA(192)
#undef BERTFUSE_WGMMA

// Descriptor of a tile whose rows are 128 bytes (64 elements), swizzled, on a 1024-byte boundary: 8 rows every 1024
// bytes.
__device__ __forceinline__ uint64_t TileDescriptor(const void* shared) {
  return static_cast<uint64_t>(SharedAddress(shared) >> 4) | static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

template <class Op, size_t... kIndex>
__device__ __forceinline__ void CallSs(uint64_t a, uint64_t b, float* d, bool accumulate,
                                       std::index_sequence<kIndex...>) {
  Op::fma(a, b, d[kIndex]..., accumulate ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

template <class T, int kN>
__device__ __forceinline__ void WgmmaSs(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  CallSs<typename WgmmaOp<T, kN>::SS>(a, b, d, accumulate, std::make_index_sequence<kN / 2>());
}

template <class Op, size_t... kIndex>
__device__ __forceinline__ void CallRs(const uint32_t (&a)[4], uint64_t b, float* d, bool accumulate,
                                       std::index_sequence<kIndex...>) {
  Op::fma(a[0], a[1], a[2], a[3], b, d[kIndex]..., accumulate ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

template <class Op, int kCount>
__device__ __forceinline__ void WgmmaRs(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  CallRs<Op>(a, b, d, accumulate, std::make_index_sequence<kCount>());
}

__device__ __forceinline__ void BeginWgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitWgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WaitWgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to registers that a product under way reads or writes.
template <int kCount>
__device__ __forceinline__ void FenceRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_WGMMA_CUH_
