// plugins/kernels/sm90/ptx/cluster.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_SM90_PTX_CLUSTER_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_CLUSTER_CUH_

#include "emulator/hopper.h"
#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {

inline uint32_t ClusterRank() { return emulator::ClusterRank(); }
inline uint32_t ClusterId() { return emulator::ClusterId(); }
inline void SyncCluster() { emulator::SyncCluster(); }
inline void SyncClusterMemory() { emulator::SyncCluster(); }
inline uint32_t DsmemAddress(const void* pointer, uint32_t rank) { return emulator::DsmemAddress(pointer, rank); }
inline void StoreDsmem(uint32_t to, int value) { emulator::StoreDsmem(to, value); }
template <class Value>
void StoreToDsmemAsync(uint32_t to, const Value& value, uint32_t barrier) {
  emulator::StoreToDsmemAsync(to, &value, sizeof(value), barrier);
}
inline void MaxInDsmemAsync(uint32_t to, uint32_t value, uint32_t barrier) {
  emulator::MaxInDsmemAsync(to, value, barrier);
}
inline void CopyToDsmem(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  emulator::CopyToDsmem(to, from, bytes, barrier);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_CLUSTER_CUH_
