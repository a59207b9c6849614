#include "emulator/machine.h"

#include <link.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "emulator/hopper.h"
#include "emulator/state.h"

// What a thread that ends by a fault has allocated is lost.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "detect_leaks=0"; }

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

void RunThread() {
  Machine& m = The();
  m.kernel->call(m.kernel->function, m.arguments);
  Thread& thread = *The().current;
  CheckEnd(thread);
  thread.ended = true;
  ++thread.block->ended;
  ++m.ended;
  LeaveClusterBarrier();
  thread.fiber->Leave();
}

// The program's thread_local variables (language.h); the program is the first of the loaded files.
int FindStatics(dl_phdr_info* file, size_t, void*) {
  Machine& m = The();
  for (int i = 0; i < file->dlpi_phnum; ++i) {
    if (file->dlpi_phdr[i].p_type != PT_TLS) continue;
    m.statics = static_cast<char*>(file->dlpi_tls_data);
    m.static_bytes = file->dlpi_phdr[i].p_memsz;
  }
  return 1;
}

void StartBlock(Block& block) {
  Machine& m = The();
  block.warps.resize((m.count + 31) / 32);
  block.warpgroups.resize((m.count + 127) / 128);
  // Of its warps alone, or first of all of its block: whole blocks of a cluster may run ahead, too.
  const uint64_t of_block = m.blocks_run_ahead ? m.Random() << 32 : 0;
  for (Warp& warp : block.warps) warp.priority = of_block + (m.Random() >> 32);
  if (m.dynamic_bytes > 0) std::memset(block.dynamic, kPoison, m.dynamic_bytes);
  for (unsigned i = 0; i < m.count; ++i) {
    auto& slot = m.threads[block.rank * m.count + i];
    if (slot == nullptr) slot = std::make_unique<Thread>();
    Thread& thread = *slot;
    auto fiber = std::move(thread.fiber);
    if (fiber == nullptr) fiber = std::make_unique<Fiber>();
    thread = Thread();
    thread.fiber = std::move(fiber);
    thread.block = &block, thread.warp = &block.warps[i / 32], thread.number = i;
    thread.fiber->Start(RunThread);
    Wake(&thread);
  }
}

// Starts all blocks of a cluster, and runs them until all have ended.
bool RunCluster(dim3 block) {
  Machine& m = The();
  m.ended = 0;
  m.ready.clear(), m.pending.clear(), m.waiting_for_dependencies.clear();
  m.cluster_barrier = {};
  m.blocks_run_ahead = m.Below(2) == 0;
  m.some_run_ahead = m.Below(2) == 0;
  for (Pace& pace : m.paces) pace = static_cast<Pace>(m.Below(3));
  for (uint64_t& turn : m.turns) turn = m.Random();
  std::memset(m.statics, kPoison, m.static_bytes);
  if (m.threads.size() < m.count * m.blocks.size()) m.threads.resize(m.count * m.blocks.size());
  for (Block& one : m.blocks) StartBlock(one);
  try {
    if (!m.dependencies_ended) {
      Begin(Async::kDependencies, [] {
        Machine& m = The();
        m.dependencies_ended = true;
        if (m.settings.dependencies_end) m.settings.dependencies_end();
        WakeAll(&m.waiting_for_dependencies);
      });
    }
    while (Thread* const thread = Next()) {
      m.current = thread;
      const unsigned i = thread->number;
      threadIdx = {i % block.x, i / block.x % block.y, i / block.x / block.y};
      blockIdx = {thread->block->index[0], thread->block->index[1], thread->block->index[2]};
      thread->fiber->Resume();
      if (!m.fault.empty()) return false;
    }
  } catch (const Failed&) {
    return false;
  }
  if (m.ended == m.count * m.blocks.size()) return CheckBarriersAtEnd();
  m.fault = Where() + ", block " + std::to_string(m.blocks[0].index[0]) + ": " + WhoWaits();
  return false;
}

}  // namespace

Machine& The() {
  static Machine& machine = *new Machine;
  return machine;
}

bool HasEnded(const Block& block) { return block.ended == The().count; }

Settings& TheSettings() { return The().settings; }
SharedAccesses TakeSharedAccesses() { return std::exchange(The().accesses, {}); }
int64_t TakeCopies() { return std::exchange(The().copies, 0); }
bool TakeEarlyDependents() { return std::exchange(The().dependents_began_early, false); }

void WaitForDependencies() {
  Machine& m = The();
  while (!m.dependencies_ended) {
    m.waiting_for_dependencies.push_back(m.current);
    Wait("griddepcontrol.wait");
  }
}

void LaunchDependents() { The().dependents_began_early |= !The().dependencies_ended; }

void MeetWarp(const char* name, uint32_t mask, void* mine, void (*run)(void* context, Lanes lanes), void* context) {
  Machine& m = The();
  const unsigned lane = m.current->number % 32;
  if ((mask >> lane & 1) == 0) Fault(std::string(name) + " by a lane that is not in its mask");
  auto& meetings = m.current->warp->meetings;
  auto meeting =
      std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& at) { return (at.mask & mask) != 0; });
  if (meeting == meetings.end()) meeting = meetings.insert(meeting, {name, mask, 0, {}});
  if (meeting->mask != mask || std::strcmp(meeting->name, name) != 0) {
    Fault(std::string(name) + " by one lane of a warp, " + meeting->name + " by another");
  }
  meeting->here |= 1u << lane;
  meeting->lanes[lane] = mine;
  if (meeting->here == mask) {
    const Meeting met = *meeting;
    meetings.erase(meeting);
    run(context, met.lanes.data());
    const size_t first = m.current->block->rank * m.count + m.current->number - lane;
    for (unsigned other = 0; other < 32; ++other) {
      if (mask >> other & 1) Wake(m.threads[first + other].get());
    }
  }
  Wait(name);
}

const void* Register(const void* function, Call call) {
  return &The().kernels.try_emplace(function, Kernel{function, call}).first->second;
}

bool RunGrid(const void* handle, dim3 grid, dim3 block, unsigned cluster, bool overlaps, size_t dynamic_bytes,
             void** arguments) {
  Machine& m = The();
  ReportWhereFaultsAre();
  dl_iterate_phdr(FindStatics, nullptr);
  m.fault.clear();
  m.random = m.settings.seed;
  m.kernel = static_cast<const Kernel*>(handle);
  m.arguments = arguments;
  m.dynamic_bytes = dynamic_bytes;
  m.count = block.x * block.y * block.z;
  m.dependencies_ended = !overlaps;
  if (!overlaps && m.settings.dependencies_end) m.settings.dependencies_end();
  gridDim = grid, blockDim = block;
  std::vector<char*> dynamic(cluster);
  for (char*& memory : dynamic) {
    memory = static_cast<char*>(operator new(std::max<size_t>(dynamic_bytes, 1), std::align_val_t(1024)));
  }
  const size_t clusters = size_t{grid.x} * grid.y * grid.z / cluster;
  std::vector<size_t> order(clusters);
  for (size_t i = 0; i < clusters; ++i) {
    order[i] = i;
    std::swap(order[i], order[m.Below(i + 1)]);
  }
  bool good = true;
  for (size_t i = 0; i < clusters && good; ++i) {
    m.blocks = std::vector<Block>(cluster);
    for (unsigned rank = 0; rank < cluster; ++rank) {
      const size_t at = order[i] * cluster + rank;
      Block& one = m.blocks[rank];
      one.rank = rank, one.dynamic = dynamic[rank];
      one.index[0] = static_cast<unsigned>(at % grid.x), one.index[1] = static_cast<unsigned>(at / grid.x % grid.y);
      one.index[2] = static_cast<unsigned>(at / grid.x / grid.y);
    }
    good = RunCluster(block);
  }
  for (char* memory : dynamic) operator delete(memory, std::align_val_t(1024));
  m.blocks.clear();
  m.dynamic_bytes = 0, m.current = nullptr;
  return good;
}

}  // namespace emulator
