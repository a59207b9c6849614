#include "kernels/packed_rows.cuh"
#include "kernels/packing.h"

namespace bertfuse::kernels {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

// ---- PackTokens ----

constexpr int kCountThreads = 1024;  // of the one block that counts; as many sequences at a time
constexpr int kSegment = 128;        // tokens that a warp counts at a time
constexpr int kSegmentsAtOnce = 4;   // whose loads are on their way together

// The sum over the warp of lanes up to this one.
__device__ __forceinline__ int SumUpTo(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// The sum of `value` over the block's threads before this one, and over all of them. `sums` holds 33 numbers.
__device__ __forceinline__ int SumBefore(int value, int* sums, int* all) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int up_to = SumUpTo(value);
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  if (warp == 0) {
    const int of_warp = lane < warps ? sums[lane] : 0;
    const int up_to_warp = SumUpTo(of_warp);
    sums[lane] = up_to_warp - of_warp;
    if (lane == 31) sums[32] = up_to_warp;
  }
  __syncthreads();
  *all = sums[32];
  const int before = sums[warp] + up_to - value;
  __syncthreads();  // `sums` may be used again
  return before;
}

// How many real tokens the sequences from `first` on have, kCountThreads of them at most, in `counts`.
template <class Index>
__device__ __forceinline__ void CountTokens(const PackTokensArguments<Index>& a, int64_t first, int sequences,
                                            int* counts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int segments = static_cast<int>((a.length + kSegment - 1) / kSegment);
  const int64_t all = static_cast<int64_t>(sequences) * segments;
  for (int64_t base = static_cast<int64_t>(warp) * kSegmentsAtOnce; base < all;
       base += kCountThreads / 32 * kSegmentsAtOnce) {
    int real[kSegmentsAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kSegmentsAtOnce; ++i) {
      const int64_t segment = base + i;
      if (segment >= all) continue;
      const Index* row = a.mask + (first + segment / segments) * a.length;
#pragma unroll
      for (int j = 0; j < kSegment / 32; ++j) {
        const int64_t at = segment % segments * kSegment + j * 32 + lane;
        if (at < a.length) real[i] += row[at] != 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kSegmentsAtOnce; ++i) {
      const int sum = __reduce_add_sync(kAllLanes, real[i]);
      if (lane == 0 && sum > 0) atomicAdd(&counts[(base + i) / segments], sum);
    }
  }
}

// cu_seqlens and row_count, by one block.
template <class Index>
__global__ void __launch_bounds__(kCountThreads) CountTokensKernel(PackTokensArguments<Index> a) {
  __shared__ int counts[kCountThreads];
  __shared__ int sums[33];
  LaunchDependents();
  WaitForDependencies();  // what the mask was written by, and whoever still reads the numbers of another batch
  int total = 0;
  for (int64_t first = 0; first < a.sequences; first += kCountThreads) {
    const int sequences = static_cast<int>(min(a.sequences - first, static_cast<int64_t>(kCountThreads)));
    counts[threadIdx.x] = 0;
    __syncthreads();
    CountTokens(a, first, sequences, counts);
    __syncthreads();
    int all;
    const int before = SumBefore(counts[threadIdx.x], sums, &all);
    if (static_cast<int>(threadIdx.x) < sequences) a.cu_seqlens[first + threadIdx.x] = total + before;
    total += all;
  }
  if (threadIdx.x == 0) a.cu_seqlens[a.sequences] = *a.row_count = total;
}

// token_index, by a block for each sequence. It comes after CountTokensKernel has ended.
template <class Index>
__global__ void __launch_bounds__(1024) PlaceTokensKernel(PackTokensArguments<Index> a) {
  __shared__ int sums[33];
  LaunchDependents();
  WaitForDependencies();
  const int64_t sequence = blockIdx.x;
  const int total = a.cu_seqlens[a.sequences];
  if (sequence == 0 && threadIdx.x == 0 && a.hint != nullptr) {
    *static_cast<volatile uint64_t*>(a.hint) =
        static_cast<uint64_t>(a.sequences * a.length) << 32 | static_cast<uint32_t>(total);
  }
  int real = a.cu_seqlens[sequence];
  int padding = total + static_cast<int>(sequence * a.length) - real;
  for (int64_t begin = 0; begin < a.length; begin += blockDim.x) {
    const int64_t at = begin + threadIdx.x;
    const bool inside = at < a.length, is_real = inside && a.mask[sequence * a.length + at] != 0;
    int all;
    const int before = SumBefore(is_real, sums, &all);
    const int place = is_real ? real + before : padding + static_cast<int>(threadIdx.x) - before;
    if (inside) a.token_index[place] = static_cast<int32_t>(sequence * a.length + at);
    real += all;
    padding += static_cast<int>(blockDim.x) - all;
  }
}

// ---- rows that are moved ----

constexpr int kMoveThreads = 256;

// Writes a row of `bytes`, zeros where `from` is null, by a warp in accesses of Word.
template <class Word>
__device__ __forceinline__ void MoveRow(void* to, const void* from, int64_t bytes) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < words; i += 32) {
    static_cast<Word*>(to)[i] = from == nullptr ? Word{} : static_cast<const Word*>(from)[i];
  }
}

__device__ __forceinline__ int64_t FirstOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * (kMoveThreads / 32) + threadIdx.x / 32;
}
__device__ __forceinline__ int64_t Warps() { return static_cast<int64_t>(gridDim.x) * (kMoveThreads / 32); }

template <class Word>
__global__ void __launch_bounds__(kMoveThreads) UnpackTokensKernel(UnpackTokensArguments a) {
  LaunchDependents();
  const int64_t count = RealRows(a.packed, min(a.rows, a.places));
  WaitForDependencies();
  for (int64_t row = FirstOfWarp(); row < a.places; row += Warps()) {
    const int64_t place = a.token_index[row];
    if (place < 0 || place >= a.places) continue;
    const char* from = row < count ? static_cast<const char*>(a.x) + row * a.row_bytes : nullptr;
    MoveRow<Word>(static_cast<char*>(a.y) + place * a.row_bytes, from, a.row_bytes);
  }
}

template <class Word>
__global__ void __launch_bounds__(kMoveThreads) FirstTokensKernel(FirstTokensArguments a) {
  LaunchDependents();
  WaitForDependencies();
  for (int64_t i = FirstOfWarp(); i < a.sequences; i += Warps()) {
    const int64_t first = a.cu_seqlens[i];
    const int64_t row = min(max(first, int64_t{0}), a.rows - 1);
    const bool any = first < a.cu_seqlens[i + 1] && a.rows > 0;
    MoveRow<Word>(static_cast<char*>(a.y) + i * a.row_bytes,
                  any ? static_cast<const char*>(a.x) + row * a.row_bytes : nullptr, a.row_bytes);
  }
}

template <class Index>
__global__ void __launch_bounds__(kMoveThreads) RaggedPositionsKernel(RaggedPositionsArguments<Index> a) {
  LaunchDependents();
  WaitForDependencies();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kMoveThreads + threadIdx.x;
  if (token >= a.tokens) return;
  // The last sequence that begins at or before the token: those without a token end there, too.
  int64_t low = 0, high = a.sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (a.cu_seqlens[middle] <= token ? low : high) = middle;
  }
  const int64_t position = token - a.cu_seqlens[low];
  a.sequence_ids[token] = static_cast<Index>(low);
  a.position_ids[token] = static_cast<Index>(min(max(position, int64_t{0}), a.longest - 1));
}

LaunchConfig Config(int64_t blocks, int threads, const Device& device, cudaStream_t stream) {
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks));
  config.block = dim3(threads);
  config.stream = stream;
  config.device = &device;
  return config;
}

// Launches the kernel for the widest accesses that rows and addresses allow: 16 bytes, or those of an element.
template <class Arguments>
cudaError_t LaunchMove(void (*wide)(Arguments), void (*narrow)(Arguments), const Arguments& a, int64_t rows,
                       const Device& device, cudaStream_t stream) {
  constexpr int kBlocksPerMultiprocessor = 8;
  const int64_t most = int64_t{kBlocksPerMultiprocessor} * device.multiprocessors;
  const LaunchConfig config = Config(std::min(most, CeilDiv(rows, kMoveThreads / 32)), kMoveThreads, device, stream);
  const bool fits = a.row_bytes % 16 == 0 && IsAligned(a.x, 16) && IsAligned(a.y, 16);
  return Launch(config, fits ? wide : narrow, a);
}

}  // namespace

template <class Index>
cudaError_t PackTokens(const PackTokensArguments<Index>& a, const Device& device, cudaStream_t stream) {
  const cudaError_t error = Launch(Config(1, kCountThreads, device, stream), CountTokensKernel<Index>, a);
  if (error != cudaSuccess || a.sequences == 0 || a.length == 0) return error;
  const int64_t threads = std::min<int64_t>(CeilDiv(a.length, 32) * 32, 1024);
  LaunchConfig config = Config(a.sequences, static_cast<int>(threads), device, stream);
  config.may_overlap = false;
  return Launch(config, PlaceTokensKernel<Index>, a);
}

cudaError_t UnpackTokens(const UnpackTokensArguments& a, const Device& device, cudaStream_t stream) {
  if (a.places == 0 || a.row_bytes == 0) return cudaSuccess;
  return LaunchMove(UnpackTokensKernel<int4>, UnpackTokensKernel<uint16_t>, a, a.places, device, stream);
}

cudaError_t FirstTokens(const FirstTokensArguments& a, const Device& device, cudaStream_t stream) {
  if (a.sequences == 0 || a.row_bytes == 0) return cudaSuccess;
  return LaunchMove(FirstTokensKernel<int4>, FirstTokensKernel<uint16_t>, a, a.sequences, device, stream);
}

template <class Index>
cudaError_t RaggedPositions(const RaggedPositionsArguments<Index>& a, const Device& device, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  return Launch(Config(CeilDiv(a.tokens, kMoveThreads), kMoveThreads, device, stream), RaggedPositionsKernel<Index>, a);
}

template cudaError_t PackTokens(const PackTokensArguments<int32_t>&, const Device&, cudaStream_t);
template cudaError_t PackTokens(const PackTokensArguments<int64_t>&, const Device&, cudaStream_t);
template cudaError_t RaggedPositions(const RaggedPositionsArguments<int32_t>&, const Device&, cudaStream_t);
template cudaError_t RaggedPositions(const RaggedPositionsArguments<int64_t>&, const Device&, cudaStream_t);

}  // namespace bertfuse::kernels
