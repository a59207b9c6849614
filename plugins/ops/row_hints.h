// How many rows were real the last time that a batch of some size was packed. The host, which never waits for the
// device, chooses tactics for packed rows by it.
#ifndef BERTFUSE_OPS_ROW_HINTS_H_
#define BERTFUSE_OPS_ROW_HINTS_H_

#include <cstddef>
#include <cstdint>

namespace bertfuse::cuda {

// A table over memory that host and device share, one number for each slot. Sizes that share a slot overwrite each
// other, and an answer is never that of another size.
class RowHints {
 public:
  static constexpr size_t kSlots = 4096;
  static constexpr size_t kBytes = kSlots * sizeof(uint64_t);

  // `slots`: kBytes of zeros; null: nothing is known of any size.
  explicit RowHints(volatile uint64_t* slots) : slots_(slots) {}

  // Where Encode(capacity, count) is to be written, for tensors with that row capacity; null without memory.
  volatile uint64_t* Slot(int64_t capacity) const;

  // The last count that was written for that capacity; `capacity` itself where there is none.
  int64_t Expected(int64_t capacity) const;

  // Kernels write the same: the capacity above, the count below.
  static uint64_t Encode(int64_t capacity, int64_t count) {
    return static_cast<uint64_t>(capacity) << 32 | static_cast<uint32_t>(count);
  }

 private:
  volatile uint64_t* slots_;
};

// Rounded up to one of `steps` between powers of two, a power of two themselves, so that nearly equal batches of packed
// rows share what is known of that number: by default a measured tactic.
int64_t RoundedRows(int64_t expected, int64_t steps = 8);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_ROW_HINTS_H_
