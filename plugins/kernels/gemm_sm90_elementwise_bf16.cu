#include "kernels/gemm_sm90_launch.cuh"

namespace bertfuse::kernels {

// Rows, warpgroups and columns of a block; stages of its ring; buffers of each warpgroup for tiles on their way out.
template <int kM, int kWarpgroups, int kN, int kStages, int kBuffers>
using Shape = GemmSm90Shape<__nv_bfloat16, GemmEpilogue::kElementwise, kM, kWarpgroups, kN, kStages, kBuffers>;

template <>
cudaError_t GemmSm90<__nv_bfloat16, GemmEpilogue::kElementwise>(const GemmSm90Tile& tile,
                                                                const GemmSm90Arguments<__nv_bfloat16>& arguments,
                                                                const Device& device, cudaStream_t stream) {
  return LaunchFitting<Shape<128, 2, 256, 4, 2>, Shape<128, 2, 192, 4, 3>, Shape<64, 1, 64, 12, 1>>(tile, arguments,
                                                                                                    device, stream);
}

}  // namespace bertfuse::kernels
