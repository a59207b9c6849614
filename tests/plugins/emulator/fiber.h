// Stacks that take turns on one thread of the host (x86-64). AddressSanitizer is told of every change.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_FIBER_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_FIBER_H_

#include <cstddef>

namespace emulator {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares to call entry(), which never returns: it calls Leave() last. Whatever ran on the stack is forgotten.
  void Start(void (*entry)());
  // Called outside: goes on in the fiber until it calls Suspend() or Leave().
  void Resume();
  // Called in the fiber.
  void Suspend();
  [[noreturn]] void Leave();

 private:
  char* stack_;
  void* at_ = nullptr;
};

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_FIBER_H_
