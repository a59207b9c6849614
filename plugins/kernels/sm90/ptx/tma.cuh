// The Tensor Memory Accelerator (TMA): bulk tensor copies between global and shared memory. One thread issues each.
#ifndef BERTFUSE_KERNELS_SM90_PTX_TMA_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_TMA_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/async_copy.cuh"
#include "kernels/sm90/layout.cuh"

namespace bertfuse::kernels {

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void TmaLoad2d(void* shared, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(SharedAddress(barrier))
      : "memory");
}

// To L2 alone.
__device__ __forceinline__ void TmaPrefetch2d(const CUtensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void TmaLoad3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(barrier))
      : "memory");
}

// The same tile into the same place of every block in `blocks` (a bit for each rank of the cluster).
__device__ __forceinline__ void TmaLoad2dMulticast(void* shared, const CUtensorMap* map, int x, int y,
                                                   uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], "
      "[%4], %5;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}

// A box of a map with permuted rows (tensor_map.h), from row 32 x `group` on.
__device__ __forceinline__ void TmaLoadPermutedRows(void* shared, const CUtensorMap* map, int x, int group,
                                                    uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %4, %4, %4, %3}], "
      "[%5];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(group), "r"(0), "r"(SharedAddress(barrier))
      : "memory");
}

__device__ __forceinline__ void TmaLoadPermutedRowsMulticast(void* shared, const CUtensorMap* map, int x, int group,
                                                             uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%4, %4, %4, %3}], [%5], %6;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(group), "r"(0), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void TmaStore2d(const CUtensorMap* map, const void* shared, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"(SharedAddress(shared))
               : "memory");
}

__device__ __forceinline__ void TmaStore3d(const CUtensorMap* map, const void* shared, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(SharedAddress(shared))
               : "memory");
}

__device__ __forceinline__ void TmaCommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups still read shared memory, which must outlive that.
template <int kPending>
__device__ __forceinline__ void TmaWaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Needed before TMA or the tensor cores (the async proxy) read what this thread stored to shared memory.
__device__ __forceinline__ void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_TMA_CUH_
