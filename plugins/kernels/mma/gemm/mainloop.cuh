// The main loop: cp.async fills a ring of stages, ldmatrix reads a step ahead of the tensor cores.
//
// Of a 128 x 128 tile of 16-bit elements, four warps of 64 x 64 on an A100's multiprocessor, for each step of 16 along
// k: a warp multiplies 32 times (m16n8k16: 8 cycles each on a quarter of the tensor cores, 256 in all), for which it
// reads 8 times by ldmatrix (512 bytes, 4 cycles each; 128 for the four warps, which share the port), and the copies
// write 8 KB (64 cycles). So shared memory is busy 75% of the time (69% of it with 256 x 128), and L2 gives 32 bytes a
// cycle (24). Smaller warp tiles read more for a product: 32 x 32 takes 4 reads for 8 products, and cannot keep the
// tensor cores busy. What is left of their peak after that and the issue of other instructions (8 reads, 4 copies, a
// barrier every other step) is reckoned as 80 to 90% with many tiles. An H200 takes as long as by CUTLASS's tiles.
#ifndef BERTFUSE_KERNELS_MMA_GEMM_MAINLOOP_CUH_
#define BERTFUSE_KERNELS_MMA_GEMM_MAINLOOP_CUH_

#include "kernels/mma/gemm/config.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/scalar.cuh"
#include "kernels/ptx/shared.cuh"

namespace bertfuse::kernels::gemm_mma {

// Copies of one thread that have begun. They go on by themselves, and the ring's waits end them.
template <int kCopies, bool kAsync>
class BegunCopies {
 public:
  __device__ __forceinline__ void Begin(int, uint32_t to, const char* from, bool inside) {
    CopyAsync16(to, from, inside);
  }
  __device__ __forceinline__ void End() {}
};

// Without cp.async they are read into registers, and End() brings them to shared memory, at best when they have come.
template <int kCopies>
class BegunCopies<kCopies, false> {
 public:
  __device__ __forceinline__ void Begin(int i, uint32_t to, const char* from, bool inside) {
    read_[i] = inside ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
    to_[i] = to;
    begun_ = true;
  }
  __device__ __forceinline__ void End() {
    if (!begun_) return;
    begun_ = false;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const uint32_t words[4] = {read_[i].x, read_[i].y, read_[i].z, read_[i].w};
      StoreShared(to_[i], words);
    }
  }

 private:
  uint4 read_[kCopies];
  uint32_t to_[kCopies];
  bool begun_ = false;
};

// Offsets to each of a thread's kCopies chunks, a step apart, none beyond `last`. Hidden() keeps the compiler from
// computing them anew in the loop.
template <int kCopies, bool kComputed>
class CopyOffsets {
 public:
  __device__ __forceinline__ CopyOffsets(uint32_t first, uint32_t step, uint32_t last) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      offset_[i] = static_cast<uint32_t>(Hidden(static_cast<int>(min(first + i * step, last))));
    }
  }
  __device__ __forceinline__ uint32_t operator[](int i) const { return offset_[i]; }

 private:
  uint32_t offset_[kCopies];
};

// Where there are too many for registers they are computed at each copy.
template <int kCopies>
class CopyOffsets<kCopies, true> {
 public:
  __device__ __forceinline__ CopyOffsets(uint32_t first, uint32_t step, uint32_t last)
      : first_(first), step_(step), last_(static_cast<uint32_t>(Hidden(static_cast<int>(last)))) {}
  __device__ __forceinline__ uint32_t operator[](int i) const {
    return min(static_cast<uint32_t>(Hidden(static_cast<int>(first_))) + i * step_, last_);
  }

 private:
  uint32_t first_, step_, last_;
};

// What one of a slice's kThreads threads copies of an operand's kRows rows: a chunk of every (kThreads / chunks of a
// row)th row of a stage, of every kSlices-th stage. Rows behind the last one are copies of it, which reach nothing that
// is stored: to tell them apart at every copy took a third of the loop's instructions.
template <class T, int kRows, int kThreads, int kRowBytes, int kSlices, bool kComputesOffsets>
class OperandCopy {
 public:
  // From row `first_row`, which is below `rows`, and element `first_k` on. k from p.k on is zeros.
  __device__ __forceinline__ OperandCopy(const T* data, int k, int first_row, int rows, int first_k)
      : from_(reinterpret_cast<const char*>(data + static_cast<int64_t>(first_row) * k + first_k)),
        offset_(Row() * Pitch(k) + Chunk() * kChunkBytes, kRowsAtOnce * Pitch(k),
                static_cast<uint32_t>(rows - 1 - first_row) * Pitch(k) + Chunk() * kChunkBytes),
        to_(ChunkOffset<kRowBytes>(Row(), Chunk())),
        left_((k - first_k) * static_cast<int>(sizeof(T)) - Chunk() * kChunkBytes) {}

  // One of some parts of the copies of the next stage's k; the last part comes last. End() before the stage's wait, and
  // before the next one begins.
  __device__ __forceinline__ void BeginNext(uint32_t tile, int part = 0, int parts = 1) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (i < kCopies * part / parts || i >= kCopies * (part + 1) / parts) continue;
      if (kCopyThreads < kThreads && Thread() >= kCopyThreads) continue;
      const int to = to_ ^ (i % 2 * kTurn);
      begun_.Begin(i, tile + to + i * kRowsAtOnce * kRowBytes, from_ + offset_[i], left_ > 0);
    }
    if (part < parts - 1) return;
    from_ += kSlices * kRowBytes;
    left_ -= kSlices * kRowBytes;
  }
  __device__ __forceinline__ void End() { begun_.End(); }

  __device__ __forceinline__ void CopyNext(uint32_t tile) {
    BeginNext(tile);
    End();
  }

 private:
  static constexpr int kRowChunks = kRowBytes / kChunkBytes;
  // Half of the threads where all would copy more than the rows.
  static constexpr int kCopyThreads = kRows % (kThreads / kRowChunks) == 0 ? kThreads : kThreads / 2;
  static constexpr int kRowsAtOnce = kCopyThreads / kRowChunks, kCopies = kRows / kRowsAtOnce;
  // A thread's chunks are swizzled alike, eight rows apart; four rows apart every other one lies four chunks elsewhere.
  static constexpr int kTurn = kRowsAtOnce == 4 ? 4 * kChunkBytes : 0;
  __device__ __forceinline__ static int Thread() {
    return kSlices == 1 ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) % kThreads;
  }
  __device__ __forceinline__ static int Row() { return Thread() / kRowChunks; }
  __device__ __forceinline__ static int Chunk() { return Thread() % kRowChunks; }
  __device__ __forceinline__ static uint32_t Pitch(int k) { return static_cast<uint32_t>(k) * sizeof(T); }

  static_assert(kRows % kRowsAtOnce == 0 && (kRowsAtOnce % 8 == 0 || (kRowsAtOnce == 4 && kRowChunks == 8)));
  BegunCopies<kCopies, kHasAsyncCopies> begun_;
  const char* from_;                               // the same in all threads
  CopyOffsets<kCopies, kComputesOffsets> offset_;  // from there to each of the thread's chunks
  int to_, left_;                                  // bytes of k from its chunk on
};

template <class Config, int kRows>
using CopyOf = OperandCopy<typename Config::X, kRows, Config::kThreadsOfSlice, Config::kRowBytes, Config::kSlices,
                           Config::kComputesOffsets>;

// Synchronises the threads that share a ring.
template <class Config>
__device__ __forceinline__ void SyncSlice(int slice) {
  if constexpr (Config::kSlices == 1) {
    __syncthreads();
  } else if constexpr (Config::kThreadsOfSlice == 32) {
    __syncwarp();
  } else {
    SyncNamed<Config::kThreadsOfSlice>(1 + slice);
  }
}

// Calls visit(stages as a constant): an instruction has to know how many copies it may leave unfinished, and to choose
// one of them at every stage took a tenth of the loop's time.
template <int kStages, int kMost, class Visit>
__device__ __forceinline__ void WithStages(int stages, Visit&& visit) {
  if constexpr (kStages < kMost) {
    if (stages > kStages) return WithStages<kStages + 1, kMost>(stages, visit);
  }
  visit(std::integral_constant<int, kStages>());
}

// Where a lane's row of each matrix lies in a stage, for ldmatrix.
template <class Config>
class FragmentReader {
 public:
  __device__ __forceinline__ FragmentReader(int warp_m, int warp_n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    x_ = ChunkOffset<Config::kRowBytes>(warp_m + lane % 16, lane / 16);
    w_ = ChunkOffset<Config::kRowBytes>(Config::kM + warp_n + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  // The swizzle moves chunks by step as it does by lane, and 16 rows further on it is the same.
  __device__ __forceinline__ void Read(Fragments<Config::kI, Config::kJ>& f, uint32_t stage, int step) const {
    const uint32_t x = stage + (x_ ^ step * 2 * kChunkBytes), w = stage + (w_ ^ step * 2 * kChunkBytes);
#pragma unroll
    for (int i = 0; i < Config::kI; ++i) LoadMatrices(f.x[i], x + i * 16 * Config::kRowBytes);
#pragma unroll
    for (int j = 0; j < Config::kJ / 2; ++j) LoadMatrices(f.w[j], w + j * 16 * Config::kRowBytes);
  }

 private:
  uint32_t x_, w_;
};

// sum += x * weight over the slice's `count` stages of k, with kStages of them in its ring; no slice has more than
// `most`. `after_first_copies()` is called when the first copies are under way; `before_x()` before x is read.
template <class Config, int kStages, class BeforeX, class AfterFirstCopies>
__device__ __forceinline__ void MultiplyTile(CopyOf<Config, Config::kM>& x, CopyOf<Config, Config::kN>& weight,
                                             const FragmentReader<Config>& reader, int slice, uint32_t ring, int count,
                                             int most, bool fetch_weights_first,
                                             typename Config::Accumulator (&sum)[Config::kI][Config::kJ][4],
                                             BeforeX&& before_x, AfterFirstCopies&& after_first_copies) {
  constexpr uint32_t kXBytes = Config::kM * Config::kRowBytes, kStageBytes = StageBytes(Config::kTile);
  constexpr int kCopySteps = Config::kSteps - 1;  // among which the copies of a stage are spread
  const uint32_t ring_end = ring + kStages * kStageBytes;
  const bool weights_first = kHasDependentLaunch && fetch_weights_first;
  if (weights_first) {
    const int first = min(kStages - 1, count);
#pragma unroll 1
    for (int i = 0; i < first; ++i) weight.CopyNext(ring + i * kStageBytes + kXBytes);
  }
  before_x();
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) {
      x.CopyNext(ring + i * kStageBytes);
      if (!weights_first) weight.CopyNext(ring + i * kStageBytes + kXBytes);
    }
    CommitCopies();
  }
  after_first_copies();
  WaitCopies<kStages - 2>();
  SyncSlice<Config>(slice);
  Fragments<Config::kI, Config::kJ> fragments[2];
  uint32_t read = ring, written = ring_end - kStageBytes;
  reader.Read(fragments[0], read, 0);
  // One stage; `copies`: whether there is another one to be copied.
  const auto multiply_stage = [&](auto copies) {
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      if (step == Config::kSteps - 1) {
        // The next stage has arrived, and all warps have read this one. (Behind the last one what is read is not used.)
        x.End();
        weight.End();
        WaitCopies<kStages - 2>();
        SyncSlice<Config>(slice);
        read = read + kStageBytes == ring_end ? ring : read + kStageBytes;
      }
      reader.Read(fragments[(step + 1) % 2], read, (step + 1) % Config::kSteps);
      if (copies && step < kCopySteps) {
        x.BeginNext(written, step, kCopySteps);
        weight.BeginNext(written + kXBytes, step, kCopySteps);
      }
      if (step == kCopySteps - 1) {
        CommitCopies();
        written = written + kStageBytes == ring_end ? ring : written + kStageBytes;
      }
      Multiplier<typename Config::X, Config::kMath>::Multiply(sum, fragments[step % 2]);
    }
  };
  if constexpr (Config::kSlices == 1) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) multiply_stage(i + kStages - 1 < count);
  } else {  // few stages, most of which have been copied before: without the copies' instructions, predicated off
    int i = kStages - 1;
#pragma unroll 1
    for (; i < count; ++i) multiply_stage(std::true_type());
#pragma unroll 1
    for (i -= kStages - 1; i < count; ++i) multiply_stage(std::false_type());
    if (count < most) SyncSlice<Config>(slice);  // racecheck takes slices of unequal numbers of barriers for a race
  }
}

}  // namespace bertfuse::kernels::gemm_mma
#endif  // BERTFUSE_KERNELS_MMA_GEMM_MAINLOOP_CUH_
