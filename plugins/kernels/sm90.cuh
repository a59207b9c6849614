// Hopper's own instructions: transaction barriers, bulk tensor copies, clusters, warpgroup matrix products.
// The wgmma wrappers are CUTLASS's; everything else is short enough to stand here.
#ifndef BERTFUSE_KERNELS_SM90_CUH_
#define BERTFUSE_KERNELS_SM90_CUH_

#include <cuda.h>

#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "kernels/async_copy.cuh"
#include "kernels/elements.cuh"

namespace bertfuse::kernels {

// ---- barriers in shared memory ----

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster. (Elsewhere too no access to a barrier says
// .cluster: acquire and release at that scope compile to fences of the whole device, half a microsecond for each
// stage.)
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ArriveExpecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void ArriveAtOwn(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// The address of this block's `pointer` in block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterAddress(const void* pointer, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(SharedAddress(pointer)), "r"(rank));
  return address;
}

// At a barrier anywhere in the cluster, given its ClusterAddress.
__device__ __forceinline__ void ArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "WAIT:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra DONE;\n\t"
      "bra WAIT;\n"
      "DONE:\n\t}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// Copies shared memory into another block of the cluster and counts the bytes towards that block's barrier. (One
// st.async a value would do the same, but every one of them is an update of the barrier.)
__device__ __forceinline__ void CopyToBlock(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(SharedAddress(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

// A barrier of the 128 threads of a warpgroup.
__device__ __forceinline__ void SyncWarpgroup(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// A position in a ring of stages: which stage, and the parity of the round, which its barriers are waited for with.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void Advance(int count) {
    stage += count;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

// ---- clusters ----

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for every thread of the cluster. Orders no memory accesses: with release it would wait for all of the block's
// stores to reach the L2 cache.
__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// ---- bulk tensor copies ----

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void LoadTile2d(void* shared, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(SharedAddress(barrier))
      : "memory");
}

// The same tile into the same place of every block in `blocks` (a bit for each rank).
__device__ __forceinline__ void LoadTile2dMulticast(void* shared, const CUtensorMap* map, int x, int y,
                                                    uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], "
      "[%4], %5;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}

// A box of a map whose rows are dealt out (tensor_map.h), from row 32 x `group` on.
__device__ __forceinline__ void LoadDealtRows(void* shared, const CUtensorMap* map, int x, int group,
                                              uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %4, %4, %4, %3}], "
      "[%5];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(group), "r"(0), "r"(SharedAddress(barrier))
      : "memory");
}

__device__ __forceinline__ void LoadDealtRowsMulticast(void* shared, const CUtensorMap* map, int x, int group,
                                                       uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%4, %4, %4, %3}], [%5], %6;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(group), "r"(0), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void StoreTile2d(const CUtensorMap* map, const void* shared, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"(SharedAddress(shared))
               : "memory");
}

__device__ __forceinline__ void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups still read shared memory.
template <int kPending>
__device__ __forceinline__ void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Before the copy engine or the tensor cores read what this thread stored to shared memory.
__device__ __forceinline__ void FenceSharedForAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Byte offset of an element in a tile that the copy engine swizzles; `pitch` is the row's 32, 64 or 128 bytes.
template <int kPitch>
__device__ __forceinline__ uint32_t Swizzled(uint32_t row, uint32_t byte) {
  constexpr uint32_t kMask = kPitch / 16 - 1;
  const uint32_t offset = row * kPitch + byte;
  return offset ^ ((offset >> 7 & kMask) << 4);
}

// ---- registers ----

template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- warpgroup matrix products: d[64 x kN] += a[64 x 16] * b[kN x 16] transposed ----

namespace gmma = cute::SM90::GMMA;

template <class T, int kN>
struct WgmmaOp;
#define BERTFUSE_WGMMA(N)                                                                       \
  template <>                                                                                   \
  struct WgmmaOp<__half, N> {                                                                   \
    using SS = gmma::MMA_64x##N##x16_F32F16F16_SS<gmma::Major::K, gmma::Major::K>;              \
    using RS = gmma::MMA_64x##N##x16_F32F16F16_RS<gmma::Major::K, gmma::Major::K>;              \
    using RSTransposed = gmma::MMA_64x##N##x16_F32F16F16_RS<gmma::Major::K, gmma::Major::MN>;   \
  };                                                                                            \
  template <>                                                                                   \
  struct WgmmaOp<__nv_bfloat16, N> {                                                            \
    using SS = gmma::MMA_64x##N##x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;            \
    using RS = gmma::MMA_64x##N##x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::K>;            \
    using RSTransposed = gmma::MMA_64x##N##x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN>; \
  };
BERTFUSE_WGMMA(32)
BERTFUSE_WGMMA(64)
BERTFUSE_WGMMA(96)
BERTFUSE_WGMMA(128)
BERTFUSE_WGMMA(192)
#undef BERTFUSE_WGMMA

// Descriptor of a tile whose rows are 128 bytes (64 elements), swizzled, on a 1024-byte boundary: 8 rows every 1024
// bytes.
__device__ __forceinline__ uint64_t TileDescriptor(const void* shared) {
  return static_cast<uint64_t>(SharedAddress(shared) >> 4) | static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

template <class Op, size_t... kIndex>
__device__ __forceinline__ void CallSs(uint64_t a, uint64_t b, float* d, bool accumulate,
                                       std::index_sequence<kIndex...>) {
  Op::fma(a, b, d[kIndex]..., accumulate ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

template <class T, int kN>
__device__ __forceinline__ void WgmmaSs(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  CallSs<typename WgmmaOp<T, kN>::SS>(a, b, d, accumulate, std::make_index_sequence<kN / 2>());
}

template <class Op, size_t... kIndex>
__device__ __forceinline__ void CallRs(const uint32_t (&a)[4], uint64_t b, float* d, bool accumulate,
                                       std::index_sequence<kIndex...>) {
  Op::fma(a[0], a[1], a[2], a[3], b, d[kIndex]..., accumulate ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

template <class Op, int kCount>
__device__ __forceinline__ void WgmmaRs(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  CallRs<Op>(a, b, d, accumulate, std::make_index_sequence<kCount>());
}

__device__ __forceinline__ void BeginWgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitWgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WaitWgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to registers that a product under way reads or writes.
template <int kCount>
__device__ __forceinline__ void FenceRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_CUH_
