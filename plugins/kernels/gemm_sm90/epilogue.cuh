// Steps of epilogues, on accumulators in registers (sm90/wgmma.cuh says which thread has which).
#ifndef BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_

#include "kernels/gelu.cuh"
#include "kernels/gemm_sm90/parameters.cuh"
#include "kernels/sm90/tma.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// 64 rows x kColumns, as TMA loads and stores them, a warp's 16 rows of them as 8 x 8 matrices: four at a time
// (stmatrix, ldmatrix), which are 16 columns. A lane addresses a row of one of the four. In the next box the swizzle is
// the same, so that is a constant away; left to itself the compiler keeps every address in a register.
template <class T, int kColumns>
struct StagedRows {
  static_assert(sizeof(T) == 2, "stmatrix and ldmatrix move 2-byte elements");
  static constexpr int kCount = kColumns / 16;
  static constexpr int kPitch = kColumns * sizeof(T);
  static constexpr int kBoxBytes = 64 * kPitch;
  uint32_t at[kCount];
  __device__ __forceinline__ explicit StagedRows(const char* boxes) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      at[j] = SharedAddress(boxes) + Swizzled<kPitch>(row, (2 * j + lane / 16) * 16);
    }
  }
  // v: what the thread holds of 16 columns, 8 values.
  __device__ __forceinline__ void Add(int box, int j, float* v) const {
    uint32_t pairs[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(at[j] + box * kBoxBytes));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<T>(pairs[i]);
      v[2 * i] += pair.x, v[2 * i + 1] += pair.y;
    }
  }
  __device__ __forceinline__ void Store(int box, int j, const float* v) const {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at[j] + box * kBoxBytes),
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

// For results that are rounded to 16 bits. Branches stand outside of the loops: between them the compiler overlaps
// nothing.
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

// The columns' vectors on their way from global to shared memory, where they are float32: bias, and with LayerNorm for
// every two columns gamma and beta, which are read together.
template <class Config>
class VectorRegisters {
  using T = typename Config::Y;

 public:
  __device__ __forceinline__ VectorRegisters(const Parameters& p, int first) {
#pragma unroll
    for (int vector = 0; vector < Config::kVectors; ++vector) {
      const T* data = static_cast<const T*>(vector == 0 ? p.bias : vector == 1 ? p.gamma : p.beta);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool inside = data != nullptr && Column(i) < Config::kN && first + Column(i) < p.n;
        value_[vector][i] = inside ? ToFloat(data[first + Column(i)]) : 0.0f;
      }
    }
  }
  __device__ __forceinline__ void Store(float* vectors) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = Column(i);
      if (column >= Config::kN) break;
      vectors[column] = value_[0][i];
      if (Config::kLayerNorm) {
        float* pair = vectors + Config::kN + column / 2 * 4 + column % 2;
        pair[0] = value_[1][i], pair[2] = value_[2][i];
      }
    }
  }

 private:
  static constexpr int kThreads = 128 * Config::kWarpgroups, kCount = (Config::kN + kThreads - 1) / kThreads;
  __device__ __forceinline__ static int Column(int i) { return threadIdx.x + i * kThreads; }
  float value_[Config::kLayerNorm ? 3 : 1][kCount];
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
