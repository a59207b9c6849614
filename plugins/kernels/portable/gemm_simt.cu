#include "kernels/activation.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_rows.cuh"
#include "kernels/portable/gemm.h"
#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kBlockK = 16;
constexpr int kThreadsN = 16;
// Both operands keep k contiguous in shared memory, so a thread reads four k of a row at once. 20 floats a row put the
// rows of neighbouring threads into different banks.
constexpr int kPitch = kBlockK + 4;

template <int kRows, int kThreads, bool kVectorised, class T>
__device__ __forceinline__ void LoadTile(float (*tile)[kPitch], const T* source, int64_t first_row, int64_t rows,
                                         int64_t first_k, int64_t k) {
  constexpr int kVector = kVectorised ? 4 : 1;
  constexpr int kPerRow = kBlockK / kVector;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kPerRow; i += kThreads) {
    const int row = i / kPerRow, column = i % kPerRow * kVector;
    const bool inside = first_row + row < rows && first_k + column < k;
    const T* from = inside ? source + (first_row + row) * k + first_k + column : source;
    if constexpr (std::is_same_v<T, float>) {
      CopyAsync<4 * kVector>(&tile[row][column], from, inside);
    } else {
      tile[row][column] = inside ? ToFloat(*from) : 0.0f;
    }
  }
}

// A block computes kM x kN outputs; thread (ty, tx) those at rows ty + i * kThreadsM and columns tx + j * kThreadsN.
// Products of 8-bit integers are summed in float32 over one step of kBlockK, which is exact, and from step to step in
// 32 bits.
template <class Elements, int kM, int kN, int kThreadsM, bool kVectorised>
__global__ void __launch_bounds__(kThreadsM* kThreadsN) GemmSimtKernel(PortableGemm<Elements> a) {
  using Y = typename Elements::Y;
  constexpr bool kInteger = std::is_same_v<typename Elements::Accumulator, int32_t>;
  constexpr int kThreads = kThreadsM * kThreadsN, kI = kM / kThreadsM, kJ = kN / kThreadsN;
  __shared__ __align__(16) float x_tile[2][kM][kPitch];
  __shared__ __align__(16) float w_tile[2][kN][kPitch];
  const int tx = threadIdx.x % kThreadsN, ty = threadIdx.x / kThreadsN;
  const int64_t first_n = static_cast<int64_t>(blockIdx.y) * kN;
  LaunchDependents();
  const int64_t rows = RealRows(a.packed, a.m);
  WaitForDependencies();
  for (int64_t first_m = static_cast<int64_t>(blockIdx.x) * kM; first_m < rows; first_m += int64_t{gridDim.x} * kM) {
    const auto load = [&](int buffer, int64_t first_k) {
      LoadTile<kM, kThreads, kVectorised>(x_tile[buffer], a.x, first_m, rows, first_k, a.k);
      LoadTile<kN, kThreads, kVectorised>(w_tile[buffer], a.weight, first_n, a.n, first_k, a.k);
      CommitCopies();
    };
    float sum[kI][kJ] = {};
    int32_t total[kInteger ? kI : 1][kInteger ? kJ : 1] = {};
    load(0, 0);
    int buffer = 0;
    for (int64_t first_k = 0; first_k < a.k; first_k += kBlockK, buffer ^= 1) {
      WaitCopies<0>();
      __syncthreads();
      if (first_k + kBlockK < a.k) load(buffer ^ 1, first_k + kBlockK);
#pragma unroll
      for (int step = 0; step < kBlockK; step += 4) {
        float4 x[kI], w[kJ];
#pragma unroll
        for (int i = 0; i < kI; ++i) x[i] = *reinterpret_cast<const float4*>(&x_tile[buffer][ty + i * kThreadsM][step]);
#pragma unroll
        for (int j = 0; j < kJ; ++j) w[j] = *reinterpret_cast<const float4*>(&w_tile[buffer][tx + j * kThreadsN][step]);
#pragma unroll
        for (int i = 0; i < kI; ++i) {
#pragma unroll
          for (int j = 0; j < kJ; ++j) {
            sum[i][j] = fmaf(x[i].x, w[j].x, sum[i][j]);
            sum[i][j] = fmaf(x[i].y, w[j].y, sum[i][j]);
            sum[i][j] = fmaf(x[i].z, w[j].z, sum[i][j]);
            sum[i][j] = fmaf(x[i].w, w[j].w, sum[i][j]);
          }
        }
      }
      if constexpr (kInteger) {
#pragma unroll
        for (int i = 0; i < kI; ++i) {
#pragma unroll
          for (int j = 0; j < kJ; ++j) total[i][j] += static_cast<int32_t>(sum[i][j]), sum[i][j] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kI; ++i) {
      const int64_t row = first_m + ty + i * kThreadsM;
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        const int64_t column = first_n + tx + j * kThreadsN;
        if (row >= rows || column >= a.n) continue;
        if constexpr (kInteger) {
          const int32_t taken_off = a.x_compensation == nullptr ? 0 : a.x_compensation[column];
          sum[i][j] = static_cast<float>(total[i][j] - taken_off);
        }
        if constexpr (kIsQuantized<Elements>) sum[i][j] = sum[i][j] * a.row_scales[row] * a.weight_scales[column];
        if (a.float_product != nullptr) {
          a.float_product[row * a.n + column] = sum[i][j];
        } else {
          const float bias = a.bias != nullptr ? ToFloat(a.bias[column]) : 0.0f;
          sum[i][j] += bias;
          if (a.activation != Activation::kNone) sum[i][j] = Activations::ExactByCall(sum[i][j], a.activation);
          a.y[row * a.n + column] = FromFloat<Y>(sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
}

template <int kM, int kN, int kThreadsM, class Elements>
cudaError_t LaunchTile(const PortableGemm<Elements>& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  config.grid =
      dim3(static_cast<unsigned>(CeilDiv(a.packed.LaunchRows(a.m), kM)), static_cast<unsigned>(CeilDiv(a.n, kN)));
  config.block = dim3(kThreadsM * kThreadsN);
  config.stream = stream;
  config.device = &device;
  if constexpr (std::is_same_v<typename Elements::X, float>) {
    if (a.k % 4 == 0 && IsAligned(a.x, 16) && IsAligned(a.weight, 16)) {
      return Launch(config, GemmSimtKernel<Elements, kM, kN, kThreadsM, true>, a);
    }
  }
  return Launch(config, GemmSimtKernel<Elements, kM, kN, kThreadsM, false>, a);
}

}  // namespace

template <class Elements>
cudaError_t GemmSimt(const PortableGemm<Elements>& a, const Device& device, cudaStream_t stream) {
  if (a.m == 0 || a.n == 0) return cudaSuccess;
  if (!Activations::Has(a.activation)) return cudaErrorInvalidValue;
  // The large tile reads a third as much per product, but pays only when it fills the device.
  const bool large = CeilDiv(a.packed.LaunchRows(a.m), 128) * CeilDiv(a.n, 128) >= device.multiprocessors;
  return large ? LaunchTile<128, 128, 16>(a, device, stream) : LaunchTile<32, 64, 8>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE)                               \
  template cudaError_t GemmSimt(const PortableGemm<Elements<TYPE>>&, const Device&, cudaStream_t);     \
  template cudaError_t GemmSimt(const PortableGemm<Int8Elements<TYPE>>&, const Device&, cudaStream_t); \
  template cudaError_t GemmSimt(const PortableGemm<Fp8Elements<TYPE>>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
