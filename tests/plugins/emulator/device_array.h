// Tensors of the emulator's tests.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_DEVICE_ARRAY_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_DEVICE_ARRAY_H_

#include <cstddef>
#include <cstring>
#include <new>

namespace emulator {

// Global memory of exactly `count` elements, the first of them `offset` elements behind a 256-byte boundary. All bits
// are set: NaNs. AddressSanitizer guards both ends.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count, size_t offset = 0)
      : count_(count),
        offset_(offset),
        memory_(static_cast<T*>(operator new((count + offset) * sizeof(T), std::align_val_t(256)))) {
    std::memset(static_cast<void*>(memory_), 0xff, (count + offset) * sizeof(T));
  }
  ~DeviceArray() { operator delete(memory_, std::align_val_t(256)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return memory_ + offset_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + count_; }

 private:
  size_t count_, offset_;
  T* memory_;
};

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_DEVICE_ARRAY_H_
