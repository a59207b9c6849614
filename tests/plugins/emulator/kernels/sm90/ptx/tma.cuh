// plugins/kernels/sm90/ptx/tma.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_SM90_PTX_TMA_CUH_
#define BERTFUSE_KERNELS_SM90_PTX_TMA_CUH_

#include "emulator/hopper.h"
#include "kernels/sm90/layout.cuh"

namespace bertfuse::kernels {

inline void PrefetchTensorMap(const CUtensorMap* map) { emulator::PrefetchTensorMap(map); }

template <int kRank>
inline void TmaLoad(void* shared, const CUtensorMap* map, const int (&at)[kRank], uint64_t* barrier,
                    uint32_t blocks = 0) {
  emulator::TmaLoad(shared, map, kRank, at, barrier, blocks);
}
inline void TmaLoad2d(void* shared, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  TmaLoad(shared, map, {x, y}, barrier);
}
// Caches are not modelled.
inline void TmaPrefetch2d(const CUtensorMap* map, int, int) { emulator::PrefetchTensorMap(map); }
inline void TmaLoad3d(void* shared, const CUtensorMap* map, int x, int y, int z, uint64_t* barrier) {
  TmaLoad(shared, map, {x, y, z}, barrier);
}
inline void TmaLoad2dMulticast(void* shared, const CUtensorMap* map, int x, int y, uint64_t* barrier, uint16_t blocks) {
  TmaLoad(shared, map, {x, y}, barrier, blocks);
}
inline void TmaLoadPermutedRows(void* shared, const CUtensorMap* map, int x, int group, uint64_t* barrier) {
  TmaLoad(shared, map, {x, 0, 0, 0, group}, barrier);
}
inline void TmaLoadPermutedRowsMulticast(void* shared, const CUtensorMap* map, int x, int group, uint64_t* barrier,
                                         uint16_t blocks) {
  TmaLoad(shared, map, {x, 0, 0, 0, group}, barrier, blocks);
}

inline void TmaStore2d(const CUtensorMap* map, const void* shared, int x, int y) {
  const int at[] = {x, y};
  emulator::TmaStore(map, shared, 2, at);
}
inline void TmaStore3d(const CUtensorMap* map, const void* shared, int x, int y, int z) {
  const int at[] = {x, y, z};
  emulator::TmaStore(map, shared, 3, at);
}
inline void TmaCommitStores() { emulator::CommitStores(); }
template <int kPending>
inline void TmaWaitStoresRead() {
  emulator::WaitStores(kPending, true);
}

inline void FenceAsyncProxy() { emulator::FenceAsyncProxy(); }

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_PTX_TMA_CUH_
