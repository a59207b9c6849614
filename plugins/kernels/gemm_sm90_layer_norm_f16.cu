#include "kernels/gemm_sm90.cuh"

namespace bertfuse::kernels {

template <>
cudaError_t GemmSm90<__half, GemmEpilogue::kLayerNorm>(const GemmSm90Tile& tile, const GemmSm90Arguments<__half>& arguments,
    const Device& device, cudaStream_t stream) {
  // block_m, block_n; stages of the ring; buffers for tiles on their way out
  return LaunchFitting<GemmSm90Shape<__half, GemmEpilogue::kLayerNorm, 2, 192, 4, 3>, GemmSm90Shape<__half, GemmEpilogue::kLayerNorm, 2, 256, 3, 4>, GemmSm90Shape<__half, GemmEpilogue::kLayerNorm, 1, 96, 10, 3>, GemmSm90Shape<__half, GemmEpilogue::kLayerNorm, 1, 128, 8, 2>>(tile, arguments, device, stream);
}

}  // namespace bertfuse::kernels
