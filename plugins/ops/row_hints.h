// How many rows were real the last time that a batch of a size was packed: what a host that never waits for its device
// goes by when it chooses a tactic for packed rows.
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

  // Where Encode(room, count) is to be written, for batches with room for so many rows; null without memory.
  volatile uint64_t* Slot(int64_t room) const;

  // The last count that was written for that room; `room` itself where there is none.
  int64_t Expected(int64_t room) const;

  // Kernels write the same: the room above, the count below.
  static uint64_t Encode(int64_t room, int64_t count) {
    return static_cast<uint64_t>(room) << 32 | static_cast<uint32_t>(count);
  }

 private:
  volatile uint64_t* slots_;
};

// What a measured tactic of packed rows is looked up by: the number rounded up to the next of eight between powers of
// two. Nearly equal batches then share what was measured.
int64_t RoundedRows(int64_t expected);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_ROW_HINTS_H_
