// Whether barriers order what warps do with shared memory, whatever order they happen to come in
// (Settings::finds_races).
#include <algorithm>

#include "emulator/state.h"

namespace emulator {
namespace {

constexpr uint32_t kWordBytes = 4;

template <class Visit>
void ForWords(uint32_t address, int bytes, Visit&& visit) {
  for (uint32_t word = address / kWordBytes; word < (address + bytes + kWordBytes - 1) / kWordBytes; ++word) {
    visit(word, The().current->block->order.words[word]);
  }
}

int WarpOf(const Thread& thread) { return static_cast<int>(thread.number / 32); }

[[noreturn]] void FaultOfRace(uint32_t word, const char* access, const char* other, int warp) {
  Fault("no barrier orders its " + std::string(access) + " shared address " + std::to_string(word * kWordBytes) +
        " behind warp " + std::to_string(warp) + "'s " + other);
}

}  // namespace

void CheckOrder(uint32_t address, int bytes, SharedAccess access) {
  const int warp = WarpOf(*The().current);
  const auto& before = The().current->block->order.time[warp];
  const char* const name = access == SharedAccess::kLoad    ? "load from"
                           : access == SharedAccess::kStore ? "store to"
                                                            : "copy to";
  ForWords(address, bytes, [&](uint32_t number, Order::Word& word) {
    if (word.copier >= 0) FaultOfRace(number, name, "copy, which is under way", word.copier);
    if (word.writer >= 0 && before[word.writer] < word.written) FaultOfRace(number, name, "write", word.writer);
    if (access == SharedAccess::kLoad) {
      word.read[warp] = before[warp];
      return;
    }
    for (unsigned other = 0; other < kMaxWarps; ++other) {
      if (before[other] < word.read[other]) FaultOfRace(number, name, "load", static_cast<int>(other));
    }
    if (access == SharedAccess::kCopy) {
      word.copier = warp;
    } else {
      word.writer = warp, word.written = before[warp];
    }
  });
}

void EndCopy(uint32_t address, int bytes) {
  const int warp = WarpOf(*The().current);
  ForWords(address, bytes, [&](uint32_t, Order::Word& word) {
    word.copier = -1, word.writer = warp;
    word.written = The().current->block->order.time[warp][warp];
  });
}

void OrderWarps(Block& block, const std::bitset<1024>& threads) {
  std::array<uint32_t, kMaxWarps> latest = {};
  const auto for_warps = [&](auto&& visit) {
    for (unsigned warp = 0; warp < kMaxWarps; ++warp) {
      if (threads[32 * warp]) visit(warp, block.order.time[warp]);
    }
  };
  for_warps([&](unsigned, const auto& time) {
    for (unsigned i = 0; i < kMaxWarps; ++i) latest[i] = std::max(latest[i], time[i]);
  });
  for_warps([&](unsigned warp, auto& time) { time = latest, ++time[warp]; });
}

}  // namespace emulator
