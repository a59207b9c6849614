#include "kernels/add_qkv_bias.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"

namespace bertfuse::kernels {
namespace {

// The sum of two numbers of 16 bits rounds once, so their own packed add gives what float32 would.
template <class T, int kVector>
__device__ __forceinline__ void Add(Pack<T, kVector>& x, const Pack<T, kVector>& bias) {
  if constexpr (sizeof(T) == 2 && kVector % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      uint32_t& pair = reinterpret_cast<uint32_t&>(x.value[i]);
      pair = AddPairs<T>(pair, reinterpret_cast<const uint32_t&>(bias.value[i]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) x.value[i] = FromFloat<T>(ToFloat(x.value[i]) + ToFloat(bias.value[i]));
  }
}

// Blocks take tokens (y), threads take the 3 * heads * head_size columns of a token in chunks of kVector.
template <class T, int kVector>
__global__ void __launch_bounds__(256) AddQkvBiasKernel(AddQkvBiasArguments<T> a, int tokens_per_block) {
  const int hidden = static_cast<int>(a.heads * a.head_size);
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * kVector;
  LaunchDependents();
  if (column >= 3 * hidden) return;
  const int output = column / hidden, head = column % hidden / static_cast<int>(a.head_size);
  const int inner = column % static_cast<int>(a.head_size);
  WaitForDependencies();
  const auto bias = *reinterpret_cast<const Pack<T, kVector>*>(a.bias + column);
  const int64_t tokens = a.batch * a.sequence;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * tokens_per_block;
  const int64_t last = first + tokens_per_block < tokens ? first + tokens_per_block : tokens;
  T* out = output == 0 ? a.out[0] : output == 1 ? a.out[1] : a.out[2];
#pragma unroll 4
  for (int64_t token = first; token < last; ++token) {
    auto x = *reinterpret_cast<const Pack<T, kVector>*>(a.qkv + token * 3 * hidden + column);
    Add(x, bias);
    const int64_t row = (token / a.sequence * a.heads + head) * a.sequence + token % a.sequence;
    *reinterpret_cast<Pack<T, kVector>*>(out + row * a.head_size + inner) = x;
  }
}

template <class T, int kVector>
cudaError_t LaunchVector(const AddQkvBiasArguments<T>& a, const Device& device, cudaStream_t stream) {
  const int64_t tokens = a.batch * a.sequence, chunks = CeilDiv(3 * a.heads * a.head_size, kVector);
  const int64_t column_blocks = CeilDiv(chunks, 256);
  // Few tokens: one a block, to fill the device. Many: eight, so that the bias and the divisions are paid once for
  // them.
  int64_t per_block = tokens * column_blocks >= 64 * device.multiprocessors ? 8 : 1;
  if (CeilDiv(tokens, per_block) > 65535) per_block = CeilDiv(tokens, 65535);
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(column_blocks), static_cast<unsigned>(CeilDiv(tokens, per_block)));
  config.block = dim3(256);
  config.stream = stream;
  config.device = &device;
  return Launch(config, AddQkvBiasKernel<T, kVector>, a, static_cast<int>(per_block));
}

}  // namespace

template <class T>
cudaError_t AddQkvBias(const AddQkvBiasArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads * a.head_size == 0) return cudaSuccess;
  constexpr int kVector = 16 / sizeof(T);
  const bool aligned = a.head_size % kVector == 0 && IsAligned(a.qkv, 16) && IsAligned(a.bias, 16) &&
                       IsAligned(a.out[0], 16) && IsAligned(a.out[1], 16) && IsAligned(a.out[2], 16);
  return aligned ? LaunchVector<T, kVector>(a, device, stream) : LaunchVector<T, 1>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t AddQkvBias(const AddQkvBiasArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
