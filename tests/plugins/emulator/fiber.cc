#include "emulator/fiber.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

// Saves what a function must preserve, stores the stack pointer at *from, and goes on where `to` was stored.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

namespace emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10, kGuardBytes = 4 << 10;

void* main_at = nullptr;
void* main_fake_stack = nullptr;
const void* main_bottom = nullptr;
size_t main_bytes = 0;
void (*starting)() = nullptr;

// Where a new fiber begins.
void Begin() {
  __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_bytes);
  starting();
  std::abort();  // it should have left
}

}  // namespace

Fiber::Fiber() {
  void* const memory =
      mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  stack_ = static_cast<char*>(memory) + kGuardBytes;
}

Fiber::~Fiber() {
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::Start(void (*entry)()) {
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
  // Six registers, and the address to return to, above which the stack pointer is off 16 bytes by 8, as in any
  // function.
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + kStackBytes - 64);
  top[0] = reinterpret_cast<uintptr_t>(&Begin);
  for (int i = 1; i <= 6; ++i) top[-i] = 0;
  at_ = top - 6;
  starting = entry;
}

void Fiber::Resume() {
  __sanitizer_start_switch_fiber(&main_fake_stack, stack_, kStackBytes);
  emulator_switch(&main_at, at_);
  __sanitizer_finish_switch_fiber(main_fake_stack, nullptr, nullptr);
}

void Fiber::Suspend() {
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, main_bottom, main_bytes);
  emulator_switch(&at_, main_at);
  __sanitizer_finish_switch_fiber(fake_stack, &main_bottom, &main_bytes);
}

void Fiber::Leave() {
  __sanitizer_start_switch_fiber(nullptr, main_bottom, main_bytes);
  emulator_switch(&at_, main_at);
  std::abort();  // nobody resumes it
}

}  // namespace emulator
