// A norm of one row held in a block's registers, float32.
#ifndef BERTFUSE_KERNELS_ROW_NORM_CUH_
#define BERTFUSE_KERNELS_ROW_NORM_CUH_

#include "kernels/elements.cuh"
#include "kernels/layer_norm.h"
#include "kernels/norm.cuh"
#include "kernels/quantized_row.cuh"

namespace bertfuse::kernels {

// Rows are cut into chunks of kVector elements; thread t holds chunks t, t + blockDim.x, ... kChunks at most.
template <int kVector, int kChunks>
struct RowSlice {
  float value[kChunks][kVector];
};

// Calls visit(chunk, first_column) for each chunk that this thread holds of a row of `columns`.
template <int kVector, int kChunks, class Visit>
__device__ __forceinline__ void ForEachChunk(int columns, Visit&& visit) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int column = (chunk * blockDim.x + threadIdx.x) * kVector;
    if (column < columns) visit(chunk, column);
  }
}

// A vector of the row's columns (bias, gamma, beta; zeros where it is null) as this thread needs it. Short rows keep it
// in registers, so that Load() can be called long before; of long ones a chunk is read when it is asked for.
template <class T, int kVector, int kChunks>
class RowVector {
  static constexpr bool kInRegisters = kChunks <= 2;

 public:
  __device__ __forceinline__ explicit RowVector(const T* data) : data_(data) {}
  __device__ __forceinline__ void Load(int columns) {
    if constexpr (kInRegisters) {
      ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) { registers_[chunk] = Read(column); });
    }
  }
  __device__ __forceinline__ Pack<T, kVector> Chunk(int chunk, int column) const {
    if constexpr (kInRegisters) return registers_[chunk];
    return Read(column);
  }

 private:
  __device__ __forceinline__ Pack<T, kVector> Read(int column) const {
    return LoadIf<kVector>(data_ != nullptr, data_ + column);
  }
  const T* data_;
  Pack<T, kVector> registers_[kInRegisters ? kChunks : 1];
};

// 1 / the root of the row's mean square, to which epsilon is added. `scratch` holds 32 values.
template <int kVector, int kChunks>
__device__ __forceinline__ float InverseRootOfRow(const RowSlice<kVector, kChunks>& row, int columns, float epsilon,
                                                  float3* scratch) {
  float squares = 0.0f;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += row.value[chunk][i] * row.value[chunk][i];
  });
  squares = WarpSum(squares);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) scratch[threadIdx.x / 32].x = squares;
  __syncthreads();
  return norms::InverseRoot(WarpSum(lane < warps ? scratch[lane].x : 0.0f), columns, epsilon);
}

// Normalises the row and stores it: two passes within a warp, then Chan's parallel form over the warps, so that the
// block synchronises once; with a norm that quantises twice, and then `y` is row `at` of `to`, whose factors are
// `smooth`. `scratch` holds 32 values, and 32 more where it quantises. Nothing is stored where `y` is null.
template <class Norm, class T, int kVector, int kChunks>
__device__ __forceinline__ void NormalizeAndStore(
    const RowSlice<kVector, kChunks>& row, int columns, const RowVector<T, kVector, kChunks>& gamma,
    const RowVector<T, kVector, kChunks>& beta, float epsilon, T* y, float3* scratch, float gamma_offset = 0.0f,
    const QuantizedResult& to = {}, int64_t at = 0,
    const RowVector<float, kVector, kChunks>& smooth = RowVector<float, kVector, kChunks>(nullptr)) {
  float sum = 0.0f, count = 0.0f;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int) {
    count += kVector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += row.value[chunk][i];
  });
  count = WarpSum(count);
  float mean = Norm::Center(WarpSum(sum), fmaxf(count, 1.0f));  // a warp may have no columns
  float squares = 0.0f;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float centered = row.value[chunk][i] - mean;
      squares += centered * centered;
    }
  });
  squares = WarpSum(squares);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) scratch[threadIdx.x / 32] = make_float3(count, mean, squares);
  __syncthreads();
  const float3 partial = lane < warps ? scratch[lane] : make_float3(0.0f, 0.0f, 0.0f);
  mean = Norm::Center(WarpSum(partial.x * partial.y), columns);
  squares = WarpSum(partial.z + partial.x * (partial.y - mean) * (partial.y - mean));
  const float inverse = Norm::Scale(squares, columns, epsilon);
  RowSlice<kVector, kChunks> rounded;  // to T, and smoothed: where it quantises
  float greatest = 0.0f;
  const GivenScale given(Norm::kQuantizes ? to : QuantizedResult());
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
    const auto scale = gamma.Chunk(chunk, column), shift = beta.Chunk(chunk, column);
    Pack<T, kVector> out;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float normalized = (row.value[chunk][i] - mean) * inverse;
      const float factor = Norm::Gamma(ToFloat(scale.value[i]), gamma_offset);
      out.value[i] = FromFloat<T>(Norm::Apply(normalized, factor, ToFloat(shift.value[i])));
    }
    if (norms::StoresY<Norm>(to) && y != nullptr) *reinterpret_cast<Pack<T, kVector>*>(y + column) = out;
    if constexpr (Norm::kQuantizes) {
      const auto factors = smooth.Chunk(chunk, column);
      greatest = Smoothed(out, to.smooth != nullptr, factors, given.Inverse(), greatest, rounded.value[chunk]);
    }
  });
  if constexpr (Norm::kQuantizes) {
    greatest = GreatestOfWarp(greatest);
    scratch += 32;
    if (lane == 0) scratch[threadIdx.x / 32].x = greatest;
    __syncthreads();
    greatest = GreatestOfWarp(lane < warps ? scratch[lane].x : 0.0f);
    if (y == nullptr) return;
    const QuantizedRow quantized(to, greatest, given);
    const int first = threadIdx.x * kVector;
    quantized.Store(at * columns + first, blockDim.x * kVector, columns - first, rounded.value);
    if (threadIdx.x == 0) to.scales[at] = quantized.scale();
  }
}

// The most threads that RowThreads() gives a block whose threads hold up to `chunks`.
constexpr int MaxRowThreads(int chunks) { return chunks > 2 ? 1024 : 512; }

static_assert(MaxRowColumns(1) == 8 * MaxRowThreads(8));

// Threads of a block for rows of `columns` in chunks of `vector`: as many warps as one chunk a thread takes, up to 512,
// or 1024 where 512 would have to take more than 4 each.
inline int RowThreads(int64_t columns, int vector) {
  const int64_t threads = (columns + vector - 1) / vector, most = threads > 4 * 512 ? 1024 : 512;
  return static_cast<int>(threads < most ? (threads + 31) / 32 * 32 : most);
}

// Calls body with kChunks = 1, 2, 4 or 8 as an integral_constant, whichever first holds `columns`; false if none does.
// Rows read one element at a time (odd sizes, addresses that are not aligned) are all given 8: one kernel for them.
template <int kVector, class Body>
bool SwitchChunks(int64_t columns, int threads, Body&& body) {
  const int64_t per_chunk = int64_t{kVector} * threads, chunks = (columns + per_chunk - 1) / per_chunk;
  if constexpr (kVector > 1) {
    if (chunks <= 1) return body(std::integral_constant<int, 1>()), true;
    if (chunks <= 2) return body(std::integral_constant<int, 2>()), true;
    if (chunks <= 4) return body(std::integral_constant<int, 4>()), true;
  }
  if (chunks <= 8) return body(std::integral_constant<int, 8>()), true;
  return false;
}

// A block for each row: launch(config, kChunks as an integral_constant). Rows that are too wide give
// cudaErrorInvalidValue.
template <int kVector, class Arguments, class LaunchKernel>
cudaError_t LaunchRowBlocks(const Arguments& a, const Device& device, cudaStream_t stream, LaunchKernel&& launch) {
  LaunchConfig config;
  const int threads = RowThreads(a.columns, kVector);
  config.grid = dim3(static_cast<unsigned>(a.packed.LaunchRows(a.rows)));
  config.block = dim3(threads);
  config.stream = stream;
  config.device = &device;
  cudaError_t error = cudaErrorInvalidValue;
  SwitchChunks<kVector>(a.columns, threads, [&](auto chunks) { error = launch(config, chunks); });
  return error;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ROW_NORM_CUH_
