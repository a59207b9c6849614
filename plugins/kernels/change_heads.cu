#include "kernels/change_heads.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_places.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;

// How many rows are real: of packed ones the grid is for as many as the host expects, and warps loop if there are more.
// Read behind WaitForDependencies() by ordinary loads, as all that is read of packed sequences here, so that a
// multiprocessor asks the L2 cache once for the few lines that all of its warps want. With a warp for each head of
// 16,384 rows, of which 2,844 were real, and loads that pass by the L1 cache, this kernel took about 0.5 ms on an H100,
// by what whole models with RoPE took more than was reckoned, all alike.
template <class T>
__device__ __forceinline__ int64_t RowsOf(const ChangeHeadsArguments<T>& a) {
  if (a.row_count != nullptr) return RealRows(*a.row_count, a.rows);
  return a.packed.count == 0 ? a.rows : RealRows(a.packed.cu_seqlens[a.packed.count], a.rows);
}

// Where in its sequence a packed row is; -1 where it belongs to none. Called by a whole warp, which looks at 32 offsets
// at a time for the last one that is not behind the row.
__device__ __forceinline__ int64_t PlaceOf(int64_t row, const PackedSequences& packed) {
  const int lane = threadIdx.x % 32;
  int begin = 0, end = packed.count + 1;
  while (true) {
    const int step = (end - begin + 31) / 32, at = begin + lane * step;
    const int offset = at < end ? packed.cu_seqlens[at] : 0;
    const unsigned before = __ballot_sync(0xffffffffu, at < end && offset <= row);
    if (before == 0) return -1;
    const int last = 31 - __clz(before);
    begin += last * step;
    if (step == 1) return begin == packed.count ? -1 : row - __shfl_sync(0xffffffffu, offset, last);
    end = min(end, begin + step);
  }
}

// The row of the tables of angles that a row turns by; -1 where it belongs to no sequence. Called by a whole warp.
template <class T>
__device__ __forceinline__ int64_t TablePlaceOf(int64_t row, const ChangeHeadsArguments<T>& a) {
  if (a.row_places != nullptr) {  // there are fewer than 2^31 places
    return a.places == 0 ? 0 : static_cast<unsigned>(max(0, a.row_places[row])) % static_cast<unsigned>(a.places);
  }
  if (a.packed.count == 0) return row % a.sequence;
  int64_t place = PlaceOf(row, a.packed);
  if (place < 0) return place;
  if (a.packed.token_index != nullptr && a.places > 0) {
    const int first_row = static_cast<int>(max(row - place, int64_t{0}));  // offsets may be negative
    place = Places::Between(a.packed, first_row, static_cast<int>(row));
  }
  return max(int64_t{0}, min(place, a.places - 1));
}

// Any size. Columns are read once for the mean square and once more for the result; by then they are in the first cache
// level. Called by a whole warp.
template <class T>
__device__ __forceinline__ void ChangeHead(const ChangeHeadsArguments<T>& a, int64_t item) {
  const int lane = threadIdx.x % 32, size = static_cast<int>(a.head_size);
  const int rotated = a.places == 0 ? 0 : static_cast<int>(a.rotated);
  const int64_t all_heads = a.heads + 2 * a.kv_heads, head = item % all_heads;
  const int64_t place = TablePlaceOf(item / all_heads, a);
  if (place < 0) return;
  const T* const x = a.qkv + item * size;
  const T* const bias = a.bias == nullptr ? nullptr : a.bias + head * size;
  T* const out = a.out + item * size;
  const auto at = [&](int column) { return ToFloat(x[column]) + (bias == nullptr ? 0.0f : ToFloat(bias[column])); };
  if (head >= a.heads + a.kv_heads) {
    if (a.keeps_values) return;
    for (int column = lane; column < size; column += 32) out[column] = FromFloat<T>(at(column));
    return;
  }
  const T* const gamma = head < a.heads ? a.q_gamma : a.k_gamma;
  float inverse = 1.0f;
  if (gamma != nullptr) {
    float squares = 0.0f;
    for (int column = lane; column < size; column += 32) squares = fmaf(at(column), at(column), squares);
    inverse = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(size) + a.epsilon);
  }
  const auto normal = [&](int column) {
    return gamma == nullptr ? at(column) : at(column) * inverse * (ToFloat(gamma[column]) + a.gamma_offset);
  };
  const int step = a.neighbours ? 2 : 1, apart = a.neighbours ? 1 : rotated;
  for (int pair = lane; pair < rotated; pair += 32) {
    const float cos = ToFloat(a.cos[place * rotated + pair]), sin = ToFloat(a.sin[place * rotated + pair]);
    const int first = pair * step, second = first + apart;
    const float u = normal(first), v = normal(second);
    out[first] = FromFloat<T>(u * cos - v * sin);
    out[second] = FromFloat<T>(v * cos + u * sin);
  }
  for (int column = 2 * rotated + lane; column < size; column += 32) out[column] = FromFloat<T>(normal(column));
}

// A warp takes one head of one row.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) ChangeHeadsKernel(const __grid_constant__ ChangeHeadsArguments<T> a) {
  LaunchDependents();
  WaitForDependencies();
  const int64_t items = RowsOf(a) * (a.heads + 2 * a.kv_heads);
#pragma unroll 1
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    ChangeHead(a, item);
  }
}

template <class T, int kVector>
__device__ __forceinline__ Pack<T, kVector> LoadPack(const T* x) {
  return *reinterpret_cast<const Pack<T, kVector>*>(x);
}

template <class T, int kVector>
__device__ __forceinline__ void Unpack(float (&value)[kVector], const Pack<T, kVector>& pack) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] = ToFloat(pack.value[i]);
}

template <class T, int kVector>
__device__ __forceinline__ void AddColumns(float (&value)[kVector], const T* bias) {
  const auto added = LoadPack<T, kVector>(bias);
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] += ToFloat(added.value[i]);
}

template <class T, int kVector>
__device__ __forceinline__ void ScaleColumns(float (&value)[kVector], float by, Pack<T, kVector> gamma,
                                             float gamma_offset) {
  KeepPacked(gamma);  // else it is unpacked before the loop over heads
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] *= by * (ToFloat(gamma.value[i]) + gamma_offset);
}

template <class T, int kVector>
__device__ __forceinline__ void StoreColumns(T* out, const float (&value)[kVector]) {
  Pack<T, kVector> pack;
#pragma unroll
  for (int i = 0; i < kVector; ++i) pack.value[i] = FromFloat<T>(value[i]);
  *reinterpret_cast<Pack<T, kVector>*>(out) = pack;
}

template <class T>
constexpr int kVectorOf = 16 / static_cast<int>(sizeof(T));

// Lanes that share a head, a power of two: each holds 16 bytes of columns, or 16 and the 16 that they are turned with.
template <class T>
int LanesOf(const ChangeHeadsArguments<T>& a) {
  const int64_t rotated = a.places == 0 ? 0 : a.rotated;
  const int64_t held = a.head_size / kVectorOf<T> - (a.neighbours ? 0 : rotated / kVectorOf<T>);
  int lanes = 1;
  while (lanes < held) lanes *= 2;
  return lanes;
}

// A warp's part of a row: as many heads at a time as fit into its lanes; gridDim.y warps share a row's heads. What a
// lane turns its columns by, and scales them with, is the same in every head, and loaded once; a head is loaded while
// the one before it is computed.
template <class T>
__device__ __forceinline__ void ChangeHeadsOfRow(const ChangeHeadsArguments<T>& a, int lanes, int64_t row) {
  constexpr int kVector = kVectorOf<T>;
  using Columns = Pack<T, kVector>;
  const int lane = threadIdx.x % 32, size = static_cast<int>(a.head_size);
  const int rotated = a.places == 0 ? 0 : static_cast<int>(a.rotated);
  const int all_heads = static_cast<int>(a.heads + 2 * a.kv_heads), at_once = 32 / lanes;
  const int changed = all_heads - (a.keeps_values ? static_cast<int>(a.kv_heads) : 0);
  const int64_t place = TablePlaceOf(row, a);
  if (place < 0) return;
  const int pairs = a.neighbours ? 0 : rotated / kVector;  // lanes that hold two packs, `rotated` columns apart
  const int item = lane % lanes, first = (item < pairs ? item : item + pairs) * kVector;
  const bool inside = first < size, turns_two = item < pairs, turns_one = a.neighbours && first < 2 * rotated;
  const T* const row_columns = a.qkv + row * all_heads * size + first;
  const auto exists = [&](int head) { return inside && head < changed; };
  Columns next_u, next_v;
  const auto load = [&](int head) {
    next_u = LoadIf<kVector>(exists(head), row_columns + head * size);
    next_v = LoadIf<kVector>(exists(head) && turns_two, row_columns + head * size + rotated);
  };
  const int step = static_cast<int>(gridDim.y) * at_once;
  int head = static_cast<int>(blockIdx.y) * at_once + lane / lanes;
  load(head);
  float cos[kVector], sin[kVector];
  if (turns_two) {
    Unpack(cos, LoadPack<T, kVector>(a.cos + place * rotated + first));
    Unpack(sin, LoadPack<T, kVector>(a.sin + place * rotated + first));
  } else if (turns_one) {
    const auto turn = LoadPack<T, kVector / 2>(a.cos + place * rotated + first / 2);
#pragma unroll
    for (int i = 0; i < kVector; ++i) cos[i] = ToFloat(turn.value[i / 2]);
    const auto other = LoadPack<T, kVector / 2>(a.sin + place * rotated + first / 2);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sin[i] = ToFloat(other.value[i / 2]);
  }
  const T* const gammas[2] = {a.q_gamma, a.k_gamma};
  Columns gamma_u[2], gamma_v[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    gamma_u[i] = LoadIf<kVector>(gammas[i] != nullptr && inside, gammas[i] + first);
    gamma_v[i] = LoadIf<kVector>(gammas[i] != nullptr && turns_two, gammas[i] + first + rotated);
  }
#pragma unroll 1
  for (int base = static_cast<int>(blockIdx.y) * at_once; base < changed; base += step, head += step) {
    float u[kVector] = {}, v[kVector] = {};
    const bool is_key = head >= a.heads, is_value = head >= a.heads + a.kv_heads, is_there = exists(head);
    if (is_there) Unpack(u, next_u);
    if (is_there && turns_two) Unpack(v, next_v);
    load(head + step);
    if (is_there && a.bias != nullptr) {
      const T* const bias = a.bias + static_cast<int64_t>(head) * size + first;
      AddColumns(u, bias);
      if (turns_two) AddColumns(v, bias + rotated);
    }
    if (a.q_gamma != nullptr || a.k_gamma != nullptr) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kVector; ++i) squares = fmaf(u[i], u[i], fmaf(v[i], v[i], squares));
      for (int apart = lanes / 2; apart > 0; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
      if (!is_value && (is_key ? a.k_gamma : a.q_gamma) != nullptr) {
        const float inverse = 1.0f / sqrtf(squares / static_cast<float>(size) + a.epsilon);
        if (is_key) {
          ScaleColumns(u, inverse, gamma_u[1], a.gamma_offset), ScaleColumns(v, inverse, gamma_v[1], a.gamma_offset);
        } else {
          ScaleColumns(u, inverse, gamma_u[0], a.gamma_offset), ScaleColumns(v, inverse, gamma_v[0], a.gamma_offset);
        }
      }
    }
    if (!is_there) continue;
    if (!is_value && turns_two) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x = u[i], y = v[i];
        u[i] = x * cos[i] - y * sin[i], v[i] = y * cos[i] + x * sin[i];
      }
    } else if (!is_value && turns_one) {
#pragma unroll
      for (int i = 0; i < kVector; i += 2) {
        const float x = u[i], y = u[i + 1];
        u[i] = x * cos[i] - y * sin[i], u[i + 1] = y * cos[i] + x * sin[i];
      }
    }
    T* const out = a.out + (row * all_heads + head) * size + first;
    StoreColumns(out, u);
    if (turns_two) StoreColumns(out + rotated, v);
  }
}

// A warp takes a row, or a part of it.
template <class T>
__global__ void __launch_bounds__(32 * kWarps, 5)
    ChangeHeadsVectorKernel(const __grid_constant__ ChangeHeadsArguments<T> a, int lanes) {
  LaunchDependents();
  WaitForDependencies();
  const int64_t rows = RowsOf(a);
#pragma unroll 1
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    ChangeHeadsOfRow(a, lanes, row);
  }
}

// Whether packs of 16 bytes hold whole pairs, and a warp a head.
template <class T>
bool HasVectors(const ChangeHeadsArguments<T>& a) {
  constexpr int64_t kVector = kVectorOf<T>;
  const int64_t rotated = a.places == 0 ? 0 : a.rotated;
  const T* const all[] = {a.qkv, a.bias, a.cos, a.sin, a.q_gamma, a.k_gamma, a.out};
  for (const T* data : all) {
    if (!IsAligned(data, 16)) return false;
  }
  return a.head_size % kVector == 0 && (a.neighbours ? 2 : 1) * rotated % kVector == 0 && LanesOf(a) <= 32;
}

}  // namespace

template <class T>
cudaError_t ChangeHeads(const ChangeHeadsArguments<T>& arguments, const Device& device, cudaStream_t stream) {
  ChangeHeadsArguments<T> a = arguments;
  a.keeps_values = a.keeps_values || a.out == a.qkv;
  const int32_t* const count = a.packed.count == 0 ? a.row_count : a.packed.cu_seqlens + a.packed.count;
  const PackedRows packed = {count, a.expected};
  const int64_t all_heads = a.heads + 2 * a.kv_heads, rows = packed.LaunchRows(a.rows);
  const int64_t blocks = CeilDiv(rows * all_heads, kWarps);
  if (a.rows * all_heads * a.head_size == 0) return cudaSuccess;
  if (blocks > INT32_MAX || a.head_size > INT32_MAX) return cudaErrorInvalidValue;
  LaunchConfig config;
  if (HasVectors(a)) {
    const int lanes = LanesOf(a);
    // So many warps a row that every multiprocessor has work for all its warps, even with few rows.
    const int64_t row_blocks = CeilDiv(rows, kWarps), wanted = int64_t{16} * device.multiprocessors;
    const int64_t changed = all_heads - (a.keeps_values ? a.kv_heads : 0);
    const int64_t shares = std::min({CeilDiv(wanted, row_blocks), CeilDiv(changed * lanes, 32), int64_t{65535}});
    config.grid = dim3(static_cast<unsigned>(row_blocks), static_cast<unsigned>(shares));
    config.block = dim3(32 * kWarps);
    config.stream = stream;
    config.device = &device;
    return Launch(config, ChangeHeadsVectorKernel<T>, a, lanes);
  }
  config.grid = dim3(static_cast<unsigned>(blocks));
  config.block = dim3(32 * kWarps);
  config.stream = stream;
  config.device = &device;
  return Launch(config, ChangeHeadsKernel<T>, a);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t ChangeHeads(const ChangeHeadsArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
