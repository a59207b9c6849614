// Epilogues: what is done to a tile's accumulators before it is stored, as a policy of the kernel's configuration. The
// accumulators are in registers (sm90/wgmma.cuh says which thread holds which).
#ifndef BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
#define BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_

#include "kernels/activation.cuh"
#include "kernels/gemm_sm90/parameters.cuh"
#include "kernels/sm90/tma.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// A list of steps, in the order in which they are applied: Epilogue<AddBias, Activate<Activations>> is
// activation(product + bias). A step has a function for a thread's values of 64 rows:
//
//   template <class Tile, int kCount> static auto Apply(float (&v)[kCount], const Tile& tile);
//
// `tile` gives a step what it needs: the kernel's parameters(), the vectors() of the block's columns (bias, gamma,
// beta), and the staged() residual. Apply() returns what remains to be done when the values are stored, eight at a
// time. Only a norm returns anything, and so it must be the last step. A scale would be one more step. A gate
// multiplies some columns by others, so the tile that is stored would have to become narrower, too.
template <class... Steps>
struct Epilogue {
  static constexpr int kVectors =
      (0 + ... + Steps::kVectors);  // float32 vectors of the block's columns in shared memory
  static constexpr bool kAddsResidual = (false || ... || Steps::kAddsResidual);
  static constexpr bool kNormalizes = (false || ... || Steps::kNormalizes);  // whole rows, across the cluster

  static constexpr bool kEachNormalizes[] = {false, Steps::kNormalizes...};
  static_assert(kNormalizes == kEachNormalizes[sizeof...(Steps)], "only the last step may leave something to do");

  static bool Supports(Activation activation) { return (true && ... && Steps::Supports(activation)); }

  // Called by one thread, before the block's first barrier.
  template <class Pipeline>
  __device__ __forceinline__ static void InitBarriers(const Pipeline& pipeline) {
    (Steps::InitBarriers(pipeline), ...);
  }

  template <class Tile, int kCount>
  __device__ __forceinline__ static auto Apply(float (&v)[kCount], const Tile& tile) {
    return (Steps::Apply(v, tile), ...);
  }
};

// A step's defaults.
struct EpilogueStep {
  static constexpr int kVectors = 0;
  static constexpr bool kAddsResidual = false, kNormalizes = false;
  static bool Supports(Activation) { return true; }
  template <class Pipeline>
  __device__ __forceinline__ static void InitBarriers(const Pipeline&) {}
};

struct NothingToFinish {
  __device__ __forceinline__ void operator()(int, float*) const {}
};

// A thread holds kCount values of 2 kCount columns, whose bias is in tile.vectors().
struct AddBias : EpilogueStep {
  static constexpr int kVectors = 1;
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 add = *reinterpret_cast<const float2*>(tile.vectors() + 8 * j + FirstColumn());
      v[4 * j] += add.x, v[4 * j + 1] += add.y, v[4 * j + 2] += add.x, v[4 * j + 3] += add.y;
    }
    return {};
  }
};

// One of the set's activations, as accurate as 16-bit results need.
template <class Set>
struct Activate : EpilogueStep {
  static bool Supports(Activation activation) { return Set::Has(activation); }
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    Set::template For16Bits<kCount>(v, tile.parameters().activation);
    return {};
  }
};

// The residual, if there is one.
struct AddResidual : EpilogueStep {
  static constexpr bool kAddsResidual = true;
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    if (tile.parameters().has_residual) {
#pragma unroll
      for (int i = 0; i < kCount / 8; ++i) tile.staged().Add(i, &v[8 * i]);
    }
    return {};
  }
};

// A staged tile of 64 rows x kColumns, laid out as TMA loads and stores it. A warp accesses its 16 rows as 8 x 8
// matrices, four at a time (ldmatrix, stmatrix), which cover 16 columns; each lane addresses a row of one of the four.
// The next box is swizzled alike, so its addresses are a constant away; left to itself the compiler keeps every address
// in a register.
template <class T, int kColumns>
struct StagedRows {
  static_assert(sizeof(T) == 2, "stmatrix and ldmatrix move 2-byte elements");
  static constexpr int kCount = kColumns / 16;
  static constexpr int kPitch = kColumns * sizeof(T);
  static constexpr int kBoxBytes = 64 * kPitch;
  __device__ __forceinline__ explicit StagedRows(const char* boxes) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      at_[j] = SharedAddress(boxes) + Swizzled<kPitch>(row, (2 * j + lane / 16) * 16);
    }
  }
  // v: the thread's 8 values of the i-th 16 columns.
  __device__ __forceinline__ void Add(int i, float* v) const { Add(i / kCount, i % kCount, v); }
  __device__ __forceinline__ void Store(int i, const float* v) const { Store(i / kCount, i % kCount, v); }

 private:
  __device__ __forceinline__ void Add(int box, int j, float* v) const {
    uint32_t pairs[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(at_[j] + box * kBoxBytes));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<T>(pairs[i]);
      v[2 * i] += pair.x, v[2 * i + 1] += pair.y;
    }
  }
  __device__ __forceinline__ void Store(int box, int j, const float* v) const {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at_[j] + box * kBoxBytes),
                 "r"(PackPair<T>(v[0], v[1])), "r"(PackPair<T>(v[2], v[3])), "r"(PackPair<T>(v[4], v[5])),
                 "r"(PackPair<T>(v[6], v[7]))
                 : "memory");
  }
  uint32_t at_[kCount];
};

// The vectors of the block's columns, on their way from global to shared memory, where they are float32: the bias and,
// with a norm, gamma and beta of every two columns side by side, because they are read together.
template <class Config>
class VectorRegisters {
  using T = typename Config::Y;

 public:
  __device__ __forceinline__ VectorRegisters(const Parameters& p, int first) {
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
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
      if (Config::Epilogue::kNormalizes) {
        float* pair = vectors + Config::kN + column / 2 * 4 + column % 2;
        pair[0] = value_[1][i], pair[2] = value_[2][i];
      }
    }
  }

 private:
  static constexpr int kVectors = Config::Epilogue::kVectors;
  static constexpr int kThreads = 128 * Config::kWarpgroups, kCount = (Config::kN + kThreads - 1) / kThreads;
  __device__ __forceinline__ static int Column(int i) { return threadIdx.x + i * kThreads; }
  float value_[kVectors][kCount];
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_GEMM_SM90_EPILOGUE_CUH_
