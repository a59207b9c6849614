#include "kernels/change_heads.h"
#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/packed_places.cuh"

namespace bertfuse::kernels {
namespace {

constexpr int kWarps = 4;

// Where in its sequence a packed row is; -1 where it belongs to none. Called by a whole warp, which looks at 32 offsets
// at a time for the last one that is not behind the row.
__device__ __forceinline__ int64_t PlaceOf(int64_t row, const PackedSequences& packed) {
  const int lane = threadIdx.x % 32;
  int begin = 0, end = packed.count + 1;
  while (true) {
    const int step = (end - begin + 31) / 32, at = begin + lane * step;
    const int offset = at < end ? LoadRowCount(packed.cu_seqlens + at) : 0;
    const unsigned before = __ballot_sync(0xffffffffu, at < end && offset <= row);
    if (before == 0) return -1;
    const int last = 31 - __clz(before);
    begin += last * step;
    if (step == 1) return begin == packed.count ? -1 : row - __shfl_sync(0xffffffffu, offset, last);
    end = min(end, begin + step);
  }
}

// A warp takes one head of one row. Columns are read once for the mean square and once more for the result; by then
// they are in the first cache level.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) ChangeHeadsKernel(const __grid_constant__ ChangeHeadsArguments<T> a) {
  const int lane = threadIdx.x % 32, size = static_cast<int>(a.head_size);
  const int rotated = a.places == 0 ? 0 : static_cast<int>(a.rotated);
  const int64_t all_heads = a.heads + 2 * a.kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  LaunchDependents();
  WaitForDependencies();
  if (item >= a.rows * all_heads) return;
  const int64_t row = item / all_heads, head = item % all_heads;
  int64_t place = row % a.sequence;
  if (a.packed.count > 0) {
    place = PlaceOf(row, a.packed);
    if (place < 0) return;
    if (a.packed.token_index != nullptr && rotated > 0) {
      const int first = static_cast<int>(row - place);
      place = Places::Between(a.packed, first, static_cast<int>(row));
    }
    place = min(place, a.places - 1);
  }
  const T* const x = a.qkv + item * size;
  const T* const bias = a.bias == nullptr ? nullptr : a.bias + head * size;
  T* const out = a.out + item * size;
  const auto at = [&](int column) { return ToFloat(x[column]) + (bias == nullptr ? 0.0f : ToFloat(bias[column])); };
  if (head >= a.heads + a.kv_heads) {
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
    return gamma == nullptr ? at(column) : at(column) * inverse * ToFloat(gamma[column]);
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

}  // namespace

template <class T>
cudaError_t ChangeHeads(const ChangeHeadsArguments<T>& a, const Device& device, cudaStream_t stream) {
  const int64_t items = a.rows * (a.heads + 2 * a.kv_heads), blocks = CeilDiv(items, kWarps);
  if (items * a.head_size == 0) return cudaSuccess;
  if (blocks > INT32_MAX || a.head_size > INT32_MAX) return cudaErrorInvalidValue;
  LaunchConfig config;
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
