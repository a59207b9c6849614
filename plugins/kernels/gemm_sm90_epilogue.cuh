// What Hopper's matrix products do with their sums in registers on the way to the copy engine.
//
// A warpgroup's product of 64 rows: sum[4 j + e] is at row (lane / 4) + 8 (e / 2) of its warp's 16 and column 8 j + 2
// (lane % 4) + e % 2.
#ifndef BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_

#include "kernels/gelu.cuh"
#include "kernels/sm90.cuh"

namespace bertfuse::kernels {

// Where a thread's sums start.
__device__ __forceinline__ int FirstRow() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int FirstColumn() { return threadIdx.x % 4 * 2; }

// Where a thread's pairs lie in buffers of 64 rows x kColumns that the copy engine reads and writes: of each 8 columns,
// one address. Eight rows further and in the next buffer the swizzle is the same, so those are constants away; left to
// itself the compiler keeps every address in a register.
template <class T, int kColumns>
struct Pairs {
  static constexpr int kCount = kColumns / 8;
  static constexpr int kPitch = kColumns * 2;
  static constexpr int kBufferBytes = 64 * kPitch;
  uint32_t at[kCount];
  __device__ __forceinline__ explicit Pairs(const char* buffers) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      at[j] = SharedAddress(buffers) + Swizzled<kPitch>(FirstRow(), (8 * j + FirstColumn()) * 2);
    }
  }
  __device__ __forceinline__ uint32_t Address(int buffer, int j, int lower) const {
    return at[j] + buffer * kBufferBytes + lower * 8 * kPitch;
  }
  __device__ __forceinline__ float2 Load(int buffer, int j, int lower) const {
    uint32_t pair;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(Address(buffer, j, lower)) : "memory");
    return UnpackPair<T>(pair);
  }
  __device__ __forceinline__ void Store(int buffer, int j, int lower, float first, float second) const {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(Address(buffer, j, lower)), "r"(PackPair<T>(first, second))
                 : "memory");
  }
  // A buffer's sums, 4 * kCount of them.
  __device__ __forceinline__ void StoreAll(int buffer, const float* v) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      Store(buffer, j, 0, v[4 * j], v[4 * j + 1]);
      Store(buffer, j, 1, v[4 * j + 2], v[4 * j + 3]);
    }
  }
};

// v = activation(v + bias) for kColumns columns, where bias[0] is that of the first.
template <int kColumns>
__device__ __forceinline__ void AddBiasAndActivate(float* v, const float* bias, Activation activation) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float2 add = *reinterpret_cast<const float2*>(bias + 8 * j + FirstColumn());
    v[4 * j] += add.x, v[4 * j + 1] += add.y, v[4 * j + 2] += add.x, v[4 * j + 3] += add.y;
  }
  if (activation == Activation::kGeluErf) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) v[i] = GeluErfFast(v[i]);
  } else if (activation == Activation::kGeluTanh) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) v[i] = GeluTanh(v[i]);
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
