// Thread block clusters of Hopper, and their distributed shared memory (DSMEM).
#ifndef BERTFUSE_KERNELS_SM90_PTX_CLUSTER_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_CLUSTER_CUH_

#include <cstdint>

#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The cluster's number in the grid: the block's, where the launch has no clusters.
__device__ __forceinline__ uint32_t ClusterId() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}

// Waits for every thread of the cluster. Orders no memory accesses: with release it would wait for all of the block's
// stores to reach the L2 cache.
__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// The same with acquire and release: afterwards all of them see what each has written to any block's shared memory.
__device__ __forceinline__ void SyncClusterMemory() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of this block's `pointer` in block `rank` of the cluster.
__device__ __forceinline__ uint32_t DsmemAddress(const void* pointer, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(SharedAddress(pointer)), "r"(rank));
  return address;
}

// Stores to a DsmemAddress.
__device__ __forceinline__ void StoreDsmem(uint32_t to, int value) {
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

// Stores to a DsmemAddress, and counts the bytes towards a barrier of that block.
__device__ __forceinline__ void StoreToDsmemAsync(uint32_t to, float4 value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
               : "memory");
}
// Replaces what lies at a DsmemAddress by the greater one, and counts the bytes towards a barrier of that block.
__device__ __forceinline__ void MaxInDsmemAsync(uint32_t to, uint32_t value, uint32_t barrier) {
  asm volatile(
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32 [%0], %1, [%2];" ::"r"(to),
      "r"(value), "r"(barrier)
      : "memory");
}

// Copies shared memory to another block of the cluster, and counts the bytes towards that block's barrier. (Of 64 rows
// at once; an st.async for each of them would update the barrier as often.) A launch without a cluster must branch
// around it: the compiler may predicate it (UBLKCP.S.S), and there it is an illegal instruction even if its predicate
// is off (seen on an H200).
__device__ __forceinline__ void CopyToDsmem(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(SharedAddress(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_CLUSTER_CUH_
