// What is said about faults.
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#include <cstdio>
#include <utility>

#include "emulator/state.h"

namespace emulator {
namespace {

// AddressSanitizer's reports do not know what a fiber is.
void SayWhere(const char*) { std::fprintf(stderr, "In the emulator: %s\n", Where().c_str()); }

}  // namespace

std::string Where() {
  const Machine& m = The();
  char name[256] = "no kernel";
  if (m.kernel != nullptr) {  // the address behind that of a call, which is what is looked up, is one more
    auto* const inside = static_cast<char*>(const_cast<void*>(m.kernel->function)) + 1;
    __sanitizer_symbolize_pc(inside, "%f", name, sizeof(name));
  }
  if (m.current == nullptr) return name;
  return std::string(name) + ", " + NameOf(*m.current);
}

std::string NameOf(const Thread& thread) {
  const unsigned* index = thread.block->index;
  return "block " + std::to_string(index[0]) + " " + std::to_string(index[1]) + " " + std::to_string(index[2]) +
         ", thread " + std::to_string(thread.number);
}

std::string WhoWaits() {
  std::map<std::string, int> waiting;
  Machine& m = The();
  for (size_t i = 0; i < m.count * m.blocks.size(); ++i) {
    const Thread& thread = *m.threads[i];
    if (thread.ended) continue;
    std::string name = thread.waits_for;
    if (thread.waits_at >= 0) name += " " + std::to_string(thread.waits_at);
    const auto barrier = thread.block->barriers.find(static_cast<uint32_t>(thread.waits_at));
    if (name.rfind("mbarrier", 0) == 0 && barrier != thread.block->barriers.end()) {
      name += " (phase " + std::to_string(barrier->second.phase) + ", lacks " +
              std::to_string(barrier->second.pending) + " arrivals and " + std::to_string(barrier->second.bytes) +
              " bytes)";
    }
    if (m.blocks.size() > 1) name += " in block " + std::to_string(thread.block->rank) + " of the cluster";
    ++waiting[name];
  }
  std::string text;
  for (const auto& [name, threads] : waiting) {
    text += (text.empty() ? "" : ", ") + std::to_string(threads) + " threads wait at " + name;
  }
  return text + ", " + std::to_string(m.ended) + " have ended";
}

bool CheckBarriersAtEnd() {
  Machine& m = The();
  for (const Block& block : m.blocks) {
    for (const auto& [address, barrier] : block.barriers) {
      if (barrier.bytes == 0) continue;
      m.fault = Where() + ", block " + std::to_string(block.index[0]) + ": ended when the mbarrier at shared address " +
                std::to_string(address) + " lacked " + std::to_string(barrier.bytes) + " bytes";
      return false;
    }
  }
  return true;
}

std::string TakeFault() { return std::exchange(The().fault, {}); }

void Fault(const std::string& what) {
  Machine& m = The();
  m.fault = Where() + ": " + what;
  if (m.current == nullptr) throw Failed();
  m.current->fiber->Leave();
}

bool IsAccessible(const void* pointer, size_t bytes) {
  return __asan_region_is_poisoned(const_cast<void*>(pointer), bytes) == nullptr;
}

void ReportWhereFaultsAre() { __asan_set_error_report_callback(SayWhere); }

}  // namespace emulator
