// A GPU that is a host program: it runs the kernels of plugins/kernels, compiled as C++ for the host, one block (or
// cluster of blocks) after the other, every thread on a stack of its own. It allows what CUDA's documentation promises
// and no more:
//
// - Threads go on in an order drawn from a seed. In half of the blocks some warps run as far ahead of the others as
//   barriers let them.
// - Shared memory is NaNs (all bits set) when a block begins.
// - An asynchronous copy turns its destination into NaNs when it is issued, and brings its data only at the wait that
//   guarantees them.
// - Bulk copies (TMA) and warpgroup products (wgmma) read and write as soon as they are issued, or as late as somebody
//   waits for them, or in between and in any order. What they write is NaNs until then, registers until that thread has
//   waited. So it is with what an earlier kernel writes, where a launch may overlap it.
// - Accesses to shared memory that no barrier orders are faults, where a test asks for that (Settings::finds_races).
// - Misaligned accesses, accesses outside of an array, lanes of a warp that meet in different instructions, threads
//   that wait for one that has ended, and copies that nobody waited for are faults. AddressSanitizer and UBSan see what
//   kernels access by themselves; here is checked what goes through kernels/ptx. (Dynamic shared memory ends where it
//   ends; an address may leave one __shared__ variable for another unseen.)
//
// It is no model of time. Where arithmetic differs from a GPU's is said in kernels/ptx/mma.cuh and language.h.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_MACHINE_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_MACHINE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace emulator {

// The one device there is.
struct Settings {
  uint64_t seed = 1;
  int compute_capability = 80;
  int multiprocessors = 8;
  int shared_bytes = 163 << 10;  // the most dynamic shared memory of a block
  int blocks_per_multiprocessor = 2;
  // Whether two warps' accesses to the same shared memory that no barrier orders are a fault, in whatever order they
  // come. For kernels that have no other barriers than bar.sync, __syncthreads() among them.
  bool finds_races = false;
  // Called once in every launch that may overlap the kernel before it: that kernel ends now.
  std::function<void()> dependencies_end;
};
Settings& TheSettings();

// Warp-wide accesses to shared memory, by ldmatrix, cp.async and the functions of kernels/ptx/shared.cuh, and how many
// times more they took because two lanes' addresses are in the same bank.
struct SharedAccesses {
  int64_t accesses = 0, conflicts = 0;
};
SharedAccesses TakeSharedAccesses();  // since the last call

// Asynchronous copies since the last call, also those of zeros: one for each cp.async, and one for 16 bytes of a TMA
// load.
int64_t TakeCopies();

// Whether a kernel since the last call let the next one begin while those before it had yet to end.
bool TakeEarlyDependents();

// What went wrong in the first launch that failed since the last call, or "". A launch ends where its first fault is.
std::string TakeFault();

// Ends the launch. Called on a thread of the block.
[[noreturn]] void Fault(const std::string& what);

// Bytes in `pointer`'s array, for accesses that AddressSanitizer does not see.
bool IsAccessible(const void* pointer, size_t bytes);

// Addresses of shared memory as kernels have them, and back. The pointer is to `bytes` of shared memory, and the
// address a multiple of them; anything else is a fault of the instruction `name`.
uint32_t SharedAddress(const void* pointer);
char* SharedPointer(uint32_t address, size_t bytes, const char* name);
char* DynamicShared();
enum class SharedAccess { kLoad, kStore, kCopy };
// Of one lane; a warp's lanes are put together by their order.
void NoteSharedAccess(uint32_t address, int bytes, SharedAccess access);

// Lanes `lanes` of this warp have written 16 bytes: an asynchronous proxy may read them after fence.proxy.async.
void MarkStored(uint32_t address, uint32_t lanes);

// Asynchronous copies of this thread.
void CopyAsync(void* shared, const void* global, int bytes, bool inside);
void CommitCopies();
void WaitCopies(int pending);

// Waits until `threads` of the block have come to barrier `id`; for all of them where that is 0.
void Barrier(const char* name, int id = 0, int threads = 0);
bool BarrierOr(bool value);

// A warpgroup's product: d[64 x columns] += a[64 x k] * b, k being 32 bytes.
enum class Operand { kHalf, kBfloat16, kE4m3, kInt8 };
struct ProductShape {
  Operand operand;
  int columns;
  bool b_transposed;  // b is [k x columns] (MN-major)
};

// A warp's instruction: the last lane of `mask` to come calls run(lanes), where lanes[i] is what lane i passed, null if
// it is not in the mask.
using Lanes = void* const*;
void MeetWarp(const char* name, uint32_t mask, void* mine, void (*run)(void* context, Lanes lanes), void* context);

template <class Mine, class Run>
void ForWarp(const char* name, uint32_t mask, Mine& mine, Run run) {
  MeetWarp(
      name, mask, &mine,
      [](void* context, Lanes lanes) { (*static_cast<Run*>(context))(reinterpret_cast<Mine* const*>(lanes)); }, &run);
}

// How the runtime calls a kernel: a handle in place of its address.
using Call = void (*)(const void* function, void** arguments);
const void* Register(const void* function, Call call);

template <class... Parameters, size_t... kIndex>
void CallKernel(const void* function, void** arguments, std::index_sequence<kIndex...>) {
  reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(function))(
      *static_cast<Parameters*>(arguments[kIndex])...);
}

template <class... Parameters>
const void* HandleOf(void (*kernel)(Parameters...)) {
  const Call call = [](const void* function, void** arguments) {
    CallKernel<Parameters...>(function, arguments, std::index_sequence_for<Parameters...>());
  };
  return Register(reinterpret_cast<const void*>(kernel), call);
}

// Runs a grid, in clusters of that many blocks along x. False: a fault, which TakeFault() tells.
bool RunGrid(const void* handle, dim3 grid, dim3 block, unsigned cluster, bool overlaps, size_t dynamic_bytes,
             void** arguments);

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_MACHINE_H_
