// Barriers: of threads in a block, of a cluster, and mbarriers.
#include <cstring>

#include "emulator/hopper.h"
#include "emulator/state.h"

namespace emulator {
namespace {

constexpr int64_t kMostBytes = (1 << 20) - 1;
constexpr int kMostArrivals = (1 << 20) - 1;
constexpr uint64_t kMark = 0x7265697272616226u;  // what an mbarrier's memory holds

std::string Describe(uint32_t address) { return " of the mbarrier at shared address " + std::to_string(address); }

void EndPhaseIfComplete(MemoryBarrier& barrier, uint32_t address) {
  if (barrier.pending > 0) return;
  if (barrier.bytes < 0) {
    Fault(std::to_string(-barrier.bytes) + " bytes more than were expected arrived in a phase" + Describe(address));
  }
  if (barrier.bytes > 0) return;
  barrier.pending = barrier.count;
  ++barrier.phase;
  WakeAll(&barrier.waiting);
}

void CountBytes(MemoryBarrier& barrier, int64_t bytes, uint32_t address) {
  barrier.bytes += bytes;
  if (barrier.bytes > kMostBytes || barrier.bytes < -kMostBytes) Fault("too many bytes in a phase" + Describe(address));
}

void ArriveAt(Block& block, uint32_t address, const char* name) {
  MemoryBarrier& barrier = BarrierAt(block, address, name);
  if (barrier.pending == 0) {
    Fault("more than " + std::to_string(barrier.count) + " arrivals in a phase" + Describe(address));
  }
  --barrier.pending;
  EndPhaseIfComplete(barrier, address);
}

// Counts one thread; true if it was the last.
bool Come(NamedBarrier& barrier, size_t expected, const char* name) {
  Machine& m = The();
  const std::string which = std::string(name) + " for " + std::to_string(expected) + " threads";
  if (expected == 0 || expected > m.count || expected % 32 != 0) Fault(which);
  if (barrier.arrived > 0 && barrier.expected != expected) {
    Fault(which + ", for " + std::to_string(barrier.expected) + " by another thread");
  }
  if (barrier.here[m.current->number]) Fault(which + ": came twice");
  barrier.expected = expected;
  barrier.here.set(m.current->number);
  if (++barrier.arrived < expected) return false;
  if (m.settings.finds_races) OrderWarps(*m.current->block, barrier.here);
  barrier.arrived = 0;
  barrier.here.reset();
  WakeAll(&barrier.waiting);
  return true;
}

void EndClusterBarrierIfComplete() {
  Machine& m = The();
  NamedBarrier& barrier = m.cluster_barrier;
  if (barrier.arrived == 0 || barrier.arrived + m.ended < m.count * m.blocks.size()) return;
  barrier.arrived = 0;
  WakeAll(&barrier.waiting);
}

}  // namespace

void Barrier(const char* name, int id, int threads) {
  Machine& m = The();
  NamedBarrier& barrier = m.current->block->named[id];
  // In the list before it may be complete.
  barrier.waiting.push_back(m.current);
  Come(barrier, threads == 0 ? m.count : static_cast<size_t>(threads), name);
  Wait(name, id == 0 ? -1 : id);
}

bool BarrierOr(bool value) {
  NamedBarrier& barrier = The().current->block->named[0];
  barrier.any |= value;
  Barrier("__syncthreads_or");
  const bool any = barrier.any;
  Barrier("__syncthreads_or");  // all have read it
  barrier.any = false;
  return any;
}

void ArriveNamed(int id, int threads) {
  Come(The().current->block->named[id], static_cast<size_t>(threads), "bar.arrive");
}

void SyncCluster() {
  Machine& m = The();
  m.cluster_barrier.waiting.push_back(m.current);
  ++m.cluster_barrier.arrived;
  EndClusterBarrierIfComplete();
  Wait("barrier.cluster.wait");
}

void LeaveClusterBarrier() { EndClusterBarrierIfComplete(); }

// ---- mbarriers ----

MemoryBarrier& BarrierAt(Block& block, uint32_t address, const char* name) {
  const char* const memory = SharedPointer(block, address, sizeof(uint64_t), sizeof(uint64_t), name);
  const auto found = block.barriers.find(address);
  if (found == block.barriers.end())
    Fault(std::string(name) + ": no mbarrier is initialised there" + Describe(address));
  if (std::memcmp(memory, &kMark, sizeof(kMark)) != 0)
    Fault("something has overwritten the memory" + Describe(address));
  return found->second;
}

void InitBarrier(uint64_t* barrier, int arrivals) {
  Block& block = *The().current->block;
  const uint32_t address = SharedAddress(barrier);
  char* const memory = SharedPointer(address, sizeof(uint64_t), "mbarrier.init");
  if (arrivals < 1 || arrivals > kMostArrivals) Fault(std::to_string(arrivals) + " arrivals" + Describe(address));
  if (!block.barriers.emplace(address, MemoryBarrier{arrivals, arrivals, 0, 0, {}}).second) {
    Fault("a second mbarrier.init" + Describe(address));
  }
  std::memcpy(memory, &kMark, sizeof(kMark));
}

void Arrive(uint64_t* barrier) { ArriveAt(*The().current->block, SharedAddress(barrier), "mbarrier.arrive"); }

void ArriveExpectTx(uint64_t* barrier, uint32_t bytes) {
  constexpr const char* kName = "mbarrier.arrive.expect_tx";
  Block& block = *The().current->block;
  const uint32_t address = SharedAddress(barrier);
  CountBytes(BarrierAt(block, address, kName), bytes, address);
  ArriveAt(block, address, kName);
}

void ArriveRemote(uint32_t address) {
  Block& block = BlockOf(&address);
  ArriveAt(block, address, "mbarrier.arrive.shared::cluster");
}

void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  constexpr const char* kName = "mbarrier.try_wait.parity";
  Machine& m = The();
  Block& block = *m.current->block;
  const uint32_t address = SharedAddress(barrier);
  if (parity > 1) Fault("parity " + std::to_string(parity) + Describe(address));
  // A thread that is woken looks again, as late as it goes on: a further phase may have passed it by.
  for (;;) {
    MemoryBarrier& at = BarrierAt(block, address, kName);
    if ((at.phase & 1) != parity) return;
    at.waiting.push_back(m.current);
    Wait(kName, address);
  }
}

void CompleteTransactions(Block& block, uint32_t address, int64_t bytes) {
  MemoryBarrier& barrier = BarrierAt(block, address, "mbarrier.complete_tx");
  CountBytes(barrier, -bytes, address);
  EndPhaseIfComplete(barrier, address);
}

}  // namespace emulator
