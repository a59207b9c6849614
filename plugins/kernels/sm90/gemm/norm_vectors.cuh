// The vectors of columns that the weight-stationary kernel with LayerNorm reads.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_NORM_VECTORS_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_NORM_VECTORS_CUH_

#include "kernels/sm90/gemm/column_vectors.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// The vectors of a block's columns in shared memory, in their own types. A thread reads those of eight adjacent columns
// at once.
template <class T, int kN, bool kRestoresResidual>
class NormVectors {
 public:
  static constexpr size_t kFloats = kRestoresResidual ? 3 : 2;
  static constexpr size_t kBytes = kN * (kFloats * sizeof(float) + 3 * sizeof(T));

  __device__ __forceinline__ explicit NormVectors(char* shared) : shared_(shared) {}

  // Each thread a column. Their first one in y: `first`.
  __device__ __forceinline__ void Store(const Parameters& p, int first) const {
    if (threadIdx.x >= kN) return;
    StoreOne<ColumnVector::kScale>(p, first), StoreOne<ColumnVector::kSmooth>(p, first);
    StoreOne<ColumnVector::kBias>(p, first), StoreOne<ColumnVector::kGamma>(p, first);
    StoreOne<ColumnVector::kBeta>(p, first);
    if constexpr (kRestoresResidual) StoreOne<ColumnVector::kRestore>(p, first);
  }

  // Of columns 32 * box + 8 * (threadIdx.x % 4) on.
  template <ColumnVector kVector>
  __device__ __forceinline__ void Read(int box, float2 (&pairs)[4]) const {
    const int column = 32 * box + threadIdx.x % 4 * 8;
    const char* const from = shared_ + Offset(kVector);
    if constexpr (IsFloat32(kVector)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 four = reinterpret_cast<const float4*>(from)[column / 4 + half];
        pairs[2 * half] = {four.x, four.y}, pairs[2 * half + 1] = {four.z, four.w};
      }
    } else {
      const uint4 packed = reinterpret_cast<const uint4*>(from)[column / 8];
      pairs[0] = UnpackPair<T>(packed.x), pairs[1] = UnpackPair<T>(packed.y);
      pairs[2] = UnpackPair<T>(packed.z), pairs[3] = UnpackPair<T>(packed.w);
    }
  }

 private:
  static constexpr size_t Offset(ColumnVector vector) {
    return kN * (vector == ColumnVector::kScale     ? 0
                 : vector == ColumnVector::kSmooth  ? sizeof(float)
                 : vector == ColumnVector::kRestore ? 2 * sizeof(float)
                 : vector == ColumnVector::kBias    ? kFloats * sizeof(float)
                 : vector == ColumnVector::kGamma   ? kFloats * sizeof(float) + sizeof(T)
                                                    : kFloats * sizeof(float) + 2 * sizeof(T));
  }
  template <ColumnVector kVector>
  __device__ __forceinline__ void StoreOne(const Parameters& p, int first) const {
    using Stored = std::conditional_t<IsFloat32(kVector), float, T>;
    const Stored* const data = static_cast<const Stored*>(DataOf(kVector, p));
    Stored value = FromFloat<Stored>(AbsentElement(kVector));
    if (data != nullptr) value = data[first + threadIdx.x];
    reinterpret_cast<Stored*>(shared_ + Offset(kVector))[threadIdx.x] = value;
  }

  char* shared_;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_NORM_VECTORS_CUH_
