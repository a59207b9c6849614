// Warpgroup matrix products of Hopper (wgmma): d[64 x kN] += a[64 x k] * b[kN x k] transposed, k being 32 bytes. The
// instructions' wrappers are CUTLASS's.
#ifndef BERTFUSE_KERNELS_SM90_PTX_WGMMA_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_WGMMA_CUH_

#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "kernels/elements.cuh"
#include "kernels/sm90/layout.cuh"

namespace bertfuse::kernels {

namespace gmma = cute::SM90::GMMA;

// Operands of type T with accumulators of type Accumulator, in the widths that are used: both operands from shared
// memory (SS), or a from registers (RS), then with b as it lies or MN-major (RSTransposed: attention's values). Each
// element type has a line here. Types of one byte have another macro, because their instructions take K-major operands
// only.
template <class T, class Accumulator, int kN>
struct WgmmaOp;
#define BERTFUSE_WGMMA_16_BITS(T, ACCUMULATOR, TYPES, N)                                      \
  template <>                                                                                 \
  struct WgmmaOp<T, ACCUMULATOR, N> {                                                         \
    using SS = gmma::MMA_64x##N##x16_##TYPES##_SS<gmma::Major::K, gmma::Major::K>;            \
    using RS = gmma::MMA_64x##N##x16_##TYPES##_RS<gmma::Major::K, gmma::Major::K>;            \
    using RSTransposed = gmma::MMA_64x##N##x16_##TYPES##_RS<gmma::Major::K, gmma::Major::MN>; \
  };
#define BERTFUSE_WGMMA_8_BITS(T, ACCUMULATOR, TYPES, N) \
  template <>                                           \
  struct WgmmaOp<T, ACCUMULATOR, N> {                   \
    using SS = gmma::MMA_64x##N##x32_##TYPES##_SS_TN<>; \
    using RS = gmma::MMA_64x##N##x32_##TYPES##_RS_TN<>; \
  };
#define BERTFUSE_WGMMA_INTEGER_BITS(T, ACCUMULATOR, TYPES, N) \
  template <>                                                 \
  struct WgmmaOp<T, ACCUMULATOR, N> {                         \
    using SS = gmma::MMA_64x##N##x32_##TYPES##_SS_TN;         \
    using RS = gmma::MMA_64x##N##x32_##TYPES##_RS_TN;         \
  };
#define BERTFUSE_WGMMA(BITS, T, ACCUMULATOR, TYPES)                                                                    \
  BERTFUSE_WGMMA_##BITS##_BITS(T, ACCUMULATOR, TYPES, 32) BERTFUSE_WGMMA_##BITS##_BITS(T, ACCUMULATOR, TYPES, 64)      \
      BERTFUSE_WGMMA_##BITS##_BITS(T, ACCUMULATOR, TYPES, 96) BERTFUSE_WGMMA_##BITS##_BITS(T, ACCUMULATOR, TYPES, 128) \
          BERTFUSE_WGMMA_##BITS##_BITS(T, ACCUMULATOR, TYPES, 192)
BERTFUSE_WGMMA(16, __half, float, F32F16F16)
BERTFUSE_WGMMA(16, __nv_bfloat16, float, F32BF16BF16)
BERTFUSE_WGMMA(8, __nv_fp8_e4m3, float, F32E4M3E4M3)
BERTFUSE_WGMMA(INTEGER, int8_t, int32_t, S32S8S8)
#undef BERTFUSE_WGMMA
#undef BERTFUSE_WGMMA_INTEGER_BITS
#undef BERTFUSE_WGMMA_8_BITS
#undef BERTFUSE_WGMMA_16_BITS

template <class Op, class Accumulator, size_t... kIndex>
__device__ __forceinline__ void CallSs(uint64_t a, uint64_t b, Accumulator* d, bool accumulate,
                                       std::index_sequence<kIndex...>) {
  using Register = std::remove_extent_t<typename Op::CRegisters>;
  Op::fma(a, b, reinterpret_cast<Register&>(d[kIndex])..., accumulate ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

template <class T, int kN, class Accumulator>
__device__ __forceinline__ void WgmmaSs(Accumulator (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  CallSs<typename WgmmaOp<T, Accumulator, kN>::SS>(a, b, d, accumulate, std::make_index_sequence<kN / 2>());
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
template <int kCount>
__device__ __forceinline__ void FenceRegisters(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_WGMMA_CUH_
