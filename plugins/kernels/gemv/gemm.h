#ifndef BERTFUSE_KERNELS_GEMV_GEMM_H_
#define BERTFUSE_KERNELS_GEMV_GEMM_H_

#include "kernels/gemm.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {

// y[m, n] = activation(product + bias) of a few rows: a warp for each element.
template <class Elements>
cudaError_t Gemv(const GemmArguments<Elements>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMV_GEMM_H_
