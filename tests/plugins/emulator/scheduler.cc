// Which thread goes on, and what goes on without one.
#include <utility>

#include "emulator/state.h"

namespace emulator {
namespace {

// One of those under way. While threads can go on, those whose pace is kLast wait; after that, kinds come in an order
// that was drawn, so that one may outlast all others. False if there is none to run.
bool RunSomethingPending(bool threads_wait) {
  Machine& m = The();
  size_t best = m.Below(m.pending.size());
  const auto turn = [&](size_t i) { return m.turns[static_cast<int>(m.pending[i].first)]; };
  const auto is_last = [&](size_t i) { return m.paces[static_cast<int>(m.pending[i].first)] == Pace::kLast; };
  if (!threads_wait && is_last(best)) return false;
  for (size_t i = 0; threads_wait && i < m.pending.size(); ++i) {
    if (turn(i) < turn(best)) best = i;
  }
  std::swap(m.pending[best], m.pending.back());
  const auto run = std::move(m.pending.back().second);
  m.pending.pop_back();
  run();
  return true;
}

}  // namespace

// Of any warp, or of the one with the highest priority. Priorities change now and then.
Thread* Next() {
  Machine& m = The();
  m.current = nullptr;
  while (!m.pending.empty() && (m.ready.empty() || m.Below(8) == 0)) {
    if (!RunSomethingPending(m.ready.empty())) break;
  }
  if (m.ready.empty()) return nullptr;
  size_t best = m.Below(m.ready.size());
  if (m.some_run_ahead) {
    if (m.Below(4096) == 0) m.ready[best]->priority = m.Random() >> (m.blocks_run_ahead ? 0 : 32);
    for (size_t i = 0; i < m.ready.size(); ++i) {
      if (m.ready[i]->priority > m.ready[best]->priority) best = i;
    }
  }
  auto& threads = m.ready[best]->ready;
  std::swap(threads[m.Below(threads.size())], threads.back());
  Thread* const thread = threads.back();
  threads.pop_back();
  if (threads.empty()) {
    std::swap(m.ready[best], m.ready.back());
    m.ready.pop_back();
  }
  return thread;
}

void Wait(const char* name, int64_t at) {
  Thread& thread = *The().current;
  thread.waits_for = name, thread.waits_at = at;
  thread.fiber->Suspend();
}

void Wake(Thread* thread) {
  thread->waits_for = nullptr;
  if (thread->warp->ready.empty()) The().ready.push_back(thread->warp);
  thread->warp->ready.push_back(thread);
}

void WakeAll(std::vector<Thread*>* threads) {
  for (Thread* thread : *threads) Wake(thread);
  threads->clear();
}

void Begin(Async kind, std::function<void()> what) {
  Machine& m = The();
  if (m.paces[static_cast<int>(kind)] == Pace::kAtOnce) return what();
  m.pending.emplace_back(kind, std::move(what));
}

}  // namespace emulator
