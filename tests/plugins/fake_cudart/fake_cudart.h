#ifndef BERTFUSE_TESTS_PLUGINS_FAKE_CUDART_FAKE_CUDART_H_
#define BERTFUSE_TESTS_PLUGINS_FAKE_CUDART_FAKE_CUDART_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace fake_cudart {

// Keeps the error for cudaGetLastError(), and returns it.
cudaError_t Fail(cudaError_t error);

// cuTensorMapEncodeTiled, as the driver's documentation has it. A tensor map here is its arguments one after the other,
// so that a launch's parameters tell them.
CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                     const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill);

}  // namespace fake_cudart
#endif  // BERTFUSE_TESTS_PLUGINS_FAKE_CUDART_FAKE_CUDART_H_
