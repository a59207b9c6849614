#include "kernels/gemm_sm90_launch.cuh"

namespace bertfuse::kernels {

// Columns of a block, stages of its ring.
template <int kN, int kStages>
using Large = GemmSm90OverlappedShape<__half, GemmEpilogue::kLayerNorm, kN, kStages>;
// And buffers for tiles on their way out.
template <int kN, int kStages, int kBuffers>
using Small = GemmSm90Shape<__half, GemmEpilogue::kLayerNorm, 64, kN, kStages, kBuffers>;

template <>
cudaError_t GemmSm90<__half, GemmEpilogue::kLayerNorm>(const GemmSm90Tile& tile,
                                                       const GemmSm90Arguments<__half>& arguments, const Device& device,
                                                       cudaStream_t stream) {
  return LaunchFitting<Large<256, 3>, Large<192, 4>, Small<96, 10, 3>, Small<128, 8, 2>>(tile, arguments, device,
                                                                                         stream);
}

}  // namespace bertfuse::kernels
