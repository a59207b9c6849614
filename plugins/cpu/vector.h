// GCC's and Clang's vector types: the vocabulary of the files that are compiled once per instruction set.
//
// Nothing there may call an inline function of another header than these, unless it is always inlined: the linker keeps
// one copy of those, and it could be the one with instructions that the machine lacks. What is here is in an unnamed
// namespace, a copy each.
#ifndef BERTFUSE_CPU_VECTOR_H_
#define BERTFUSE_CPU_VECTOR_H_

#include <cstddef>
#include <cstdint>

#if defined(__FMA__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace bertfuse::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Arithmetic per lane on any target; may alias and need not be aligned in memory.
typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t VecInt __attribute__((vector_size(kLanes * sizeof(float))));
typedef float UnalignedVec __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline Vec Load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
inline void Store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
inline Vec Splat(float value) { return value - Vec{}; }

// a b + c. Written out because GCC fuses only some of the sums in a loop: the same row would have other bits in a tile
// of other height.
inline Vec MultiplyAdd(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec Min(Vec a, Vec b) { return a < b ? a : b; }

}  // namespace
}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_H_
