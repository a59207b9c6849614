// What kernels/sm90/ptx calls: mbarriers, bulk copies, clusters and warpgroup products. Each is what the instruction of
// that name is.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_HOPPER_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_HOPPER_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "emulator/machine.h"

namespace emulator {

// mbarriers: in this block, but for ArriveRemote().
void InitBarrier(uint64_t* barrier, int arrivals);
void Arrive(uint64_t* barrier);
void ArriveExpectTx(uint64_t* barrier, uint32_t bytes);
void ArriveRemote(uint32_t barrier);
void WaitBarrier(uint64_t* barrier, uint32_t parity);

// Comes to a named barrier without waiting (Barrier() in machine.h waits).
void ArriveNamed(int id, int threads);

uint32_t ClusterRank();
uint32_t ClusterId();
void SyncCluster();
uint32_t DsmemAddress(const void* pointer, uint32_t rank);
void StoreDsmem(uint32_t to, int value);
void StoreToDsmemAsync(uint32_t to, const void* value, uint32_t bytes, uint32_t barrier);
void MaxInDsmemAsync(uint32_t to, uint32_t value, uint32_t barrier);
void CopyToDsmem(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);

// Records what a tensor map is made from; errors as the driver's.
CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                     const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill);
void PrefetchTensorMap(const CUtensorMap* map);
// `at`: coordinates, `rank` of them. `blocks`: a bit for each rank of the cluster; 0: this block.
void TmaLoad(void* shared, const CUtensorMap* map, int rank, const int* at, uint64_t* barrier, uint32_t blocks);
void TmaStore(const CUtensorMap* map, const void* shared, int rank, const int* at);
void CommitStores();
void WaitStores(int pending, bool read_only);  // read_only: wait_group.read
void FenceAsyncProxy();

void Wgmma(const ProductShape& shape, float* d, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate);
void FenceWgmma();
void CommitWgmma();
void WaitWgmma(int pending);

// griddepcontrol.wait and griddepcontrol.launch_dependents
void WaitForDependencies();
void LaunchDependents();

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_HOPPER_H_
