// A norm of 16-bit rows, each held in the registers of one warp: no barrier, 16-byte accesses. Warps are persistent,
// and load the next row while they normalise one.
#ifndef BERTFUSE_KERNELS_WARP_ROW_CUH_
#define BERTFUSE_KERNELS_WARP_ROW_CUH_

#include <algorithm>

#include "kernels/elements.cuh"
#include "kernels/launch.h"
#include "kernels/norm.cuh"
#include "kernels/quantized_row.cuh"

namespace bertfuse::kernels {

constexpr int kWarpRowThreads = 128;
constexpr int kMaxWarpRowColumns = 1024;

// A row of up to 256 * kChunks columns (a multiple of 8) as it lies in memory; zeros beyond.
template <class T, int kChunks>
struct WarpRow {
  struct __align__(16) Chunk {
    uint32_t pairs[4];
  };
  Chunk chunk[kChunks] = {};

  __device__ __forceinline__ static int Column(int i) { return (i * 32 + threadIdx.x % 32) * 8; }
  __device__ __forceinline__ void Load(const T* row, int columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk[i] = Column(i) < columns ? *reinterpret_cast<const Chunk*>(row + Column(i)) : Chunk{};
    }
  }
  // For a row that nothing will read again soon: evicted from the L2 cache first.
  __device__ __forceinline__ void LoadOnce(const T* row, int columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int4 words = Column(i) < columns ? __ldcs(reinterpret_cast<const int4*>(row + Column(i))) : int4{};
      chunk[i] = reinterpret_cast<const Chunk&>(words);
    }
  }
  __device__ __forceinline__ float2 Pair(int i, int j) const { return UnpackPair<T>(chunk[i].pairs[j]); }
  __device__ __forceinline__ void AddTo(float2 (&value)[kChunks][4]) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) value[i][j].x += Pair(i, j).x, value[i][j].y += Pair(i, j).y;
    }
  }
  __device__ __forceinline__ static void Store(const float2 (&value)[kChunks][4], T* row, int columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (Column(i) >= columns) break;
      Chunk out;
#pragma unroll
      for (int j = 0; j < 4; ++j) out.pairs[j] = PackPair<T>(value[i][j].x, value[i][j].y);
      *reinterpret_cast<Chunk*>(row + Column(i)) = out;
    }
  }
  // Keeps the compiler from converting vectors ahead of a loop over rows: as float32 they take twice the registers.
  __device__ __forceinline__ void KeepPacked() {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (uint32_t& pair : chunk[i].pairs) asm volatile("" : "+r"(pair));
    }
  }
};

// Factors of a row's columns, float32, times another one, in shared memory as a warp's lanes read them, 16 bytes each.
// All threads of the block make them. (Asked for when they are needed, they would come behind a row's stores, which
// might have changed them for all that the compiler knows: a round trip to the cache for every chunk.)
enum FactorsOf : int { kResultFactor, kResidualFactor };  // a kernel may have both
template <int kChunks, FactorsOf kOf, bool kExist>
class SharedVector {
 public:
  // `factors` may be null: all are 1.
  __device__ __forceinline__ SharedVector(const float* factors, float times, int columns) {
    if constexpr (kExist) {
      for (int i = threadIdx.x; i < kChunks * 64; i += blockDim.x) {
        const int column = (i / 64 * 32 + i % 32) * 8 + i / 32 % 2 * 4;
        const bool given = factors != nullptr && column < columns;
        float4 four = given ? *reinterpret_cast<const float4*>(factors + column) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        four.x *= times, four.y *= times, four.z *= times, four.w *= times;
        Fours()[i] = four;
      }
      __syncthreads();
    }
  }
  // Of one half of a chunk's eight columns.
  __device__ __forceinline__ float4 Four(int chunk, int half) const {
    return Fours()[(chunk * 2 + half) * 32 + threadIdx.x % 32];
  }

 private:
  __device__ __forceinline__ static float4* Fours() {
    __shared__ float4 factors[kExist ? kChunks * 64 : 1];
    return factors;
  }
};

// Those of a QuantizedResult, its one scale's inverse in them.
template <int kChunks, bool kExist>
class ColumnFactors {
 public:
  __device__ __forceinline__ ColumnFactors(const QuantizedResult& to, int columns)
      : given_(kExist ? to : QuantizedResult()), factors_(to.smooth, given_.Inverse(), columns) {}
  __device__ __forceinline__ void MultiplyInto(float2 (&value)[4], int chunk) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 factors = factors_.Four(chunk, half);
      value[2 * half].x *= factors.x, value[2 * half].y *= factors.y;
      value[2 * half + 1].x *= factors.z, value[2 * half + 1].y *= factors.w;
    }
  }
  __device__ __forceinline__ const GivenScale& given() const { return given_; }

 private:
  GivenScale given_;
  SharedVector<kChunks, kResultFactor, kExist> factors_;
};

// A row of a QuantizedResidual, and its scale, as they lie in memory; zeros beyond.
template <int kChunks>
class IntegerWarpRow {
 public:
  // Evicted from the L2 cache first, as by WarpRow.
  __device__ __forceinline__ void LoadOnce(const QuantizedResidual& from, int64_t row, int columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int column = (i * 32 + static_cast<int>(threadIdx.x) % 32) * 8;
      words_[i] = column < columns ? __ldcs(reinterpret_cast<const int2*>(from.rows + row * columns + column)) : int2{};
    }
    scale_ = from.scales[row];
  }
  template <FactorsOf kOf>
  __device__ __forceinline__ void AddTo(float2 (&value)[kChunks][4],
                                        const SharedVector<kChunks, kOf, true>& factors) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float numbers[4];
        FloatsOfIntegers(static_cast<uint32_t>(half == 0 ? words_[i].x : words_[i].y), numbers);
        const float4 factor = factors.Four(i, half);
        float2 &first = value[i][2 * half], &second = value[i][2 * half + 1];
        first.x = fmaf(numbers[0], scale_ * factor.x, first.x), first.y = fmaf(numbers[1], scale_ * factor.y, first.y);
        second.x = fmaf(numbers[2], scale_ * factor.z, second.x);
        second.y = fmaf(numbers[3], scale_ * factor.w, second.y);
      }
    }
  }

 private:
  int2 words_[kChunks];
  float scale_;
};

// value = RMSNorm(value) * (gamma + gamma_offset); beyond the last column there are zeros.
template <class T, int kChunks>
__device__ __forceinline__ void NormalizeProduct(float2 (&value)[kChunks][4], int columns, float epsilon,
                                                 const WarpRow<T, kChunks>& gamma, float gamma_offset) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (const float2& v : value[i]) squares = fmaf(v.x, v.x, fmaf(v.y, v.y, squares));
  }
  const float inverse = norms::InverseRoot(WarpSum(squares), columns, epsilon);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 g = gamma.Pair(i, j);
      value[i][j].x = norms::NormalizedProduct(value[i][j].x, inverse, g.x + gamma_offset);
      value[i][j].y = norms::NormalizedProduct(value[i][j].y, inverse, g.y + gamma_offset);
    }
  }
}

// y = Norm(the sum of `rows` in float32, and of what add_more(float2 (&value)[kChunks][4]) adds). Both functions are
// called when the rows' registers are free, load_next() last. With a norm that quantises y is row `at` of `to`, whose
// factors are `smooth`. Beyond the last column zeros stay zeros, and nothing but loads and stores asks for it: between
// branches a warp would wait for each chunk's arithmetic alone.
template <class Norm, class T, int kChunks, int kRows, class LoadNext, class AddMore>
__device__ __forceinline__ void NormalizeSum(const WarpRow<T, kChunks> (&rows)[kRows], int columns, float epsilon,
                                             const WarpRow<T, kChunks>& gamma, const WarpRow<T, kChunks>& beta, T* y,
                                             LoadNext&& load_next, AddMore&& add_more, float gamma_offset = 0.0f,
                                             const QuantizedResult& to = {}, int64_t at = 0,
                                             const ColumnFactors<kChunks, Norm::kQuantizes>& smooth = {{}, 0}) {
  using Row = WarpRow<T, kChunks>;
  float2 value[kChunks][4];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) value[i][j] = rows[0].Pair(i, j);
  }
#pragma unroll
  for (int row = 1; row < kRows; ++row) rows[row].AddTo(value);
  add_more(value);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += value[i][j].x + value[i][j].y;
  }
  load_next();
  const float mean = Norm::Center(WarpSum(sum), columns);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const float center = Row::Column(i) < columns ? mean : 0.0f;
#pragma unroll
    for (float2& v : value[i]) v.x -= center, v.y -= center, squares = fmaf(v.x, v.x, fmaf(v.y, v.y, squares));
  }
  const float scale = Norm::Scale(WarpSum(squares), columns, epsilon);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    typename Row::Chunk out;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 g = gamma.Pair(i, j), b = beta.Pair(i, j);
      out.pairs[j] = PackPair<T>(Norm::Apply(value[i][j].x * scale, Norm::Gamma(g.x, gamma_offset), b.x),
                                 Norm::Apply(value[i][j].y * scale, Norm::Gamma(g.y, gamma_offset), b.y));
      if constexpr (Norm::kQuantizes) value[i][j] = UnpackPair<T>(out.pairs[j]);
    }
    if (norms::StoresY<Norm>(to) && Row::Column(i) < columns) {
      *reinterpret_cast<typename Row::Chunk*>(y + Row::Column(i)) = out;
    }
    if constexpr (Norm::kQuantizes) smooth.MultiplyInto(value[i], i);
  }
  if constexpr (Norm::kQuantizes) {
    float greatest = 0.0f;
    if (to.scale == nullptr) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
#pragma unroll
        for (const float2& v : value[i]) greatest = GreaterMagnitude(GreaterMagnitude(greatest, v.x), v.y);
      }
      greatest = GreatestOfWarp(greatest);
    }
    const QuantizedRow quantized(to, greatest, smooth.given());
    quantized.Store(at * columns + Row::Column(0), Row::Column(1) - Row::Column(0), columns - Row::Column(0),
                    reinterpret_cast<float (&)[kChunks][8]>(value));
    if (threadIdx.x % 32 == 0) to.scales[at] = quantized.scale();
  }
}

// Whether rows of `columns` elements at these addresses can be read in this way.
template <class... Pointers>
bool WarpRowsFit(int64_t columns, const Pointers*... data) {
  return columns <= kMaxWarpRowColumns && columns % 8 == 0 && (IsAligned(data, 16) && ...);
}

// Calls launch(kChunks as an integral_constant).
template <class Launch>
cudaError_t WithWarpRowChunks(int64_t columns, Launch&& launch) {
  if (columns <= 512) return launch(std::integral_constant<int, 2>());
  return columns <= 768 ? launch(std::integral_constant<int, 3>()) : launch(std::integral_constant<int, 4>());
}

// Launches as many blocks as can be resident; of one warp each, where there are too few rows to give every
// multiprocessor a full block.
template <class Arguments>
cudaError_t LaunchWarpRows(void (*kernel)(Arguments), const Arguments& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  const int64_t rows = a.packed.LaunchRows(a.rows);
  config.block = dim3(rows < kWarpRowThreads / 32 * device.multiprocessors ? 32 : kWarpRowThreads);
  config.stream = stream;
  config.device = &device;
  int blocks = 0;
  const cudaError_t error = ResidentClusters(config, BERTFUSE_KERNEL_HANDLE(kernel), &blocks);
  if (error != cudaSuccess) return error;
  config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, CeilDiv(rows, config.block.x / 32))));
  return Launch(config, kernel, a);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_WARP_ROW_CUH_
