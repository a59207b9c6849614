// Backends: families of kernels that compute the same ops, each for some architectures. A device may run several.
#ifndef BERTFUSE_KERNELS_BACKEND_H_
#define BERTFUSE_KERNELS_BACKEND_H_

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <climits>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/device.h"

namespace bertfuse::kernels {

// In the order of kBackends.
enum class Backend : int { kSm90, kCublasLt, kMma, kSimt, kGemv };

#ifdef BERTFUSE_WITH_SM90
inline constexpr bool kSm90IsBuilt = true;
#else
inline constexpr bool kSm90IsBuilt = false;
#endif

struct BackendFacts {
  Backend backend;
  const char* name;  // as tactics have it
  bool is_built;
  int least, most;  // compute capabilities that it runs on
};

// The fastest first.
inline constexpr BackendFacts kBackends[] = {
    {Backend::kSm90, "sm90", kSm90IsBuilt, 90, 90},      // sm90/: wgmma, TMA, clusters
    {Backend::kCublasLt, "cublaslt", true, 0, INT_MAX},  // cublaslt/: NVIDIA's products, where the process has them
    {Backend::kMma, "mma", true, 75, INT_MAX},           // mma/: tensor cores since 8.0, of float16 since 7.5
    {Backend::kSimt, "simt", true, 0, INT_MAX},          // portable/: float32 arithmetic, any size and alignment
    {Backend::kGemv, "gemv", true, 0, INT_MAX},          // gemv/: products of a few rows, not chosen by itself
};

constexpr const BackendFacts& FactsOf(Backend backend) { return kBackends[static_cast<int>(backend)]; }

// Before it tensor cores multiply float16 alone, and there is no cp.async. 8-bit floats come later.
inline constexpr int kFirstWithAllMmaTypes = 80;
inline constexpr int kFirstWithFp8Mma = 89;

// Whether the device's tensor cores multiply T by mma.sync.
template <class T>
bool HasMmaOf(const Device& device) {
  if (std::is_same_v<T, __nv_fp8_e4m3>) return device.compute_capability >= kFirstWithFp8Mma;
  return device.compute_capability >= kFirstWithAllMmaTypes || std::is_same_v<T, __half>;
}

inline bool RunsOn(Backend backend, const Device& device) {
  const BackendFacts& facts = FactsOf(backend);
  return facts.is_built && device.compute_capability >= facts.least && device.compute_capability <= facts.most;
}

class BackendSet {
 public:
  constexpr BackendSet() = default;
  constexpr BackendSet(std::initializer_list<Backend> backends) {
    for (Backend backend : backends) Add(backend);
  }
  constexpr void Add(Backend backend) { bits_ |= Bit(backend); }
  constexpr void Remove(Backend backend) { bits_ &= ~Bit(backend); }
  constexpr bool Has(Backend backend) const { return (bits_ & Bit(backend)) != 0; }
  constexpr bool operator==(const BackendSet& other) const { return bits_ == other.bits_; }

 private:
  static constexpr uint32_t Bit(Backend backend) { return uint32_t{1} << static_cast<int>(backend); }
  uint32_t bits_ = 0;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_BACKEND_H_
