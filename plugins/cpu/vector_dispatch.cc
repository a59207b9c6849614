#include <cstdlib>
#include <cstring>

#include "cpu/vector_loops.h"

namespace bertfuse::cpu {

extern const VectorLoops baseline;
#ifdef BERTFUSE_X86_LOOPS
extern const VectorLoops avx2;
extern const VectorLoops avx512;
extern const VectorLoops avx512vnni;
#endif

namespace {

const VectorLoops& Choose() {
#ifdef BERTFUSE_X86_LOOPS
  // For tests, and for machines whose clock drops under wide vectors: the widest instruction set to use.
  const char* limit = std::getenv("BERTFUSE_CPU_ISA");
  const bool allow_avx2 = limit == nullptr || std::strcmp(limit, "baseline") != 0;
  const bool allow_avx512 = allow_avx2 && (limit == nullptr || std::strcmp(limit, "avx2") != 0);
  const bool allow_vnni = allow_avx512 && (limit == nullptr || std::strcmp(limit, "avx512") != 0);
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  if (allow_vnni && has_avx512 && __builtin_cpu_supports("avx512vnni")) return avx512vnni;
  if (allow_avx512 && has_avx512) return avx512;
  if (allow_avx2 && has_avx2) return avx2;
#endif
  return baseline;
}

}  // namespace

const VectorLoops& Loops() {
  static const VectorLoops& loops = Choose();
  return loops;
}

}  // namespace bertfuse::cpu
