#include <cfloat>

#include "kernels/attention.h"
#include "kernels/attention_variant.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_places.cuh"
#include "kernels/packed_tiles.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kQueriesPerWarp = 4;
constexpr int kQueries = kWarps * kQueriesPerWarp;
constexpr int kKeys = 32;         // one for each lane
constexpr int kDims = 64;         // of Q and K that are in shared memory at a time
constexpr int kMaxOutDims = 256;  // of the result that one block holds in registers
// An odd number of 16-byte units, so that the lanes' rows start in different banks.
constexpr int kPitch = kDims + 4;

template <class T>
__device__ __forceinline__ bool IsKey(const AttentionArguments<T>& a, int64_t batch, int64_t key) {
  if (key >= a.sequence) return false;
  if (a.mask == nullptr) return true;
  const int64_t at = batch * a.sequence + key;
  return a.mask_is_int64 ? static_cast<const int64_t*>(a.mask)[at] != 0 : static_cast<const int32_t*>(a.mask)[at] != 0;
}

// The keys of a query's window, of which the mask may hide some; of a query that sees none, all of them, alike.
struct QueryKeys {
  int64_t begin, end;
  bool alike;
};

template <class T>
__device__ __forceinline__ QueryKeys KeysOf(const AttentionArguments<T>& a, const Places& places, int64_t batch,
                                            int64_t query, int lane) {
  const int64_t left = a.variant.window_left, right = a.variant.window_right;
  if (places.HaveGaps()) {
    const int length = static_cast<int>(a.sequence), place = places.At(static_cast<int>(min(query, a.sequence - 1)));
    return {left < 0 ? 0 : places.FirstFrom(place - WindowSide(left), length),
            right < 0 ? length : places.FirstFrom(place + WindowSide(right) + 1, length), false};
  }
  QueryKeys keys = {left < 0 || query < left ? 0 : query - left,
                    right < 0 || query + right + 1 > a.sequence ? a.sequence : query + right + 1, false};
  if (a.mask == nullptr || query >= a.sequence) return keys;
  bool any = false;
  if (a.variant.hidden_alike && !IsKey(a, batch, query)) keys.end = keys.begin;
  for (int64_t key = keys.begin + lane; key < keys.end && !any; key += 32) any = IsKey(a, batch, key);
  keys.alike = !__any_sync(0xffffffffu, any);
  return keys;
}

template <class T>
__device__ __forceinline__ float DistanceBias(const AttentionVariant<T>& variant, int64_t head, int64_t distance) {
  if (variant.distance_bias == nullptr) return 0.0f;
  const int64_t last = variant.bias_columns - 1, at = distance + variant.bias_left;
  const int64_t column = at < 0 ? 0 : at > last ? last : at, row = variant.bias_heads == 1 ? 0 : head;
  return ToFloat(variant.distance_bias[row * variant.bias_columns + column]);
}

// What vectors by distance add to the product of a query, which has its bias, and a key [head_size] without it.
template <class T>
__device__ float ProductsWithPositions(const AttentionArguments<T>& a, int64_t head, int64_t distance, const T* q,
                                       const T* q_bias, const T* k, const T* k_bias) {
  const int64_t last = a.variant.position_rows - 1, at = distance + a.variant.position_left;
  const int64_t row = at < 0 ? 0 : at > last ? last : at;
  const T* for_q = a.variant.positions + (head * a.variant.position_rows + row) * a.head_size;
  const T* for_k = for_q + a.heads * a.variant.position_rows * a.head_size;
  float sum = 0.0f;
  for (int64_t i = 0; i < a.head_size; ++i) {
    const float query = ToFloat(q[i]) + (q_bias == nullptr ? 0.0f : ToFloat(q_bias[i]));
    const float key = ToFloat(k[i]) + (k_bias == nullptr ? 0.0f : ToFloat(k_bias[i]));
    sum = fmaf(query, ToFloat(for_q[i]), fmaf(key, ToFloat(for_k[i]), sum));
  }
  return sum;
}

// A block computes kQueries queries of one head, and of their results kMaxOutDims dimensions. Scores give a lane to
// each key, the sum over V to each dimension.
template <class T, int kOutPerLane, bool kVariant>
__device__ __forceinline__ void ComputeTile(const AttentionArguments<T>& a, int64_t batch, int64_t head,
                                            int64_t first_query, int first_out) {
  __shared__ __align__(16) float k_tile[kKeys][kPitch];
  __shared__ __align__(16) float q_tile[kQueries][kDims];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t hidden = a.heads * a.head_size;
  const int head_size = static_cast<int>(a.head_size);
  const int64_t kv_heads = kVariant && a.variant.kv_heads != 0 ? a.variant.kv_heads : a.heads;
  const int64_t width = kVariant ? (a.heads + 2 * kv_heads) * head_size : 3 * hidden;
  const int64_t at_k = hidden + (kVariant ? head / (a.heads / kv_heads) * head_size : head * head_size);
  const int64_t at_v = at_k + kv_heads * head_size;
  const T* const row = a.qkv + batch * a.sequence * width;
  const T* q = row + head * head_size;
  const T* k = row + at_k;
  const T* v = row + at_v;
  const T* q_bias = a.bias == nullptr ? nullptr : a.bias + head * head_size;
  constexpr float kLog2e = 1.44269504088896341f;  // exp2 is the cheap one
  bool all_hidden = false;
  int64_t begin = 0, end = a.sequence;
  QueryKeys keys_of[kVariant ? kQueriesPerWarp : 1] = {};
  Places places;
  if constexpr (kVariant) {
    places = Places(a.packed, 0, static_cast<int>(a.sequence));
    bool alike = false;
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      keys_of[i] = KeysOf(a, places, batch, first_query + warp * kQueriesPerWarp + i, lane);
      alike |= keys_of[i].alike;
    }
    if (!__syncthreads_or(alike)) {
      const int64_t left = a.variant.window_left, right = a.variant.window_right;
      if (left >= 0 && first_query > left) begin = (first_query - left) / kKeys * kKeys;
      if (right >= 0 && first_query + kQueries + right < end) end = first_query + kQueries + right;
    }
  } else {
    bool any = false;
    for (int64_t key = threadIdx.x; key < a.sequence && !any; key += blockDim.x) any = IsKey(a, batch, key);
    all_hidden = !__syncthreads_or(any);
  }
  const float scale = all_hidden ? 0.0f : a.scale * kLog2e;
  float highest[kQueriesPerWarp], total[kQueriesPerWarp], out[kQueriesPerWarp][kOutPerLane] = {};
  float correction[kQueriesPerWarp];
#pragma unroll
  for (int i = 0; i < kQueriesPerWarp; ++i) highest[i] = -FLT_MAX, total[i] = 0.0f;
  for (int64_t first_key = begin; first_key < end; first_key += kKeys) {
    float score[kQueriesPerWarp] = {};
    for (int first_dim = 0; first_dim < head_size; first_dim += kDims) {
      __syncthreads();
      for (int i = threadIdx.x; i < (kKeys + kQueries) * kDims; i += blockDim.x) {
        const int row = i / kDims, column = i % kDims, dim = first_dim + column;
        const bool is_key = row < kKeys;
        const int64_t token = is_key ? first_key + row : first_query + row - kKeys;
        const bool inside = token < a.sequence && dim < head_size;
        float value = inside ? ToFloat((is_key ? k : q)[token * width + dim]) : 0.0f;
        if (is_key) {
          k_tile[row][column] = value;
        } else {
          const bool biased = inside && q_bias != nullptr;
          q_tile[row - kKeys][column] = biased ? value + ToFloat(q_bias[dim]) : value;
        }
      }
      __syncthreads();
#pragma unroll 4
      for (int dim = 0; dim < kDims; dim += 4) {
        const float4 key = *reinterpret_cast<const float4*>(&k_tile[lane][dim]);
#pragma unroll
        for (int i = 0; i < kQueriesPerWarp; ++i) {
          const float4 query = *reinterpret_cast<const float4*>(&q_tile[warp * kQueriesPerWarp + i][dim]);
          score[i] = fmaf(query.x, key.x, score[i]);
          score[i] = fmaf(query.y, key.y, score[i]);
          score[i] = fmaf(query.z, key.z, score[i]);
          score[i] = fmaf(query.w, key.w, score[i]);
        }
      }
    }
    const int64_t key = first_key + lane;
    const bool shown = all_hidden ? key < a.sequence : IsKey(a, batch, key);
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      bool seen = shown;
      float scaled = score[i] * scale;
      if constexpr (kVariant) {
        const QueryKeys& own = keys_of[i];
        seen = own.alike ? key < a.sequence : shown && key >= own.begin && key < own.end;
        const int64_t query = first_query + warp * kQueriesPerWarp + i;
        int64_t distance = key - query;
        if (places.HaveGaps()) {
          const auto place = [&](int64_t token) { return places.At(static_cast<int>(min(token, a.sequence - 1))); };
          distance = place(key) - place(query);
        }
        if (a.variant.positions != nullptr && seen && !own.alike && query < a.sequence) {
          const T* k_bias = a.bias == nullptr ? nullptr : a.bias + at_k;
          scaled +=
              ProductsWithPositions(a, head, distance, q + query * width, q_bias, k + key * width, k_bias) * scale;
        }
        scaled = own.alike ? 0.0f : scaled + DistanceBias(a.variant, head, distance) * kLog2e;
      }
      if (!seen) scaled = -FLT_MAX;
      const float now_highest = fmaxf(highest[i], WarpMax(scaled));
      correction[i] = exp2f(highest[i] - now_highest);
      score[i] = seen ? exp2f(scaled - now_highest) : 0.0f;
      total[i] = total[i] * correction[i] + WarpSum(score[i]);
      highest[i] = now_highest;
    }
    const int keys = end - first_key < kKeys ? static_cast<int>(end - first_key) : kKeys;
    // Of this tile alone, as `total` takes it: else many small weights are lost beside a large one.
    float tile_out[kQueriesPerWarp][kOutPerLane] = {};
#pragma unroll 4
    for (int other = 0; other < keys; ++other) {
      float probability[kQueriesPerWarp];
#pragma unroll
      for (int i = 0; i < kQueriesPerWarp; ++i) probability[i] = __shfl_sync(0xffffffffu, score[i], other);
#pragma unroll
      for (int j = 0; j < kOutPerLane; ++j) {
        const int dim = first_out + j * 32 + lane;
        if (dim >= head_size) continue;
        const float value = ToFloat(v[(first_key + other) * width + dim]);
#pragma unroll
        for (int i = 0; i < kQueriesPerWarp; ++i) tile_out[i][j] = fmaf(probability[i], value, tile_out[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
#pragma unroll
      for (int j = 0; j < kOutPerLane; ++j) out[i][j] = fmaf(out[i][j], correction[i], tile_out[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kQueriesPerWarp; ++i) {
    const int64_t query = first_query + warp * kQueriesPerWarp + i;
    if (query >= a.sequence) break;
#pragma unroll
    for (int j = 0; j < kOutPerLane; ++j) {
      const int dim = first_out + j * 32 + lane;
      if (dim >= head_size) continue;
      const float v_bias = a.bias == nullptr ? 0.0f : ToFloat(a.bias[at_v + dim]);
      a.y[(batch * a.sequence + query) * hidden + head * head_size + dim] = FromFloat<T>(out[i][j] / total[i] + v_bias);
    }
  }
}

// Grid: query blocks, times blocks of the result's dimensions, times heads, times batch, all of them along x: y and z
// end at 65,535.
template <class T, int kOutPerLane, bool kVariant>
__global__ void __launch_bounds__(32 * kWarps)
    AttentionSimtKernel(AttentionArguments<T> a, int query_blocks, int out_blocks) {
  const unsigned blocks_of_head = query_blocks * out_blocks, in_head = blockIdx.x % blocks_of_head;
  const int64_t head = blockIdx.x / blocks_of_head % a.heads, batch = blockIdx.x / blocks_of_head / a.heads;
  const int64_t first_query = static_cast<int64_t>(in_head % query_blocks) * kQueries;
  const int first_out = static_cast<int>(in_head / query_blocks) * kMaxOutDims;
  LaunchDependents();
  WaitForDependencies();
  ComputeTile<T, kOutPerLane, kVariant>(a, batch, head, first_query, first_out);
}

// Grid: as many blocks as are resident at a time, or fewer.
template <class T, int kOutPerLane, bool kVariant>
__global__ void __launch_bounds__(32 * kWarps)
    PackedAttentionSimtKernel(const __grid_constant__ AttentionArguments<T> a) {
  LaunchDependents();
  WaitForDependencies();
  PackedTileCursor<kQueries> tiles(a.packed, static_cast<int>(a.heads), blockIdx.x, gridDim.x);
  for (PackedTile tile = tiles.Next(); tile.length > 0; tile = tiles.Next()) {
    for (int first_out = 0; first_out < a.head_size; first_out += kMaxOutDims) {
      __syncthreads();  // all warps are done with the tile before
      ComputeTile<T, kOutPerLane, kVariant>(OneSequence(a, tile), 0, tile.head, tile.first_query, first_out);
    }
  }
}

// Calls launch(kOutPerLane, kVariant) as integral_constants. 16-bit types come here where the tensor cores' kernels
// end: unusual head sizes, which are not worth a kernel each.
template <class T, class Launch>
cudaError_t WithKernel(const AttentionArguments<T>& a, Launch&& launch) {
  const auto with_outputs = [&](auto variant) {
    if constexpr (sizeof(T) == 4) {
      if (a.head_size <= 32) return launch(std::integral_constant<int, 1>(), variant);
      if (a.head_size <= 64) return launch(std::integral_constant<int, 2>(), variant);
    }
    return launch(std::integral_constant<int, kMaxOutDims / 32>(), variant);
  };
  return a.variant.IsPlain() ? with_outputs(std::false_type()) : with_outputs(std::true_type());
}

}  // namespace

template <class T>
cudaError_t AttentionSimt(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads * a.head_size == 0) return cudaSuccess;
  LaunchConfig config;
  config.block = dim3(32 * kWarps);
  config.stream = stream;
  config.device = &device;
  if (!AttentionSimtSupports(a)) return cudaErrorInvalidConfiguration;
  if (a.packed.count > 0) {
    return WithKernel(a, [&](auto outputs, auto variant) {
      const auto kernel = PackedAttentionSimtKernel<T, decltype(outputs)::value, decltype(variant)::value>;
      return LaunchResident(config, kernel, MaxPackedTiles(a.packed, a.heads, kQueries), 1, a);
    });
  }
  const int64_t query_blocks = CeilDiv(a.sequence, kQueries), out_blocks = CeilDiv(a.head_size, kMaxOutDims);
  const int64_t blocks = query_blocks * out_blocks * a.heads * a.batch;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  config.grid = dim3(static_cast<unsigned>(blocks));
  return WithKernel(a, [&](auto outputs, auto variant) {
    const auto kernel = AttentionSimtKernel<T, decltype(outputs)::value, decltype(variant)::value>;
    return Launch(config, kernel, a, static_cast<int>(query_blocks), static_cast<int>(out_blocks));
  });
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t AttentionSimt(const AttentionArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
