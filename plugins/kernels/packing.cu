#include "kernels/backend.h"
#include "kernels/packed_rows.cuh"
#include "kernels/packing.h"
#include "kernels/sm90/ptx/cluster.cuh"

namespace bertfuse::kernels {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

// ---- PackTokens ----

constexpr int kMaxPackThreads = 1024;
constexpr int kPackCluster = 8;          // blocks, for large batches
constexpr int kPackedByOneBlock = 4096;  // places
constexpr int kWordsAtOnce = 4;          // whose loads are in flight together

// Which of 32 places are real, a bit each, by a warp.
template <class Index>
__device__ __forceinline__ void RealPlaces(const Index* mask, int64_t places, int64_t first_word, int words,
                                           uint32_t (&real)[kWordsAtOnce]) {
  Index value[kWordsAtOnce];
#pragma unroll
  for (int i = 0; i < kWordsAtOnce; ++i) {
    const int64_t place = (first_word + i) * 32 + threadIdx.x % 32;
    value[i] = i < words && place < places ? mask[place] : Index{0};
  }
#pragma unroll
  for (int i = 0; i < kWordsAtOnce; ++i) real[i] = __ballot_sync(kAllLanes, value[i] != 0);
}

// Of a warp's lanes.
__device__ __forceinline__ int SumOfWarp(int value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
#endif
}

// The sum of `count` over all warps of the grid, which is a block or a cluster, before this one; *all gets that over
// all of its warps.
__device__ __forceinline__ int SumBeforeWarp(int count, int* all) {
  __shared__ int of_warps[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) of_warps[warp] = count;
  __syncthreads();
  const int other = lane < static_cast<int>(blockDim.x) / 32 ? of_warps[lane] : 0;
  int before = SumOfWarp(lane < warp ? other : 0);
  *all = SumOfWarp(other);
#if __CUDA_ARCH__ >= 900
  __shared__ int of_blocks[kPackCluster];
  if (gridDim.x > 1) {
    if (threadIdx.x < kPackCluster) StoreDsmem(DsmemAddress(&of_blocks[blockIdx.x], threadIdx.x), *all);
    SyncClusterMemory();
    const int of_block = lane < kPackCluster ? of_blocks[lane] : 0;
    before += SumOfWarp(lane < static_cast<int>(blockIdx.x) ? of_block : 0);
    *all = SumOfWarp(of_block);
  }
#endif
  return before;
}

// Each warp takes a range of places, in order: it counts those that are real, then finds where each one goes. In
// between it keeps the bits of its first 32 words, a word per lane.
template <class Index>
__global__ void __launch_bounds__(kMaxPackThreads) PackTokensKernel(PackTokensArguments<Index> a) {
  const int lane = threadIdx.x % 32;
  const int64_t places = a.sequences * a.length, all_words = (places + 31) / 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t words_each = (all_words + warps - 1) / warps, first_word = warp * words_each;
  const int words = static_cast<int>(min(max(all_words - first_word, int64_t{0}), words_each));
#if __CUDA_ARCH__ >= 900
  if (gridDim.x > 1) SyncCluster();  // the others' shared memory is there
#endif
  WaitForDependencies();
  uint32_t real[kWordsAtOnce], kept = 0;
  int count = 0;
  for (int word = 0; word < words; word += kWordsAtOnce) {
    RealPlaces(a.mask, places, first_word + word, words - word, real);
#pragma unroll
    for (int i = 0; i < kWordsAtOnce; ++i) {
      if (lane == word + i) kept = real[i];
      count += __popc(real[i]);
    }
  }
  int total;
  int row = SumBeforeWarp(count, &total);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    // First, because it takes longer to reach the host than the rest to reach the L2 cache.
    if (a.hint != nullptr) {
      *static_cast<volatile uint64_t*>(a.hint) = static_cast<uint64_t>(places) << 32 | static_cast<uint32_t>(total);
    }
    a.cu_seqlens[a.sequences] = *a.row_count = total;
  }
  // Sequences of no length.
  for (int64_t i = threadIdx.x; places == 0 && i < a.sequences; i += blockDim.x) a.cu_seqlens[i] = 0;
  for (int word = 0; word < words; word += kWordsAtOnce) {
    if (word < 32) {
#pragma unroll
      for (int i = 0; i < kWordsAtOnce; ++i) real[i] = __shfl_sync(kAllLanes, kept, word + i);
    } else {
      RealPlaces(a.mask, places, first_word + word, words - word, real);
    }
#pragma unroll
    for (int i = 0; i < kWordsAtOnce; ++i) {
      const int64_t place = (first_word + word + i) * 32 + lane;
      const int before = row + __popc(real[i] & ((1u << lane) - 1));
      row += __popc(real[i]);
      if (word + i >= words || place >= places) continue;
      const auto at = static_cast<uint32_t>(place), length = static_cast<uint32_t>(a.length);
      a.token_index[(real[i] >> lane & 1) != 0 ? before : total + static_cast<int>(at) - before] = static_cast<int>(at);
      if (at % length == 0) a.cu_seqlens[at / length] = before;
    }
  }
  // Not before all of it is written: the kernel that comes next may read the count before it waits for this one.
  __threadfence();
  __syncthreads();
  LaunchDependents();
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
  // The count, too: in a ragged model nothing but this kernel takes what PackTokens makes, so that may have run just
  // before.
  WaitForDependencies();
  const int64_t count = RealRows(a.packed, min(a.rows, a.places));
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
  WaitThenLaunchDependents();
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
  const int64_t places = a.sequences * a.length;
  const bool one_block = places <= kPackedByOneBlock || !RunsOn(Backend::kSm90, device);
  const int64_t threads = std::clamp<int64_t>(CeilDiv(places, 32) * 32, 32, kMaxPackThreads);
  LaunchConfig config = Config(one_block ? 1 : kPackCluster, static_cast<int>(threads), device, stream);
  config.cluster = config.grid.x;
  return Launch(config, PackTokensKernel<Index>, a);
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
