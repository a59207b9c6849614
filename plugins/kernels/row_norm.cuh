// LayerNorm of one row held in a block's registers: two passes, float32.
#ifndef BERTFUSE_KERNELS_ROW_NORM_CUH_
#define BERTFUSE_KERNELS_ROW_NORM_CUH_

#include "kernels/elements.cuh"

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

// Normalises the row and stores it. `scratch` holds 32 floats.
template <class T, int kVector, int kChunks>
__device__ __forceinline__ void NormalizeAndStore(const RowSlice<kVector, kChunks>& row, int columns, const T* gamma,
                                                  const T* beta, float epsilon, T* y, float* scratch) {
  float sum = 0.0f;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += row.value[chunk][i];
  });
  const float mean = BlockSum(sum, scratch) / columns;
  float squares = 0.0f;
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float centered = row.value[chunk][i] - mean;
      squares += centered * centered;
    }
  });
  const float inverse = rsqrtf(BlockSum(squares, scratch) / columns + epsilon);
  ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
    const auto scale = *reinterpret_cast<const Pack<T, kVector>*>(gamma + column);
    const auto shift = *reinterpret_cast<const Pack<T, kVector>*>(beta + column);
    Pack<T, kVector> out;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      out.value[i] =
          FromFloat<T>((row.value[chunk][i] - mean) * inverse * ToFloat(scale.value[i]) + ToFloat(shift.value[i]));
    }
    *reinterpret_cast<Pack<T, kVector>*>(y + column) = out;
  });
}

// Threads of a block for rows of `columns` in chunks of `vector`: as many warps as one chunk a thread takes, up to
// `most`.
inline int RowThreads(int64_t columns, int vector, int most) {
  const int64_t threads = (columns + vector - 1) / vector;
  return static_cast<int>(threads < most ? (threads + 31) / 32 * 32 : most);
}

// Calls body with kChunks = 1, 2, 4 or 8 as an integral_constant, whichever first holds `columns`; false if none does.
template <class Body>
bool SwitchChunks(int64_t columns, int vector, int threads, Body&& body) {
  const int64_t chunks =
      (columns + static_cast<int64_t>(vector) * threads - 1) / (static_cast<int64_t>(vector) * threads);
  if (chunks <= 1) return body(std::integral_constant<int, 1>()), true;
  if (chunks <= 2) return body(std::integral_constant<int, 2>()), true;
  if (chunks <= 4) return body(std::integral_constant<int, 4>()), true;
  if (chunks <= 8) return body(std::integral_constant<int, 8>()), true;
  return false;
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ROW_NORM_CUH_
