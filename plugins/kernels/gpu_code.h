#ifndef BERTFUSE_KERNELS_GPU_CODE_H_
#define BERTFUSE_KERNELS_GPU_CODE_H_

#include <cuda_runtime_api.h>

#include "kernels/device.h"

namespace bertfuse::kernels {

// Which code the current device runs of a kernel that is compiled as all portable ones are: the architecture that the
// machine code was made for, and that of the PTX it came from, both as 90 for 9.0. cudaErrorNoKernelImageForDevice
// where there is none for this device.
cudaError_t CodeInUse(int* machine_code, int* ptx);

// The PTX's architecture on that device, asked once; 0 where that fails. An instruction that came later than it is not
// in the code, whatever the device has.
int PtxInUse(const Device& device);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GPU_CODE_H_
