// What CUDA C++ has and C++ lacks, for kernels that the host's compiler compiles: included before everything else.
//
// Arithmetic is the host's, so that functions which are approximations on a GPU (exp2f, __expf, __fdividef) are more
// exact here.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_LANGUAGE_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_LANGUAGE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator/machine.h"

// Threads of a block share what is static, since all of them run on one thread of the host. The program has no other
// thread_local variables: thus the machine finds these, in templates, too.
#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#define BERTFUSE_KERNEL_HANDLE(kernel) ::emulator::HandleOf(kernel)

// Set whenever a thread goes on.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

template <class T>
inline T min(T a, T b) {
  return std::min(a, b);
}
template <class T>
inline T max(T a, T b) {
  return std::max(a, b);
}

inline float __uint_as_float(unsigned x) { return reinterpret_cast<const float&>(x); }
inline float __int_as_float(int x) { return reinterpret_cast<const float&>(x); }
// Selectors with the sign bit set are not used.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= (bytes >> (selectors >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline unsigned __float_as_uint(float x) { return reinterpret_cast<const unsigned&>(x); }
inline int __float_as_int(float x) { return reinterpret_cast<const int&>(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? std::min(x, 1.0f) : 0.0f; }
inline float __expf(float x) { return expf(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(uint64_t{x} * y >> 32); }
inline void __threadfence() {}

template <class T>
inline T __ldg(const T* data) {
  return *data;
}
template <class T>
inline T __ldcs(const T* data) {
  return *data;
}
template <class T>
inline void __stcg(T* data, T value) {
  *data = value;
}
template <class T>
inline void __stcs(T* data, T value) {
  *data = value;
}
template <class T>
inline T atomicAdd(T* data, T value) {
  const T before = *data;
  *data = before + value;
  return before;
}

inline void __syncthreads() { emulator::Barrier("__syncthreads"); }
inline int __syncthreads_or(int value) { return emulator::BarrierOr(value != 0); }
inline int __syncthreads_and(int value) { return !emulator::BarrierOr(value == 0); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  int nothing = 0;
  emulator::ForWarp("__syncwarp", mask, nothing, [](int* const*) {});
}

namespace emulator {

// Every lane gets source(lane)'s value, and its own where that is -1.
template <class T, class Source>
T Shuffle(const char* name, unsigned mask, T value, Source source) {
  struct Mine {
    T value, result;
    int source;
  };
  Mine mine = {value, value, source(static_cast<int>(threadIdx.x % 32))};
  ForWarp(name, mask, mine, [name](Mine* const* lanes) {
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr || lanes[i]->source < 0) continue;
      if (lanes[lanes[i]->source] == nullptr) Fault(std::string(name) + " of a lane that is not in the mask");
      lanes[i]->result = lanes[lanes[i]->source]->value;
    }
  });
  return mine.result;
}

// All lanes get the same of all lanes' values.
template <class Result, class T, class Combine>
Result Reduce(const char* name, unsigned mask, T value, Result first, Combine combine) {
  struct Mine {
    T value;
    Result result;
  };
  Mine mine = {value, first};
  ForWarp(name, mask, mine, [first, combine](Mine* const* lanes) {
    Result result = first;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) result = combine(result, lanes[i]->value, i);
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) lanes[i]->result = result;
    }
  });
  return mine.result;
}

}  // namespace emulator

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emulator::Shuffle("__shfl_sync", mask, value, [=](int lane) { return lane / width * width + source % width; });
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return emulator::Shuffle("__shfl_xor_sync", mask, value,
                           [=](int lane) { return (lane ^ bits) / width > lane / width ? -1 : lane ^ bits; });
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return emulator::Shuffle("__shfl_up_sync", mask, value, [=](int lane) {
    return lane % width < static_cast<int>(by) ? -1 : lane - static_cast<int>(by);
  });
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return emulator::Shuffle("__shfl_down_sync", mask, value, [=](int lane) {
    return lane % width + static_cast<int>(by) >= width ? -1 : lane + static_cast<int>(by);
  });
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  return emulator::Reduce("__ballot_sync", mask, value != 0, 0u,
                          [](unsigned bits, bool set, int lane) { return bits | static_cast<unsigned>(set) << lane; });
}
inline int __all_sync(unsigned mask, int value) {
  return emulator::Reduce("__all_sync", mask, value != 0, true, [](bool all, bool one, int) { return all && one; });
}
inline int __any_sync(unsigned mask, int value) {
  return emulator::Reduce("__any_sync", mask, value != 0, false, [](bool any, bool one, int) { return any || one; });
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return emulator::Reduce("__reduce_add_sync", mask, value, 0, [](int sum, int one, int) { return sum + one; });
}

#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_LANGUAGE_H_
