// Tensor-core instructions of one warp (mma.sync, ldmatrix): compute capability 8.0 and later, of float16 7.5, too;
// stmatrix: 9.0.
#ifndef BERTFUSE_KERNELS_PTX_MMA_CUH_
#define BERTFUSE_KERNELS_PTX_MMA_CUH_

#include "kernels/elements.cuh"
#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {

// Four 8x8 matrices of 16-bit elements; lane l passes the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void LoadMatrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// LoadMatrices' counterpart.
__device__ __forceinline__ void StoreMatrices(uint32_t address, const uint32_t (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(in[0]),
               "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}

// Rounded to the nearest TF32, ties away from zero. The tensor cores would cut a float32's last 13 bits off.
__device__ __forceinline__ uint32_t RoundToTf32(uint32_t x) {
  uint32_t rounded = x;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(x)));
#endif
  return rounded;
}

// What products of T are summed in.
template <class T>
using MmaSum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;

// d += a[16 x k] * b[k x 8], where k is 32 bytes of elements. Each element type has a line here.
template <class T>
struct MmaOp;
#if __CUDA_ARCH__ >= 800
#define BERTFUSE_MMA(T, REGISTER, SHAPE_AND_TYPES)                                                                    \
  template <>                                                                                                         \
  struct MmaOp<T> {                                                                                                   \
    __device__ __forceinline__ static void Fma(MmaSum<T> (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { \
      asm volatile("mma.sync.aligned." SHAPE_AND_TYPES                                                                \
                   " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                 \
                   : "+" REGISTER(d[0]), "+" REGISTER(d[1]), "+" REGISTER(d[2]), "+" REGISTER(d[3])                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                   \
    }                                                                                                                 \
  };
BERTFUSE_MMA(float, "f", "m16n8k8.row.col.f32.tf32.tf32.f32")
BERTFUSE_MMA(__half, "f", "m16n8k16.row.col.f32.f16.f16.f32")
BERTFUSE_MMA(__nv_bfloat16, "f", "m16n8k16.row.col.f32.bf16.bf16.f32")
BERTFUSE_MMA(int8_t, "r", "m16n8k32.row.col.s32.s8.s8.s32")
#if __CUDA_ARCH__ >= 890
BERTFUSE_MMA(__nv_fp8_e4m3, "f", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#else
template <>
struct MmaOp<__nv_fp8_e4m3> {
  __device__ __forceinline__ static void Fma(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t) { __trap(); }
};
#endif
#undef BERTFUSE_MMA
#else  // the halves of k one after the other; there are no other types
template <>
struct MmaOp<__half> {
  __device__ __forceinline__ static void Fma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    FmaHalf(d, a[0], a[1], b0);
    FmaHalf(d, a[2], a[3], b1);
  }

 private:
  __device__ __forceinline__ static void FmaHalf(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b));
  }
};
template <class T>
struct MmaOp {
  __device__ __forceinline__ static void Fma(MmaSum<T> (&)[4], const uint32_t (&)[4], uint32_t, uint32_t) { __trap(); }
};
#endif

// Whether this machine code multiplies T: kernels that do not have empty bodies, and nothing launches them there.
template <class T>
inline constexpr bool kHasMma =
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    true;
#elif __CUDA_ARCH__ >= 800
    !std::is_same_v<T, __nv_fp8_e4m3>;
#else
    std::is_same_v<T, __half>;
#endif

template <class T>
__device__ __forceinline__ void Mma(MmaSum<T> (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MmaOp<T>::Fma(d, a, b0, b1);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_MMA_CUH_
