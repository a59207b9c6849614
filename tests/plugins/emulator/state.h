// The emulator's state, for its own files.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_STATE_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_STATE_H_

#include <array>
#include <bitset>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/fiber.h"
#include "emulator/machine.h"

namespace emulator {

constexpr int kPoison = 0xff;

struct Block;
struct Warp;

struct Copy {  // cp.async
  char* shared;
  const void* global;  // null: zeros
  int bytes;
};

// Bulk stores that one thread committed together: how many have yet to read shared memory, and to write.
struct StoreGroup {
  int reads = 0, writes = 0;
  bool waited_for = false;
};

// Accumulators of a warpgroup while products are under way: 64 rows.
struct AccumulatorTile {
  int columns;
  std::vector<float> values;
};

// One thread's part of these: registers that are NaNs until the thread has waited.
struct AccumulatorRegisters {
  float* registers;
  std::shared_ptr<AccumulatorTile> tile;
  int64_t group;  // of the last product
};

struct Thread {
  std::unique_ptr<Fiber> fiber;  // kept
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned number = 0;  // in the block
  bool ended = false;
  const char* waits_for = nullptr;  // null: it can go on
  int64_t waits_at = -1;            // which one of them

  std::vector<Copy> uncommitted;
  std::deque<std::vector<Copy>> groups;
  int64_t shared_accesses = 0;

  std::vector<uint32_t> unfenced;  // chunks of 16 bytes that it wrote since its last fence.proxy.async
  std::shared_ptr<StoreGroup> open_stores;
  std::deque<std::shared_ptr<StoreGroup>> stores;

  bool registers_fenced = false;  // by wgmma.fence, since it may have accessed its accumulators
  bool has_uncommitted_products = false;
  int64_t products = 0, product_groups = 0, finished_product_groups = 0;
  std::vector<AccumulatorRegisters> accumulators;
};

struct Meeting {  // of a warp's lanes
  const char* name;
  uint32_t mask, here;
  std::array<void*, 32> lanes;
};

struct Access {  // of a warp to shared memory
  std::array<uint32_t, 32> addresses;
  int lanes = 0;
};

struct Warp {
  std::vector<Thread*> ready;
  std::vector<Meeting> meetings;
  std::map<int64_t, Access> accesses;  // by how many the lane had before
  uint64_t priority = 0;
};

struct NamedBarrier {
  std::vector<Thread*> waiting;
  std::bitset<1024> here;
  size_t arrived = 0, expected = 0;
  bool any = false;  // for BarrierOr()
};

// What orders a block's warps, for Settings::finds_races: vector clocks (Mattern; as in FastTrack, Flanagan and Freund,
// PLDI 2009). A warp's own time grows at every barrier; of the others it has the time up to which barriers order them
// before what it does now.
constexpr unsigned kMaxWarps = 32;
struct Order {
  struct Word {                    // of shared memory: who accessed it last, and when
    int writer = -1, copier = -1;  // copier: of an asynchronous copy under way
    uint32_t written = 0;
    std::array<uint32_t, kMaxWarps> read = {};
  };
  std::array<std::array<uint32_t, kMaxWarps>, kMaxWarps> time = {};  // [whose][of whom]
  std::unordered_map<uint32_t, Word> words;
  Order() {
    for (unsigned warp = 0; warp < kMaxWarps; ++warp) time[warp][warp] = 1;
  }
};

struct MemoryBarrier {  // mbarrier
  int count, pending;
  int64_t bytes = 0;  // transactions that are expected and did not arrive yet; below 0 where they came first
  uint32_t phase = 0;
  std::vector<Thread*> waiting;
};

struct Product {  // one wgmma.mma_async
  ProductShape shape;
  uint64_t a = 0, b = 0;  // descriptors
  bool accumulate = false;
  int64_t group = 0;
  int threads = 0;  // that have issued it
  std::shared_ptr<AccumulatorTile> tile;
  std::array<const uint32_t*, 128> a_registers = {};
};

struct Warpgroup {
  std::deque<Product> products;  // from number `first` on
  int64_t first = 0, executed = 0;
  std::deque<int> committed;  // by how many threads, from group `finished_groups` on
  int64_t finished_groups = 0;
  std::vector<Thread*> waiting;
};

struct Block {
  unsigned rank = 0;  // in the cluster
  unsigned index[3] = {};
  char* dynamic = nullptr;
  unsigned ended = 0;  // threads
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::map<int, NamedBarrier> named;
  std::unordered_map<uint32_t, MemoryBarrier> barriers;  // by address
  Order order;
  std::unordered_map<uint32_t, uint32_t> unfenced;  // lanes that wrote a chunk of 16 bytes and did not fence
};

// What goes on without a thread. How soon, is drawn for each block.
enum class Async { kLoad, kStore, kSharedCopy, kProduct, kDependencies };
constexpr int kAsyncKinds = 5;
enum class Pace { kAtOnce, kSometime, kLast };  // kLast: when no thread can go on

struct Kernel {
  const void* function;
  Call call;
};

struct Machine {
  Settings settings;
  std::string fault;
  SharedAccesses accesses;
  int64_t copies = 0;
  uint64_t random = 1;
  std::map<const void*, Kernel> kernels;

  const Kernel* kernel = nullptr;
  void** arguments = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;  // stacks are kept
  std::vector<Block> blocks;                     // of the cluster that is running
  unsigned count = 0;                            // threads of a block
  size_t ended = 0;                              // threads of the cluster
  Thread* current = nullptr;                     // null: the scheduler, or what is asynchronous
  std::vector<Warp*> ready;                      // warps with threads that are
  std::vector<std::pair<Async, std::function<void()>>> pending;
  std::array<Pace, kAsyncKinds> paces = {};
  std::array<uint64_t, kAsyncKinds> turns = {};  // the lowest first, where no thread can go on
  NamedBarrier cluster_barrier;
  size_t dynamic_bytes = 0;
  char* statics = nullptr;  // all variables that kernels declare as __shared__
  size_t static_bytes = 0;
  bool some_run_ahead = false, blocks_run_ahead = false;
  bool dependencies_ended = true, dependents_began_early = false;
  std::vector<Thread*> waiting_for_dependencies;

  uint64_t Random() {  // splitmix64
    uint64_t z = random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  size_t Below(size_t count) { return static_cast<size_t>(Random() % count); }
};

struct Failed {};  // thrown by a fault outside of threads

Machine& The();
Thread* Next();                                // the thread that goes on; null: none can
void Wait(const char* name, int64_t at = -1);  // until woken
void Wake(Thread* thread);
void WakeAll(std::vector<Thread*>* threads);
// Runs `what` now or later, according to the block's pace.
void Begin(Async kind, std::function<void()> what);
std::string NameOf(const Thread& thread);  // "block 1 2 0, thread 3"
std::string Where();                       // "Kernel, block 1 2 0, thread 3"
std::string WhoWaits();                    // "3 threads wait at mma, 5 at __syncthreads"
bool CheckBarriersAtEnd();                 // what was loaded must have been expected
void ReportWhereFaultsAre();               // in AddressSanitizer's reports, too

// `bytes` of a block's shared memory, for an instruction `name` that asks for that alignment.
char* SharedPointer(Block& block, uint32_t address, size_t bytes, size_t alignment, const char* name);
// The block that a DsmemAddress() is of, and the address there; this block's own where it is none.
Block& BlockOf(uint32_t* address);
bool HasEnded(const Block& block);
void CompleteTransactions(Block& block, uint32_t barrier, int64_t bytes);
MemoryBarrier& BarrierAt(Block& block, uint32_t address, const char* name);
// A fault if a thread stored to these bytes without fence.proxy.async.
void CheckFenced(const Block& block, uint32_t address, size_t bytes, const char* name);
// A fault where no barrier orders this thread's access behind those before it; what a copy writes is written when the
// thread has waited for it. All threads that came to a barrier are in order from there on.
void CheckOrder(uint32_t address, int bytes, SharedAccess access);
void EndCopy(uint32_t address, int bytes);
void OrderWarps(Block& block, const std::bitset<1024>& threads);
void CheckEnd(const Thread& thread);  // whether it left something under way
void LeaveClusterBarrier();           // a thread has ended

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_STATE_H_
