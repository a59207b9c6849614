#include "kernels/after_packing.cuh"
#include "kernels/rms_norm.h"
#include "kernels/row_norm.cuh"
#include "kernels/warp_row.cuh"

namespace bertfuse::kernels {
namespace {

// 16-bit rows, a warp for each.
template <class T, int kChunks>
__global__ void __launch_bounds__(kWarpRowThreads, kChunks > 3 ? 3 : 4) RmsNormWarpKernel(RmsNormArguments<T> a) {
  const int columns = static_cast<int>(a.columns);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  BeginFirst(a.packed);
  const int64_t count = RealRows(a.packed, a.rows);
  WarpRow<T, kChunks> rows[1], gamma, beta;  // there is no beta
  gamma.Load(a.gamma, columns);
  const auto load = [&](int64_t at) {
    if (at < count) rows[0].Load(a.x + at * columns, columns);
  };
  int64_t at = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
#pragma unroll 1
  for (load(at); at < count; at += stride) {
    gamma.KeepPacked();
    NormalizeSum<norms::RmsNorm>(
        rows, columns, a.epsilon, gamma, beta, a.y + at * columns, [&] { load(at + stride); }, [](auto&) {},
        a.gamma_offset);
  }
}

// A block for each row, of any type and address.
template <class T, int kVector, int kChunks>
__global__ void __launch_bounds__(MaxRowThreads(kChunks), kChunks == 1 ? 3 : 1) RmsNormKernel(RmsNormArguments<T> a) {
  __shared__ float3 scratch[32];
  const int columns = static_cast<int>(a.columns);
  BeginFirst(a.packed);
  const int64_t count = RealRows(a.packed, a.rows);
  if (blockIdx.x >= count) return;
  RowVector<T, kVector, kChunks> gamma(a.gamma), beta(nullptr);
  gamma.Load(columns), beta.Load(columns);
#pragma unroll 1
  for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
    RowSlice<kVector, kChunks> row;
    ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
      const auto loaded = *reinterpret_cast<const Pack<T, kVector>*>(a.x + at * a.columns + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) row.value[chunk][i] = ToFloat(loaded.value[i]);
    });
    NormalizeAndStore<norms::RmsNorm>(row, columns, gamma, beta, a.epsilon, a.y + at * a.columns, scratch,
                                      a.gamma_offset);
    __syncthreads();
  }
}

template <class T, int kVector>
cudaError_t LaunchVector(const RmsNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  return LaunchRowBlocks<kVector>(a, device, stream, [&](const LaunchConfig& config, auto chunks) {
    return Launch(config, RmsNormKernel<T, kVector, decltype(chunks)::value>, a);
  });
}

// Whether four elements can be read and written at a time.
template <class T>
bool IsVectorised(const RmsNormArguments<T>& a) {
  const auto aligned = [](auto... data) { return (IsAligned(data, 4 * sizeof(T)) && ...); };
  return a.columns % 4 == 0 && aligned(a.x, a.gamma, a.y);
}

}  // namespace

template <class T>
bool RmsNormSupports(const RmsNormArguments<T>& a) {
  return a.columns <= MaxRowColumns(IsVectorised(a) ? 4 : 1);
}

template <class T>
cudaError_t RmsNorm(const RmsNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if constexpr (sizeof(T) == 2) {
    // From as many rows on as LayerNorm behind a product takes such a kernel (ops/layer_norm_tactic.cc).
    const int64_t few = int64_t{2} * device.multiprocessors;
    if ((a.deterministic_rows || a.packed.LaunchRows(a.rows) >= few) && WarpRowsFit(a.columns, a.x, a.gamma, a.y)) {
      return WithWarpRowChunks(a.columns, [&](auto chunks) {
        return LaunchWarpRows(RmsNormWarpKernel<T, decltype(chunks)::value>, a, device, stream);
      });
    }
  }
  return IsVectorised(a) ? LaunchVector<T, 4>(a, device, stream) : LaunchVector<T, 1>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template bool RmsNormSupports(const RmsNormArguments<TYPE>&);          \
  template cudaError_t RmsNorm(const RmsNormArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
