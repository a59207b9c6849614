// Shared memory: addresses, bank conflicts, copies by cp.async, and the distributed one of a cluster.
#include <algorithm>
#include <cstring>

#include "emulator/hopper.h"
#include "emulator/state.h"

namespace emulator {
namespace {

constexpr int kBanks = 32, kBankBytes = 4;
// As on a GPU, whose first kilobyte is reserved: a descriptor of wgmma has 18 bits of an address.
constexpr uint32_t kDynamicBase = 1024;
constexpr uint32_t kClusterBase = 1u << 30, kClusterStep = 1u << 26;  // of a block in a DsmemAddress()

// Of the variables' addresses, which are as far off every boundary as the variables are.
uint32_t StaticBase() { return (1u << 24) + static_cast<uint32_t>(reinterpret_cast<uintptr_t>(The().statics) % 1024); }

// How many times one after the other a group of lanes accesses shared memory: 32 lanes have 4 bytes each at a time, 16
// lanes 8, 8 lanes 16.
int64_t Rounds(const Access& access, int first, int lanes, int bytes) {
  std::array<std::vector<uint32_t>, kBanks> words;
  size_t most = 1;
  for (int lane = first; lane < first + lanes; ++lane) {
    for (int byte = 0; byte < bytes; byte += kBankBytes) {
      const uint32_t word = (access.addresses[lane] + byte) / kBankBytes;
      auto& bank = words[word % kBanks];
      if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
      most = std::max(most, bank.size());
    }
  }
  return static_cast<int64_t>(most);
}

void Land(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    if (copy.global == nullptr) {
      std::memset(copy.shared, 0, copy.bytes);
    } else {
      std::memcpy(copy.shared, copy.global, copy.bytes);
    }
  }
}

}  // namespace

uint32_t SharedAddress(const void* pointer) {
  const Machine& m = The();
  const auto* at = static_cast<const char*>(pointer);
  const char* dynamic = DynamicShared();
  if (at >= dynamic && at <= dynamic + m.dynamic_bytes) return kDynamicBase + static_cast<uint32_t>(at - dynamic);
  if (at < m.statics || at >= m.statics + m.static_bytes) Fault("not an address of this block's shared memory");
  return StaticBase() + static_cast<uint32_t>(at - m.statics);
}

char* SharedPointer(Block& block, uint32_t address, size_t bytes, size_t alignment, const char* name) {
  const Machine& m = The();
  const auto fail = [&](const char* why) {
    Fault(std::string(name) + ": shared address " + std::to_string(address) + " " + why);
  };
  if (address % alignment != 0) fail("is misaligned");
  if (address >= kClusterBase) fail("is one of the cluster");
  char* at = nullptr;
  if (address >= StaticBase()) {
    at = m.statics + (address - StaticBase());
    if (address - StaticBase() + bytes > m.static_bytes) fail("is outside");
  } else {
    if (address < kDynamicBase || address - kDynamicBase + bytes > m.dynamic_bytes) fail("is outside");
    at = block.dynamic + (address - kDynamicBase);
  }
  return at;
}

char* SharedPointer(uint32_t address, size_t bytes, const char* name) {
  return SharedPointer(*The().current->block, address, bytes, bytes, name);
}

char* DynamicShared() { return The().current->block->dynamic; }

void NoteSharedAccess(uint32_t address, int bytes, SharedAccess kind) {
  Machine& m = The();
  if (m.settings.finds_races) CheckOrder(address, bytes, kind);
  Thread& thread = *m.current;
  auto& accesses = thread.warp->accesses;
  const int64_t number = thread.shared_accesses++;
  Access& access = accesses[number];
  access.addresses[thread.number % 32] = address;
  if (++access.lanes < 32) return;
  const int lanes = 32 * kBankBytes / bytes;
  for (int first = 0; first < 32; first += lanes) {
    ++m.accesses.accesses;
    m.accesses.conflicts += Rounds(access, first, lanes, bytes) - 1;
  }
  accesses.erase(number);
}

void CopyAsync(void* shared, const void* global, int bytes, bool inside) {
  char* const to = SharedPointer(SharedAddress(shared), bytes, "cp.async");
  if (inside && reinterpret_cast<uintptr_t>(global) % bytes != 0) Fault("cp.async: a misaligned global address");
  if (inside && !IsAccessible(global, bytes)) Fault("cp.async: outside of an array in global memory");
  std::memset(to, kPoison, bytes);
  ++The().copies;
  The().current->uncommitted.push_back({to, inside ? global : nullptr, bytes});
  NoteSharedAccess(SharedAddress(shared), bytes, SharedAccess::kCopy);
}

void CommitCopies() {
  Thread& thread = *The().current;
  thread.groups.push_back(std::move(thread.uncommitted));
  thread.uncommitted.clear();
}

void WaitCopies(int pending) {
  Thread& thread = *The().current;
  while (thread.groups.size() > static_cast<size_t>(pending)) {
    Land(thread.groups.front());
    for (const Copy& copy : thread.groups.front()) {
      if (The().settings.finds_races) EndCopy(SharedAddress(copy.shared), copy.bytes);
    }
    thread.groups.pop_front();
  }
}

void CheckEnd(const Thread& thread) {
  bool under_way = !thread.uncommitted.empty();
  for (const auto& group : thread.groups) under_way |= !group.empty();
  if (under_way) Fault("the thread ended without waiting for its asynchronous copies");
  if (thread.open_stores != nullptr) Fault("the thread ended without committing its bulk stores");
  for (const auto& group : thread.stores) {
    if (!group->waited_for) Fault("the thread ended without waiting until its bulk stores have read shared memory");
  }
  if (!thread.accumulators.empty()) Fault("the thread ended without waiting for its products");
}

// ---- what generic stores have written, and an asynchronous proxy may not have seen ----

void MarkStored(uint32_t address, uint32_t lanes) {
  Machine& m = The();
  Block& block = *m.current->block;
  block.unfenced[address / 16] |= lanes;
  const size_t first = block.rank * m.count + m.current->number / 32 * 32;
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) m.threads[first + lane]->unfenced.push_back(address / 16);
  }
}

void FenceAsyncProxy() {
  Thread& thread = *The().current;
  auto& unfenced = thread.block->unfenced;
  for (uint32_t chunk : thread.unfenced) {
    const auto found = unfenced.find(chunk);
    if (found == unfenced.end()) continue;
    found->second &= ~(1u << thread.number % 32);
    if (found->second == 0) unfenced.erase(found);
  }
  thread.unfenced.clear();
}

void CheckFenced(const Block& block, uint32_t address, size_t bytes, const char* name) {
  if (block.unfenced.empty()) return;
  for (uint32_t chunk = address / 16; chunk < (address + bytes + 15) / 16; ++chunk) {
    if (block.unfenced.count(chunk) != 0) {
      Fault(std::string(name) + ": reads shared address " + std::to_string(chunk * 16) +
            ", which a thread has written without fence.proxy.async since");
    }
  }
}

// ---- clusters ----

uint32_t ClusterRank() { return The().current->block->rank; }
uint32_t ClusterId() { return The().current->block->index[0] / static_cast<uint32_t>(The().blocks.size()); }

uint32_t DsmemAddress(const void* pointer, uint32_t rank) {
  if (rank >= The().blocks.size()) Fault("mapa: the cluster has no block " + std::to_string(rank));
  return kClusterBase + rank * kClusterStep + SharedAddress(pointer);
}

Block& BlockOf(uint32_t* address) {
  Machine& m = The();
  if (*address < kClusterBase) return *m.current->block;
  const uint32_t rank = (*address - kClusterBase) / kClusterStep;
  if (rank >= m.blocks.size()) Fault("no address of the cluster's shared memory");
  *address = (*address - kClusterBase) % kClusterStep;
  if (HasEnded(m.blocks[rank])) Fault("shared memory of block " + std::to_string(rank) + ", which has ended");
  return m.blocks[rank];
}

void StoreDsmem(uint32_t to, int value) {
  Block& block = BlockOf(&to);
  std::memcpy(SharedPointer(block, to, sizeof(value), sizeof(value), "st.shared::cluster"), &value, sizeof(value));
}

// Calls change(what lies there) now or later.
template <class Change>
void ChangeDsmemAsync(uint32_t to, uint32_t bytes, uint32_t barrier, const char* name, bool poisons, Change change) {
  Block& target = BlockOf(&to);
  if (&BlockOf(&barrier) != &target) Fault(std::string(name) + ": its mbarrier is in another block");
  BarrierAt(target, barrier, name);
  char* const there = SharedPointer(target, to, bytes, bytes, name);
  if (poisons) std::memset(there, kPoison, bytes);
  Begin(Async::kSharedCopy, [=, &target, who = NameOf(*The().current)] {
    if (HasEnded(target)) Fault(std::string(name) + " by " + who + " outlived the block that it writes to");
    change(there);
    CompleteTransactions(target, barrier, bytes);
  });
}

void StoreToDsmemAsync(uint32_t to, const void* value, uint32_t bytes, uint32_t barrier) {
  const std::string stored(static_cast<const char*>(value), bytes);
  ChangeDsmemAsync(to, bytes, barrier, "st.async", true,
                   [stored](char* there) { std::memcpy(there, stored.data(), stored.size()); });
}

void MaxInDsmemAsync(uint32_t to, uint32_t value, uint32_t barrier) {
  ChangeDsmemAsync(to, sizeof(value), barrier, "red.async", false, [value](char* there) {
    uint32_t* const word = reinterpret_cast<uint32_t*>(there);
    *word = std::max(*word, value);
  });
}

void CopyToDsmem(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  constexpr const char* kName = "cp.async.bulk.shared::cluster";
  if (bytes % 16 != 0) Fault(std::string(kName) + " of " + std::to_string(bytes) + " bytes");
  Block &source = *The().current->block, &target = BlockOf(&to);
  if (&BlockOf(&barrier) != &target) Fault(std::string(kName) + ": its mbarrier is in another block");
  BarrierAt(target, barrier, kName);
  const char* const read = SharedPointer(source, SharedAddress(from), bytes, 16, kName);
  char* const written = SharedPointer(target, to, bytes, 16, kName);
  CheckFenced(source, SharedAddress(from), bytes, kName);
  std::memset(written, kPoison, bytes);
  Begin(Async::kSharedCopy, [=, &source, &target, who = NameOf(*The().current)] {
    if (HasEnded(source) || HasEnded(target)) Fault(std::string(kName) + " by " + who + " outlived a block");
    std::memcpy(written, read, bytes);
    CompleteTransactions(target, barrier, bytes);
  });
}

}  // namespace emulator
