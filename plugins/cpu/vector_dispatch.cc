#include <cstdlib>
#include <cstring>

#include "cpu/vector_loops.h"

#ifdef BERTFUSE_AMX_LOOPS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace bertfuse::cpu {

extern const VectorLoops baseline;
#ifdef BERTFUSE_X86_LOOPS
extern const VectorLoops avx2;
extern const VectorLoops avx512;
extern const VectorLoops avx512vnni;
#endif
#ifdef BERTFUSE_AMX_LOOPS
extern const VectorLoops amx;
#endif

namespace {

#ifdef BERTFUSE_AMX_LOOPS
// Whether the processor has AMX for int8, and Linux lets this process use it, which has to be asked for.
bool HasAmx() {
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr int kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}
#endif

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
  const bool has_vnni = allow_vnni && has_avx512 && __builtin_cpu_supports("avx512vnni");
#ifdef BERTFUSE_AMX_LOOPS
  const bool allow_amx = limit == nullptr || std::strcmp(limit, "avx512vnni") != 0;
  if (allow_amx && has_vnni && HasAmx()) return amx;
#endif
  if (has_vnni) return avx512vnni;
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
