#include "kernels/gemm_sm90_launch.cuh"

namespace bertfuse::kernels {

// Rows, warpgroups and columns of a block; stages of its ring; buffers of each warpgroup for tiles on their way out.
template <int kM, int kWarpgroups, int kN, int kStages, int kBuffers>
using Shape = GemmSm90Shape<__nv_bfloat16, GemmEpilogue::kLayerNorm, kM, kWarpgroups, kN, kStages, kBuffers>;

template <>
cudaError_t GemmSm90<__nv_bfloat16, GemmEpilogue::kLayerNorm>(const GemmSm90Tile& tile,
                                                              const GemmSm90Arguments<__nv_bfloat16>& arguments,
                                                              const Device& device, cudaStream_t stream) {
  return LaunchFitting<Shape<64, 2, 192, 5, 3>, Shape<128, 2, 192, 4, 3>, Shape<128, 2, 256, 3, 4>,
                       Shape<64, 1, 96, 10, 3>, Shape<64, 1, 128, 8, 2>>(tile, arguments, device, stream);
}

}  // namespace bertfuse::kernels
