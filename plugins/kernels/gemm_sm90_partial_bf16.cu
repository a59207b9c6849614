#include "kernels/gemm_sm90.cuh"

namespace bertfuse::kernels {

template <>
cudaError_t GemmSm90<__nv_bfloat16, GemmEpilogue::kPartial>(const GemmSm90Tile& tile, const GemmSm90Arguments<__nv_bfloat16>& arguments,
    const Device& device, cudaStream_t stream) {
  // block_m, block_n; stages of the ring; buffers for tiles on their way out
  return LaunchFitting<GemmSm90Shape<__nv_bfloat16, GemmEpilogue::kPartial, 2, 192, 5, 0>, GemmSm90Shape<__nv_bfloat16, GemmEpilogue::kPartial, 1, 96, 10, 0>>(tile, arguments, device, stream);
}

}  // namespace bertfuse::kernels
