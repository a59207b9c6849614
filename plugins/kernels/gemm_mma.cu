#include "kernels/activation.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/gemm.h"
#include "kernels/mma.cuh"
#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kStages = 3;
// A tile's row is 64 bytes, four chunks of 16; a step of the tensor cores takes two chunks.
template <class T>
constexpr int kBlockK = 64 / sizeof(T);
template <class T>
constexpr int kChunk = 16 / sizeof(T);

// Byte offset of a 16-byte chunk in a tile. Eight consecutive rows at the same chunk fall into different banks.
__device__ __forceinline__ int ChunkOffset(int row, int chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); }

template <int kRows, int kThreads, class T>
__device__ __forceinline__ void LoadTile(char* tile, const T* source, int64_t first_row, int64_t rows, int64_t first_k,
                                         int64_t k) {
#pragma unroll
  for (int i = threadIdx.x; i < kRows * 4; i += kThreads) {
    const int row = i / 4, chunk = i % 4;
    const bool inside = first_row + row < rows && first_k + chunk * kChunk<T> < k;
    CopyAsync<16>(tile + ChunkOffset(row, chunk),
                  inside ? source + (first_row + row) * k + first_k + chunk * kChunk<T> : source, inside);
  }
}

// A block computes kM x kN outputs with kWarpsM x kWarpsN warps.
template <class T, int kM, int kN, int kWarpsM, int kWarpsN>
__global__ void __launch_bounds__(32 * kWarpsM * kWarpsN) GemmMmaKernel(GemmArguments<T> a) {
  constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  constexpr int kWarpM = kM / kWarpsM, kWarpN = kN / kWarpsN, kI = kWarpM / 16, kJ = kWarpN / 8;
  constexpr int kStageBytes = (kM + kN) * 64;
  static_assert(kJ % 2 == 0 && kStages * kStageBytes <= 48 * 1024);
  __shared__ __align__(128) char tiles[kStages * kStageBytes];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / kWarpsN * kWarpM, warp_n = warp % kWarpsN * kWarpN;
  const int64_t first_n = static_cast<int64_t>(blockIdx.y) * kN;
  LaunchDependents();
  const int64_t rows = RealRows(a.packed, a.m);
  WaitForDependencies();
  for (int64_t first_m = static_cast<int64_t>(blockIdx.x) * kM; first_m < rows; first_m += int64_t{gridDim.x} * kM) {
    const auto load = [&](int stage, int64_t first_k) {
      if (first_k < a.k) {
        char* tile = tiles + stage * kStageBytes;
        LoadTile<kM, kThreads>(tile, a.x, first_m, rows, first_k, a.k);
        LoadTile<kN, kThreads>(tile + kM * 64, a.weight, first_n, a.n, first_k, a.k);
      }
      CommitCopies();
    };
    float sum[kI][kJ][4] = {};
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) load(stage, stage * kBlockK<T>);
    int stage = 0, next = kStages - 1;
    for (int64_t first_k = 0; first_k < a.k; first_k += kBlockK<T>) {
      WaitCopies<kStages - 2>();
      __syncthreads();
      load(next, first_k + (kStages - 1) * kBlockK<T>);
      const uint32_t x_tile = SharedAddress(tiles + stage * kStageBytes), w_tile = x_tile + kM * 64;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t x[kI][4], w[kJ / 2][4];
#pragma unroll
        for (int i = 0; i < kI; ++i) {
          LoadMatrices(x[i], x_tile + ChunkOffset(warp_m + i * 16 + lane % 16, step * 2 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < kJ / 2; ++j) {
          LoadMatrices(w[j], w_tile + ChunkOffset(warp_n + j * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
        }
#pragma unroll
        for (int i = 0; i < kI; ++i) {
#pragma unroll
          for (int j = 0; j < kJ; ++j) Mma<T>(sum[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
        }
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      const int64_t column = first_n + warp_n + j * 8 + lane % 4 * 2;
      float bias[2] = {};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (a.float_product == nullptr && a.bias != nullptr && column + c < a.n) bias[c] = ToFloat(a.bias[column + c]);
      }
#pragma unroll
      for (int i = 0; i < kI; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t row = first_m + warp_m + i * 16 + lane / 4 + e / 2 * 8;
          if (row >= rows || column + e % 2 >= a.n) continue;
          if (a.float_product != nullptr) {
            a.float_product[row * a.n + column + e % 2] = sum[i][j][e];
          } else {
            a.y[row * a.n + column + e % 2] =
                FromFloat<T>(Activations::Exact(sum[i][j][e] + bias[e % 2], a.activation));
          }
        }
      }
    }
    WaitCopies<0>();
    __syncthreads();
  }
}

template <class T, int kM, int kN, int kWarpsM, int kWarpsN>
cudaError_t LaunchTile(const GemmArguments<T>& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  config.grid =
      dim3(static_cast<unsigned>(CeilDiv(a.packed.ForGrid(a.m), kM)), static_cast<unsigned>(CeilDiv(a.n, kN)));
  config.block = dim3(32 * kWarpsM * kWarpsN);
  config.stream = stream;
  config.device = &device;
  return Launch(config, GemmMmaKernel<T, kM, kN, kWarpsM, kWarpsN>, a);
}

}  // namespace

template <class T>
cudaError_t GemmMma(const GemmArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.m == 0 || a.n == 0) return cudaSuccess;
  if (!Activations::Has(a.activation)) return cudaErrorInvalidValue;
  const bool large = CeilDiv(a.packed.ForGrid(a.m), 128) * CeilDiv(a.n, 128) >= device.multiprocessors;
  return large ? LaunchTile<T, 128, 128, 2, 4>(a, device, stream) : LaunchTile<T, 64, 64, 2, 2>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t GemmMma(const GemmArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
