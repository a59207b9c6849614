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

// Buffers of 64 rows x kColumns that the copy engine reads and writes, a warp's 16 rows of them as 8 x 8 matrices: four
// at a time (stmatrix, ldmatrix), which are 16 columns. A lane addresses a row of one of the four. In the next buffer
// the swizzle is the same, so that is a constant away; left to itself the compiler keeps every address in a register.
template <class T, int kColumns>
struct Matrices {
  static constexpr int kCount = kColumns / 16;
  static constexpr int kPitch = kColumns * 2;
  static constexpr int kBufferBytes = 64 * kPitch;
  uint32_t at[kCount];
  __device__ __forceinline__ explicit Matrices(const char* buffers) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      at[j] = SharedAddress(buffers) + Swizzled<kPitch>(row, (2 * j + lane / 16) * 16);
    }
  }
  // v: what the thread holds of 16 columns, 8 values.
  __device__ __forceinline__ void Add(int buffer, int j, float* v) const {
    uint32_t pairs[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(at[j] + buffer * kBufferBytes));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<T>(pairs[i]);
      v[2 * i] += pair.x, v[2 * i + 1] += pair.y;
    }
  }
  __device__ __forceinline__ void Store(int buffer, int j, const float* v) const {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at[j] + buffer * kBufferBytes),
        "r"(PackPair<T>(v[0], v[1])), "r"(PackPair<T>(v[2], v[3])), "r"(PackPair<T>(v[4], v[5])),
        "r"(PackPair<T>(v[6], v[7]))
        : "memory");
  }
};

// v += bias for the kCount values that a thread holds of 2 kCount columns, where bias[0] is that of the first.
template <int kCount>
__device__ __forceinline__ void AddBias(float* v, const float* bias) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 add = *reinterpret_cast<const float2*>(bias + 8 * j + FirstColumn());
    v[4 * j] += add.x, v[4 * j + 1] += add.y, v[4 * j + 2] += add.x, v[4 * j + 3] += add.y;
  }
}

// For results that are rounded to 16 bits.
template <int kCount>
__device__ __forceinline__ void Activate(float* v, Activation activation) {
  if (activation == Activation::kGeluErf) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = GeluErfFast(v[i]);
  } else if (activation == Activation::kGeluTanh) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = GeluTanh(v[i]);
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
