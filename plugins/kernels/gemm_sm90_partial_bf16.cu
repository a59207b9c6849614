#include "kernels/gemm_sm90_launch.cuh"

namespace bertfuse::kernels {

// Rows and columns of a block, stages of its ring.
template <int kM, int kN, int kStages>
using Shape = GemmSm90Shape<__nv_bfloat16, GemmEpilogue::kPartial, kM, kN, kStages, 0>;

template <>
cudaError_t GemmSm90<__nv_bfloat16, GemmEpilogue::kPartial>(const GemmSm90Tile& tile,
                                                            const GemmSm90Arguments<__nv_bfloat16>& arguments,
                                                            const Device& device, cudaStream_t stream) {
  return LaunchFitting<Shape<128, 256, 4>, Shape<128, 192, 5>, Shape<64, 96, 10>>(tile, arguments, device, stream);
}

}  // namespace bertfuse::kernels
