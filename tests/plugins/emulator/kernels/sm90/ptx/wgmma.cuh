// plugins/kernels/sm90/ptx/wgmma.cuh for the emulator. Products are exact, and sums float32's, one k after the other (a
// GPU cuts them off: see ptx/mma.cuh); of 8-bit floats they are as short as a GPU's (MultiplyAddShort()).
#ifndef BERTFUSE_KERNELS_SM90_PTX_WGMMA_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_WGMMA_CUH_

#include <cuda_fp8.h>

#include "emulator/hopper.h"
#include "kernels/sm90/layout.cuh"

namespace bertfuse::kernels {

template <class T>
inline constexpr emulator::Operand kOperand;
template <>
inline constexpr emulator::Operand kOperand<__half> = emulator::Operand::kHalf;
template <>
inline constexpr emulator::Operand kOperand<__nv_bfloat16> = emulator::Operand::kBfloat16;
template <>
inline constexpr emulator::Operand kOperand<__nv_fp8_e4m3> = emulator::Operand::kE4m3;
template <>
inline constexpr emulator::Operand kOperand<int8_t> = emulator::Operand::kInt8;

// The instructions take every kN from 8 to 256 in steps of 8; here are those that have a line in the other file.
template <class T, class Accumulator, int kN>
struct WgmmaOp {
  static_assert(sizeof(Accumulator) == 4 && (kN == 32 || kN == 64 || kN == 96 || kN == 128 || kN == 192));
  struct SS {
    static constexpr emulator::ProductShape kShape = {kOperand<T>, kN, false};
  };
  using RS = SS;
  struct RSTransposed {
    static_assert(sizeof(T) == 2, "MN-major operands have two bytes");
    static constexpr emulator::ProductShape kShape = {kOperand<T>, kN, true};
  };
};

template <class T, int kN, class Accumulator>
inline void WgmmaSs(Accumulator (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(std::is_same_v<T, int8_t> == std::is_same_v<Accumulator, int32_t>);
  emulator::Wgmma(WgmmaOp<T, Accumulator, kN>::SS::kShape, reinterpret_cast<float*>(d), nullptr, a, b, accumulate);
}

template <class Op, int kCount>
inline void WgmmaRs(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(kCount == Op::kShape.columns / 2);
  emulator::Wgmma(Op::kShape, d, a, 0, b, accumulate);
}

inline void BeginWgmma() { emulator::FenceWgmma(); }
inline void CommitWgmma() { emulator::CommitWgmma(); }
template <int kPending>
inline void WaitWgmma() {
  emulator::WaitWgmma(kPending);
}

// The emulator's products keep to memory.
template <class Accumulator, int kCount>
inline void FenceRegisters(Accumulator (&)[kCount]) {}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_WGMMA_CUH_
