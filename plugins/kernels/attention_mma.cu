#include <cmath>

#include "kernels/attention.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/mma.cuh"
#include "kernels/packed_tiles.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kQueries = 16 * kWarps;
// Keys of a tile: as many as keep scores and results in registers, beside the queries.
template <int kDims>
constexpr int kKeysOf = kDims < 128 ? 64 : 32;
// In place of a score: of a hidden key, near the end of float32's range, so that it counts for nothing beside a key
// that is seen and like any other where none is; of a place behind the last key, which never counts.
constexpr float kHidden = -3e38f;
constexpr float kNoKey = -INFINITY;

constexpr int kBytes = 2;  // of an element: what the kernel's tensor-core instructions and chunks of eight take

// Byte offset of a 16-byte chunk in a tile of kDims columns. Eight consecutive rows at the same chunk fall into
// different banks.
template <int kDims>
__device__ __forceinline__ int ChunkOffset(int row, int chunk) {
  constexpr int kRowsOf128Bytes = kDims < 64 ? 64 / kDims : 1;
  return row * kDims * kBytes + ((chunk ^ (row / kRowsOf128Bytes & (kDims < 64 ? kDims / 8 - 1 : 7))) << 4);
}

// A tile of K or V from row first_key on; zeros behind the last row.
template <int kDims, class T>
__device__ __forceinline__ void LoadTile(char* tile, const T* source, int64_t pitch, int64_t first_key, int64_t keys) {
  constexpr int kChunks = kDims / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kKeysOf<kDims> * kChunks; i += 32 * kWarps) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool inside = first_key + row < keys;
    CopyAsync<16>(tile + ChunkOffset<kDims>(row, chunk),
                  inside ? source + (first_key + row) * pitch + chunk * 8 : source, inside);
  }
  CommitCopies();
}

template <class T>
__device__ __forceinline__ bool IsHidden(const AttentionArguments<T>& a, int64_t batch, int64_t key) {
  if (a.mask == nullptr || key >= a.sequence) return false;
  const int64_t at = batch * a.sequence + key;
  return a.mask_is_int64 ? static_cast<const int64_t*>(a.mask)[at] == 0 : static_cast<const int32_t*>(a.mask)[at] == 0;
}

// This warp's 16 rows of Q + bias as tensor-core operands, straight from global memory: they are read once.
template <int kDims, class T>
__device__ __forceinline__ void LoadQueries(const AttentionArguments<T>& a, const T* q, const T* bias, int64_t pitch,
                                            int64_t first_query, uint32_t (&out)[kDims / 16][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kDims / 16; ++step) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t query = first_query + lane / 4 + e % 2 * 8;
      const int dim = step * 16 + e / 2 * 8 + lane % 4 * 2;
      out[step][e] = 0;
      if (query >= a.sequence) continue;
      const float2 x = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(q + query * pitch + dim));
      const float2 b = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(bias + dim));
      out[step][e] = PackPair<T>(x.x + b.x, x.y + b.y);
    }
  }
}

// A block computes 64 queries of one head, 16 per warp. K and V have one tile each: the next K is in flight while V is
// used, and V while K is.
template <class T, int kDims>
__device__ __forceinline__ void ComputeTile(const AttentionArguments<T>& a, int64_t batch, int64_t head,
                                            int64_t first_of_block) {
  constexpr int kKeys = kKeysOf<kDims>;
  static_assert(sizeof(T) == kBytes);
  __shared__ __align__(128) char k_tile[kKeys * kDims * kBytes];
  __shared__ __align__(128) char v_tile[kKeys * kDims * kBytes];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_query = first_of_block + warp * 16;
  const int64_t hidden = a.heads * kDims, pitch = 3 * hidden;
  const T* q = a.qkv + batch * a.sequence * pitch + head * kDims;
  const T* k = q + hidden;
  const T* v = k + hidden;
  const T* bias = a.bias + head * kDims;
  LoadTile<kDims>(k_tile, k, pitch, 0, a.sequence);
  uint32_t query[kDims / 16][4];
  LoadQueries<kDims>(a, q, bias, pitch, first_query, query);

  const float scale = a.scale * 1.44269504088896341f;  // log2(e): exp2 is the cheap one
  float highest[2] = {kHidden, kHidden}, total[2] = {}, out[kDims / 8][4] = {};
  bool any_seen = false;
  for (int64_t first_key = 0; first_key < a.sequence; first_key += kKeys) {
    WaitCopies<0>();
    __syncthreads();  // K has arrived, and all warps are done with V
    LoadTile<kDims>(v_tile, v, pitch, first_key, a.sequence);
    uint32_t hides[kKeys / 32];
#pragma unroll
    for (int half = 0; half < kKeys / 32; ++half) {
      hides[half] = __ballot_sync(0xffffffffu, IsHidden(a, batch, first_key + half * 32 + lane));
    }
    const int keys = a.sequence - first_key < kKeys ? static_cast<int>(a.sequence - first_key) : kKeys;
    int hidden_keys = 0;
#pragma unroll
    for (uint32_t half : hides) hidden_keys += __popc(half);
    const bool sees = hidden_keys < keys;
    // A wholly hidden tile counts only as long as no key was visible: padding at the end costs nothing.
    const bool counts = sees || !any_seen;
    float score[kKeys / 8][4] = {};
    if (counts) {
      const uint32_t tile = SharedAddress(k_tile);
#pragma unroll
      for (int step = 0; step < kDims / 16; ++step) {
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
          uint32_t keys_of_16[4];
          LoadMatrices(keys_of_16,
                       tile + ChunkOffset<kDims>(j * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
          Mma<T>(score[2 * j], query[step], keys_of_16[0], keys_of_16[1]);
          Mma<T>(score[2 * j + 1], query[step], keys_of_16[2], keys_of_16[3]);
        }
      }
    }
    WaitCopies<0>();
    __syncthreads();  // V has arrived, and all warps are done with K
    if (first_key + kKeys < a.sequence) LoadTile<kDims>(k_tile, k, pitch, first_key + kKeys, a.sequence);
    if (!counts) continue;
    any_seen |= sees;

    float now_highest[2] = {highest[0], highest[1]};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int in_group = lane % 4 * 2 + e % 2;
        float& x = score[j][e];
        x *= scale;
        if (hides[j / 4] >> (j % 4 * 8 + in_group) & 1) x = kHidden;
        if (j * 8 + in_group >= keys) x = kNoKey;
        now_highest[e / 2] = fmaxf(now_highest[e / 2], x);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {  // the four lanes that share a row
      now_highest[row] = fmaxf(now_highest[row], __shfl_xor_sync(0xffffffffu, now_highest[row], 1));
      now_highest[row] = fmaxf(now_highest[row], __shfl_xor_sync(0xffffffffu, now_highest[row], 2));
      const float correction = exp2f(highest[row] - now_highest[row]);
      highest[row] = now_highest[row];
      total[row] *= correction;
#pragma unroll
      for (int j = 0; j < kDims / 8; ++j) out[j][2 * row] *= correction, out[j][2 * row + 1] *= correction;
    }
    uint32_t probability[kKeys / 16][4];
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float p0 = exp2f(score[j][2 * row] - highest[row]), p1 = exp2f(score[j][2 * row + 1] - highest[row]);
        total[row] += p0 + p1;
        probability[j / 2][j % 2 * 2 + row] = PackPair<T>(p0, p1);
      }
    }
    const uint32_t tile = SharedAddress(v_tile);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int j = 0; j < kDims / 16; ++j) {
        uint32_t dims_of_16[4];
        LoadMatricesTransposed(dims_of_16,
                               tile + ChunkOffset<kDims>(step * 16 + lane / 8 % 2 * 8 + lane % 8, j * 2 + lane / 16));
        Mma<T>(out[2 * j], probability[step], dims_of_16[0], dims_of_16[1]);
        Mma<T>(out[2 * j + 1], probability[step], dims_of_16[2], dims_of_16[3]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    total[row] += __shfl_xor_sync(0xffffffffu, total[row], 1);
    total[row] += __shfl_xor_sync(0xffffffffu, total[row], 2);
    const int64_t at = first_query + lane / 4 + row * 8;
    if (at >= a.sequence) continue;
    T* y = a.y + (batch * a.sequence + at) * hidden + head * kDims;
    const float factor = 1.0f / total[row];
#pragma unroll
    for (int j = 0; j < kDims / 8; ++j) {
      const int dim = j * 8 + lane % 4 * 2;
      const float2 v_bias = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(bias + 2 * hidden + dim));
      *reinterpret_cast<uint32_t*>(y + dim) =
          PackPair<T>(fmaf(out[j][2 * row], factor, v_bias.x), fmaf(out[j][2 * row + 1], factor, v_bias.y));
    }
  }
}

template <class T, int kDims>
__global__ void __launch_bounds__(32 * kWarps) AttentionMmaKernel(AttentionArguments<T> a, int query_blocks) {
  const int64_t first_query = static_cast<int64_t>(blockIdx.x % query_blocks) * kQueries;
  const int64_t head = blockIdx.x / query_blocks % a.heads, batch = blockIdx.x / query_blocks / a.heads;
  LaunchDependents();
  WaitForDependencies();
  ComputeTile<T, kDims>(a, batch, head, first_query);
}

// Grid: as many blocks as are resident at a time, or fewer.
template <class T, int kDims>
__global__ void __launch_bounds__(32 * kWarps)
    PackedAttentionMmaKernel(const __grid_constant__ AttentionArguments<T> a) {
  LaunchDependents();
  WaitForDependencies();
  PackedTileCursor<kQueries> tiles(a.packed, static_cast<int>(a.heads), blockIdx.x, gridDim.x);
  for (PackedTile tile = tiles.Next(); tile.length > 0; tile = tiles.Next()) {
    ComputeTile<T, kDims>(OneSequence(a, tile), 0, tile.head, tile.first_query);
    __syncthreads();  // all warps are done with K and V
  }
}

template <int kDims, class T>
cudaError_t LaunchSize(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  config.block = dim3(32 * kWarps);
  config.stream = stream;
  config.device = &device;
  if (a.packed.count > 0) {
    return LaunchResident(config, PackedAttentionMmaKernel<T, kDims>, MaxPackedTiles(a.packed, a.heads, kQueries), 1,
                          a);
  }
  const int64_t query_blocks = CeilDiv(a.sequence, kQueries), blocks = query_blocks * a.heads * a.batch;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  config.grid = dim3(static_cast<unsigned>(blocks));
  return Launch(config, AttentionMmaKernel<T, kDims>, a, static_cast<int>(query_blocks));
}

}  // namespace

template <class T>
cudaError_t AttentionMma(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads * a.head_size == 0) return cudaSuccess;
  switch (a.head_size) {
    case 32:
      return LaunchSize<32>(a, device, stream);
    case 64:
      return LaunchSize<64>(a, device, stream);
    case 128:
      return LaunchSize<128>(a, device, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t AttentionMma(const AttentionArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_HALF_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
