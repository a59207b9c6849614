#include "ops/row_hints.h"

#include <algorithm>

namespace bertfuse::cuda {

volatile uint64_t* RowHints::Slot(int64_t capacity) const {
  if (slots_ == nullptr || capacity <= 0 || capacity > INT32_MAX) return nullptr;
  // Fibonacci hashing: capacities are mostly products of small numbers.
  const uint64_t hash = static_cast<uint64_t>(capacity) * 0x9e3779b97f4a7c15u;
  return slots_ + (hash >> 52);
}

int64_t RowHints::Expected(int64_t capacity) const {
  static_assert(kSlots == size_t{1} << 12);
  volatile uint64_t* slot = Slot(capacity);
  if (slot == nullptr) return capacity;
  const uint64_t read = *slot;  // at once: the device may be writing
  const auto count = static_cast<int64_t>(static_cast<uint32_t>(read));
  return static_cast<int64_t>(read >> 32) == capacity ? std::clamp<int64_t>(count, 1, capacity) : capacity;
}

int64_t RoundedRows(int64_t expected, int64_t steps) {
  int64_t step = 1;
  while (step * 2 * steps <= expected) step *= 2;
  return (expected + step - 1) / step * step;
}

}  // namespace bertfuse::cuda
