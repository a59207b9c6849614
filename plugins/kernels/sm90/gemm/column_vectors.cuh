// Vectors of y's columns that the steps of an epilogue read (bias, gamma, beta): which each step has, and where they
// lie in shared memory.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_COLUMN_VECTORS_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_COLUMN_VECTORS_CUH_

#include <type_traits>

#include "kernels/elements.cuh"
#include "kernels/sm90/gemm/parameters.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// Of y's type; kScale (the weight's scales), kSmooth (of QuantizedResult) and kRestore (of QuantizedResidual) float32.
// Where y is stored in 8 bits over one scale, what a step reads of kSmooth is times ResultScale::Factor().
enum class ColumnVector { kBias, kGamma, kBeta, kScale, kSmooth, kRestore };

__device__ __forceinline__ constexpr bool IsFloat32(ColumnVector vector) {
  return vector == ColumnVector::kScale || vector == ColumnVector::kSmooth || vector == ColumnVector::kRestore;
}

__device__ __forceinline__ const void* DataOf(ColumnVector vector, const Parameters& p) {
  return vector == ColumnVector::kBias     ? p.bias
         : vector == ColumnVector::kGamma  ? p.gamma
         : vector == ColumnVector::kBeta   ? p.beta
         : vector == ColumnVector::kScale  ? static_cast<const void*>(p.weight_scales)
         : vector == ColumnVector::kSmooth ? p.quantized.smooth
                                           : p.quantized_residual.factor;
}

// What each element of a vector is that is null.
__device__ __forceinline__ constexpr float AbsentElement(ColumnVector vector) {
  return vector == ColumnVector::kSmooth || vector == ColumnVector::kRestore ? 1.0f : 0.0f;
}

// Element `column` of a vector that is there.
template <class T>
__device__ __forceinline__ float ElementOf(ColumnVector vector, const void* data, int column) {
  return IsFloat32(vector) ? static_cast<const float*>(data)[column] : ToFloat(static_cast<const T*>(data)[column]);
}

// The same of `column`, which is even, and the one after it.
template <class T>
__device__ __forceinline__ float2 PairOf(ColumnVector vector, const void* data, int column) {
  if (sizeof(T) == sizeof(float) || IsFloat32(vector)) {
    return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + column);
  }
  if constexpr (sizeof(T) == 2) {
    return UnpackPair<T>(*reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + column));
  }
  return {};
}

// Those that one step reads.
template <ColumnVector... kEach>
struct ColumnVectors {
  static constexpr int kVectors = sizeof...(kEach);
  static constexpr ColumnVector VectorAt(int index) {
    ColumnVector found = {};
    ((index-- == 0 ? void(found = kEach) : void()), ...);
    return found;
  }
};

// A step's vectors at two adjacent columns.
template <int kVectors>
struct ColumnPair {
  float2 vector[kVectors];
};

// A step's vectors from global memory, as absent where the columns are not `inside`.
template <class Step, class T>
__device__ __forceinline__ ColumnPair<Step::kVectors> LoadPairs(const Parameters& p, bool inside, int column) {
  ColumnPair<Step::kVectors> pair;
#pragma unroll
  for (int i = 0; i < Step::kVectors; ++i) {
    const void* data = DataOf(Step::VectorAt(i), p);
    const float absent = AbsentElement(Step::VectorAt(i));
    pair.vector[i] =
        inside && data != nullptr ? PairOf<T>(Step::VectorAt(i), data, column) : make_float2(absent, absent);
  }
  return pair;
}

// Where a vector is among those of all steps.
struct VectorPlace {
  int before;  // vectors of the steps before its own
  int index;   // among its step's
  int count;   // of its step's
};

// Those of all steps of an epilogue.
template <class... Steps>
struct StepVectors {
  static constexpr int kCount = (0 + ... + Steps::kVectors);

  // Vectors of the steps before this one.
  template <class Step>
  static constexpr int VectorsBefore() {
    int before = 0;
    bool found = false;
    ((found = found || std::is_same_v<Step, Steps>, before += found ? 0 : Steps::kVectors), ...);
    return before;
  }
  static constexpr VectorPlace PlaceOf(int index) {
    VectorPlace place = {0, index, 0};
    bool found = false;
    ((found = found || place.index < Steps::kVectors,
      place.count = found && place.count == 0 ? Steps::kVectors : place.count,
      place.before += found ? 0 : Steps::kVectors, place.index -= found ? 0 : Steps::kVectors),
     ...);
    return place;
  }
  static constexpr ColumnVector VectorAt(int index) {
    ColumnVector found = {};
    ((index >= 0 && index < Steps::kVectors ? void(found = Steps::VectorAt(index)) : void(), index -= Steps::kVectors),
     ...);
    return found;
  }
};

// The epilogue's vectors at the tile's columns (of y, from `first` on, in each factor), on their way from global to
// shared memory, where they are float32. Those of one step lie side by side, every two columns of each, because they
// are read together. All consumers of a block load them, or each warpgroup those of its own tile.
template <class Config>
class VectorRegisters {
  using T = typename Config::Y;
  using Vectors = typename Config::Epilogue::Vectors;

 public:
  __device__ __forceinline__ VectorRegisters(const Parameters& p, int first) {
#pragma unroll
    for (int vector = 0; vector < Vectors::kCount; ++vector) {
      const void* data = DataOf(Vectors::VectorAt(vector), p);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int factor = Config::kFactors == 1 ? 0 : Column(i) / Config::kOutN;
        const int column = first + Column(i) - factor * Config::kOutN;
        const ColumnVector which = Vectors::VectorAt(vector);
        const bool is_there = which != ColumnVector::kSmooth || factor == 0;  // which is y's, not a factor's
        const bool inside = data != nullptr && is_there && Column(i) < Config::kN && column < p.n;
        value_[vector][i] = inside ? ElementOf<T>(which, data, factor * p.n + column) : AbsentElement(which);
      }
    }
  }
  // `factor`: by which smoothing factors are multiplied; where there are any.
  __device__ __forceinline__ void Store(float* vectors, float factor) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = Column(i);
      if (column >= Config::kN) break;
#pragma unroll
      for (int vector = 0; vector < Vectors::kCount; ++vector) {
        const VectorPlace place = Vectors::PlaceOf(vector);
        const bool smooths = Vectors::VectorAt(vector) == ColumnVector::kSmooth;
        PairAt(vectors, place, column)[2 * place.index + (column & 1)] = value_[vector][i] * (smooths ? factor : 1.0f);
      }
    }
  }
  template <class Step>
  __device__ __forceinline__ static ColumnPair<Step::kVectors> Read(const float* vectors, int column) {
    const VectorPlace place = Vectors::PlaceOf(Vectors::template VectorsBefore<Step>());
    return *reinterpret_cast<const ColumnPair<Step::kVectors>*>(PairAt(vectors, place, column));
  }

 private:
  static constexpr int kThreads = Config::kPersistent ? 128 : 128 * Config::kWarpgroups;
  static constexpr int kCount = (Config::kN + kThreads - 1) / kThreads;
  __device__ __forceinline__ static int Column(int i) {
    return (Config::kPersistent ? threadIdx.x % 128 : threadIdx.x) + i * kThreads;
  }
  // Where the vector's step has its vectors at the pair of columns that this one belongs to.
  template <class Float>
  __device__ __forceinline__ static Float* PairAt(Float* vectors, const VectorPlace& place, int column) {
    return vectors + place.before * Config::kN + (column & ~1) * place.count;
  }
  float value_[Vectors::kCount == 0 ? 1 : Vectors::kCount][kCount];
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_COLUMN_VECTORS_CUH_
