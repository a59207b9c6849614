#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_LATE_ARRAY_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_LATE_ARRAY_H_

#include <cstring>

#include "emulator/random_data.h"

namespace emulator {

// What a kernel reads that an earlier one may still be writing is NaNs until that ends.
template <class T>
class LateArray {
 public:
  explicit LateArray(size_t count) : array(count), values_(count) {}
  void Fill(Random* random, double deviation) { random->Fill(values_, deviation); }
  void Appear() const { std::memcpy(static_cast<void*>(array.data()), values_.data(), values_.size() * sizeof(T)); }
  double operator[](size_t i) const { return bertfuse::kernels::ToFloat(values_[i]); }
  T* values() const { return values_.data(); }
  const DeviceArray<T> array;

 private:
  DeviceArray<T> values_;
};

// Whether anything has been written to an array that was NaNs.
template <class T>
bool IsWritten(const DeviceArray<T>& array) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(array.data());
  for (size_t i = 0; i < array.size() * sizeof(T); ++i) {
    if (bytes[i] != 0xff) return true;
  }
  return false;
}

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_LATE_ARRAY_H_
