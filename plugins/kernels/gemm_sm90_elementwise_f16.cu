#include "kernels/gemm_sm90_launch.cuh"

namespace bertfuse::kernels {

// Rows and columns of a block, stages of its ring, blocks on a multiprocessor.
template <int kM, int kN, int kStages, int kBlocks>
using Shape = GemmSm90Shape<__half, GemmEpilogue::kElementwise, kM, kN, kStages, kBlocks>;
using InTurns = GemmSm90Shape<__half, GemmEpilogue::kElementwise, 128, 192, 5, 1, true>;

template <>
cudaError_t GemmSm90<__half, GemmEpilogue::kElementwise>(const GemmSm90Tile& tile,
                                                         const GemmSm90Arguments<__half>& arguments,
                                                         const Device& device, cudaStream_t stream) {
  return LaunchFitting<InTurns, Shape<128, 128, 7, 1>, Shape<128, 128, 3, 2>, Shape<128, 96, 8, 1>,
                       Shape<128, 96, 4, 2>, Shape<64, 64, 12, 1>, Shape<64, 96, 10, 1>>(tile, arguments, device,
                                                                                         stream);
}

}  // namespace bertfuse::kernels
