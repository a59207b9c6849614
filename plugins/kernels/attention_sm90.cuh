// Attention on Hopper, without a score matrix in memory: one thread brings blocks of keys and values in (bulk tensor
// copies), each of one or two warpgroups keeps 64 queries and their running softmax in registers (wgmma).
//
// Two blocks fit on a multiprocessor for head sizes to 64: while one warpgroup computes exponentials, others multiply.
// A warp of its own for the loading would leave 96 registers a thread in place of 128, and the products would
// serialise.
#ifndef BERTFUSE_KERNELS_ATTENTION_SM90_CUH_
#define BERTFUSE_KERNELS_ATTENTION_SM90_CUH_

#include <cfloat>

#include "kernels/attention.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/sm90.cuh"
#include "kernels/tensor_map.h"

namespace bertfuse::kernels {

struct AttentionSm90Parameters {
  CUtensorMap qkv_map, y_map;  // [batch, sequence, columns]
  const void* qkv;
  const void* bias;
  const void* mask;
  bool mask_is_int64;
  int sequence, heads;
  float scale_log2;  // scale * log2(e), above 0: a hidden score is -inf, and -inf * 0 would be NaN
};

template <class T_, int kHeadSize_, int kWarpgroups_>
struct AttentionSm90Shape {
  using T = T_;
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kQueries = 64 * kWarpgroups;
  static constexpr int kKeys = 64;
  static constexpr int kStages = kHeadSize == 128 ? 4 : 5;
  static constexpr int kThreads = 128 * kWarpgroups;
  static constexpr int kBlocksPerMultiprocessor = kHeadSize == 128 ? 1 : 2;
  // A tile's row in shared memory: head size 128 takes two tiles of 64 side by side.
  static constexpr int kTileColumns = kHeadSize < 64 ? kHeadSize : 64;
  static constexpr int kPitch = kTileColumns * 2;
  static constexpr int kTiles = kHeadSize / kTileColumns;
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kBlockBytes = kTiles * kTileBytes;  // of K or of V
  static constexpr int kOutOffset = 2 * kStages * kBlockBytes;
  static constexpr int kBarrierOffset = kOutOffset + kWarpgroups * kBlockBytes;
  static constexpr int kMaskOffset = kBarrierOffset + 4 * kStages * 8;
  static size_t SharedBytes(int64_t sequence) { return kMaskOffset + (sequence + 63) / 64 * 8 + 16 + 1024; }
};

// Descriptor of a tile with rows of kPitch bytes: K as it lies (rows are the product's columns), or V transposed.
// `tile_bytes` is the distance to the next kPitch bytes of every row; only the transposed form crosses it.
template <int kPitch>
__device__ __forceinline__ uint64_t AttentionDescriptor(const char* tile, int tile_bytes) {
  constexpr uint64_t kLayout = kPitch == 128 ? 1 : 2;
  return static_cast<uint64_t>(SharedAddress(tile) >> 4) | static_cast<uint64_t>(tile_bytes >> 4) << 16 |
         static_cast<uint64_t>(8 * kPitch >> 4) << 32 | kLayout << 62;
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void LoadTile3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                                           uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(barrier))
      : "memory");
}

__device__ __forceinline__ void StoreTile3d(const CUtensorMap* map, const void* shared, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(SharedAddress(shared))
               : "memory");
}

// Grid: (query blocks, heads, batch).
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerMultiprocessor)
    AttentionSm90Kernel(const __grid_constant__ AttentionSm90Parameters p) {
  using T = typename Shape::T;
  constexpr int kKeys = Shape::kKeys, kHeadSize = Shape::kHeadSize, kStages = Shape::kStages;
  extern __shared__ char unaligned[];
  char* shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + Shape::kBarrierOffset);
  uint64_t *k_full = barriers, *v_full = k_full + kStages, *k_empty = v_full + kStages, *v_empty = k_empty + kStages;
  uint32_t* key_bits = reinterpret_cast<uint32_t*>(shared + Shape::kMaskOffset);
  const auto k_block = [&](int stage) { return shared + stage * Shape::kBlockBytes; };
  const auto v_block = [&](int stage) { return shared + (kStages + stage) * Shape::kBlockBytes; };

  const int head = blockIdx.y, batch = blockIdx.z;
  const int hidden = p.heads * kHeadSize;
  const int blocks = (p.sequence + kKeys - 1) / kKeys, words = 2 * blocks;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(k_full + stage, 1);
      InitBarrier(v_full + stage, 1);
      InitBarrier(k_empty + stage, Shape::kWarpgroups);
      InitBarrier(v_empty + stage, Shape::kWarpgroups);
    }
    FenceBarrierInit();
  }
  LaunchNext();
  __syncthreads();
  WaitForPrevious();

  const auto load = [&](int block) {
    const int stage = block % kStages;
    const uint32_t parity = block / kStages & 1;
    if (block >= kStages) WaitBarrier(k_empty + stage, parity ^ 1);
    ArriveExpecting(k_full + stage, Shape::kBlockBytes);
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      LoadTile3d(k_block(stage) + tile * Shape::kTileBytes, &p.qkv_map, hidden + head * kHeadSize + tile * 64,
                 block * kKeys, batch, k_full + stage);
    }
    if (block >= kStages) WaitBarrier(v_empty + stage, parity ^ 1);
    ArriveExpecting(v_full + stage, Shape::kBlockBytes);
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      LoadTile3d(v_block(stage) + tile * Shape::kTileBytes, &p.qkv_map, 2 * hidden + head * kHeadSize + tile * 64,
                 block * kKeys, batch, v_full + stage);
    }
  };
  const bool is_loader = threadIdx.x == 0;
  const int ahead = min(blocks, kStages);
  // The first blocks are fetched before the mask is known; at worst they are not needed.
  if (is_loader) {
    for (int block = 0; block < ahead; ++block) load(block);
  }
  __syncwarp();

  // Queries with their bias, as the tensor cores take them: q[4 i + e] is the pair at row lane / 4 + 8 (e % 2), column
  // 16 i + 8 (e / 2) + 2 (lane % 4). Rows past the sequence repeat the last one and are not stored.
  const int group = warp / 4;
  const int first_query = blockIdx.x * Shape::kQueries + group * 64;
  uint32_t q[kHeadSize / 16][4];
  {
    const T* qkv =
        static_cast<const T*>(p.qkv) + static_cast<int64_t>(batch) * p.sequence * 3 * hidden + head * kHeadSize;
    const T* bias = static_cast<const T*>(p.bias) + head * kHeadSize;
    const int row = first_query + warp % 4 * 16 + lane / 4;
    const T* rows[2] = {qkv + static_cast<int64_t>(min(row, p.sequence - 1)) * 3 * hidden,
                        qkv + static_cast<int64_t>(min(row + 8, p.sequence - 1)) * 3 * hidden};
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 16 * i + 8 * (e / 2) + 2 * (lane % 4);
        const float2 value = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(rows[e % 2] + column));
        const float2 add = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(bias + column));
        q[i][e] = PackPair<T>(value.x + add.x, value.y + add.y);
      }
    }
  }

  // One bit for each key that is seen; blocks past the last such key are left out.
  int last_word = 0;
  for (int word = warp; word < words; word += Shape::kThreads / 32) {
    const int key = word * 32 + lane;
    bool seen = key < p.sequence;
    if (seen && p.mask != nullptr) {
      const int64_t at = static_cast<int64_t>(batch) * p.sequence + key;
      seen =
          p.mask_is_int64 ? static_cast<const int64_t*>(p.mask)[at] != 0 : static_cast<const int32_t*>(p.mask)[at] != 0;
    }
    const uint32_t bits = __ballot_sync(0xffffffffu, seen);
    if (lane == 0) key_bits[word] = bits;
    if (bits != 0) last_word = word + 1;
  }
  int* last_seen = reinterpret_cast<int*>(key_bits + words);
  if (threadIdx.x == 0) *last_seen = 0;
  __syncthreads();
  if (lane == 0 && last_word > 0) atomicMax(last_seen, last_word);
  __syncthreads();
  const bool all_hidden = *last_seen == 0;
  const int used = all_hidden ? blocks : (*last_seen + 1) / 2;

  const float scale = p.scale_log2;
  const bool leader = threadIdx.x % 128 == 0;
  float score[kKeys / 2], out[kHeadSize / 2];
  uint32_t probability[kKeys / 16][4];
  float highest[2] = {-FLT_MAX, -FLT_MAX}, total[2] = {};
  const auto multiply_keys = [&](int block) {
    const int stage = block % kStages;
    WaitBarrier(k_full + stage, block / kStages & 1);
    BeginWgmma();
#pragma unroll
    for (int i = 0; i < kHeadSize / 16; ++i) {
      const char* tile = k_block(stage) + i / (Shape::kTileColumns / 16) * Shape::kTileBytes;
      const uint64_t keys = AttentionDescriptor<Shape::kPitch>(tile, 0) + i % (Shape::kTileColumns / 16) * 2;
      WgmmaRs<typename WgmmaOp<T, kKeys>::RS>(score, q[i], keys, i > 0);
    }
    CommitWgmma();
  };
  multiply_keys(0);
  for (int block = 0; block < used; ++block) {
    const int stage = block % kStages;
    WaitWgmma<0>();
    FenceRegisters(score);
    FenceRegisters(out);
    if (leader) {
      ArriveAtOwn(k_empty + stage);
      if (block > 0) ArriveAtOwn(v_empty + (block - 1) % kStages);
    }
    // A stage is refilled an iteration after this warpgroup let go of it: the other one then has too, as a rule.
    if (is_loader && block >= 2 && block - 2 + kStages < used) load(block - 2 + kStages);
    __syncwarp();
    if (!all_hidden) {
      const uint32_t low = key_bits[2 * block], high = key_bits[2 * block + 1];
      if ((low & high) != 0xffffffffu) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          const int key = i / 4 * 8 + lane % 4 * 2 + i % 2;
          const uint32_t word = i / 4 * 8 < 32 ? low : high;
          if ((word >> (key % 32) & 1) == 0) score[i] = -INFINITY;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        score[i] = block * kKeys + i / 4 * 8 + lane % 4 * 2 + i % 2 < p.sequence ? 0.0f : -INFINITY;
      }
    }
    float correction[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float most = highest[row];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) most = fmaxf(most, fmaxf(score[4 * j + 2 * row], score[4 * j + 2 * row + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      // While every key so far is hidden, `highest` is -FLT_MAX: its product must stay finite.
      const float shift = most == -FLT_MAX ? 0.0f : most * scale;
      correction[row] = highest[row] == -FLT_MAX ? 0.0f : Exp2(highest[row] * scale - shift);
      highest[row] = most;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = score[4 * j + 2 * row + e];
          value = Exp2(fmaf(value, scale, -shift));
          sum += value;
        }
      }
      total[row] = total[row] * correction[row] + sum;
    }
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) probability[i][e] = PackPair<T>(score[8 * i + 2 * e], score[8 * i + 2 * e + 1]);
    }
    if (block > 0) {
#pragma unroll
      for (int i = 0; i < kHeadSize / 2; ++i) out[i] *= correction[i / 2 % 2];
    }
    WaitBarrier(v_full + stage, block / kStages & 1);
    FenceRegisters(out);
    BeginWgmma();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const uint64_t values =
          AttentionDescriptor<Shape::kPitch>(v_block(stage) + i * 16 * Shape::kPitch, Shape::kTileBytes);
      WgmmaRs<typename WgmmaOp<T, kHeadSize>::RSTransposed>(out, probability[i], values, block > 0 || i > 0);
    }
    CommitWgmma();
    if (block + 1 < used) multiply_keys(block + 1);
  }
  WaitWgmma<0>();
  FenceRegisters(out);

  char* staging = shared + Shape::kOutOffset + group * Shape::kBlockBytes;
  const T* v_bias = static_cast<const T*>(p.bias) + 2 * hidden + head * kHeadSize;
  const int row = warp % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
    total[i] = 1.0f / total[i];
  }
#pragma unroll
  for (int j = 0; j < kHeadSize / 8; ++j) {
    const int column = 8 * j + lane % 4 * 2;
    const float2 add = UnpackPair<T>(*reinterpret_cast<const uint32_t*>(v_bias + column));
    char* tile = staging + column / 64 * Shape::kTileBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint32_t*>(tile + Swizzled<Shape::kPitch>(row + 8 * i, column % 64 * 2)) =
          PackPair<T>(out[4 * j + 2 * i] * total[i] + add.x, out[4 * j + 2 * i + 1] * total[i] + add.y);
    }
  }
  FenceSharedForAsync();
  SyncWarpgroup(1 + group);
  if (leader && first_query < p.sequence) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      StoreTile3d(&p.y_map, staging + tile * Shape::kTileBytes, head * kHeadSize + tile * 64, first_query, batch);
    }
    CommitStores();
    WaitStoresRead<0>();
  }
  // A copy must not land after the block has ended.
  for (int block = used; block < ahead; ++block) {
    WaitBarrier(k_full + block, 0);
    WaitBarrier(v_full + block, 0);
  }
}

template <class Shape>
cudaError_t LaunchAttentionSm90(const AttentionArguments<typename Shape::T>& a, const Device& device,
                                cudaStream_t stream) {
  constexpr bool kBfloat16 = std::is_same_v<typename Shape::T, __nv_bfloat16>;
  AttentionSm90Parameters p;
  p.qkv = a.qkv;
  p.bias = a.bias;
  p.mask = a.mask;
  p.mask_is_int64 = a.mask_is_int64;
  p.sequence = static_cast<int>(a.sequence);
  p.heads = static_cast<int>(a.heads);
  p.scale_log2 = fmaxf(a.scale * 1.44269504088896341f, FLT_MIN);
  const int64_t hidden = a.heads * a.head_size;
  MatrixView view = {a.qkv, a.sequence, 3 * hidden, 3 * hidden, 64, Shape::kTileColumns, a.batch};
  cudaError_t error = MakeTensorMap(view, kBfloat16, &p.qkv_map);
  if (error != cudaSuccess) return error;
  view = {a.y, a.sequence, hidden, hidden, 64, Shape::kTileColumns, a.batch};
  error = MakeTensorMap(view, kBfloat16, &p.y_map);
  if (error != cudaSuccess) return error;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(CeilDiv(a.sequence, Shape::kQueries)), static_cast<unsigned>(a.heads),
                     static_cast<unsigned>(a.batch));
  config.block = dim3(Shape::kThreads);
  config.shared_bytes = Shape::SharedBytes(a.sequence);
  config.stream = stream;
  config.device = &device;
  return Launch(config, AttentionSm90Kernel<Shape>, p);
}

// One warpgroup to a block where two would leave multiprocessors idle.
template <class T, int kHeadSize>
cudaError_t LaunchAttentionSm90(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  const bool few = a.batch * a.heads * CeilDiv(a.sequence, 128) < device.multiprocessors;
  return few ? LaunchAttentionSm90<AttentionSm90Shape<T, kHeadSize, 1>>(a, device, stream)
             : LaunchAttentionSm90<AttentionSm90Shape<T, kHeadSize, 2>>(a, device, stream);
}

template <class T>
cudaError_t DispatchAttentionSm90(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads == 0) return cudaSuccess;
  switch (a.head_size) {
    case 32:
      return LaunchAttentionSm90<T, 32>(a, device, stream);
    case 64:
      return LaunchAttentionSm90<T, 64>(a, device, stream);
    case 128:
      return LaunchAttentionSm90<T, 128>(a, device, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_SM90_CUH_
