#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_LATE_ARRAY_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_LATE_ARRAY_H_

#include <cstring>
#include <utility>
#include <vector>

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

// The same of arrays that are filled already, for one launch.
class HiddenArrays {
 public:
  template <class T>
  void Hide(const DeviceArray<T>& array) {
    auto* bytes = reinterpret_cast<unsigned char*>(array.data());
    hidden_.emplace_back(bytes, std::vector<unsigned char>(bytes, bytes + array.size() * sizeof(T)));
    std::memset(bytes, 0xff, array.size() * sizeof(T));
  }
  void Appear() const {
    for (const auto& [to, bytes] : hidden_) std::memcpy(to, bytes.data(), bytes.size());
  }

 private:
  std::vector<std::pair<unsigned char*, std::vector<unsigned char>>> hidden_;
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
