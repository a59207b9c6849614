#include "kernels/gemm_sm90_launch.cuh"

namespace bertfuse::kernels {

using Large = GemmSm90OverlappedShape<__half, GemmEpilogue::kElementwise, 192, 3>;
using Middle = GemmSm90OverlappedShape<__half, GemmEpilogue::kElementwise, 128, 4>;
using Small = GemmSm90Shape<__half, GemmEpilogue::kElementwise, 64, 64, 12, 1>;

template <>
cudaError_t GemmSm90<__half, GemmEpilogue::kElementwise>(const GemmSm90Tile& tile,
                                                         const GemmSm90Arguments<__half>& arguments,
                                                         const Device& device, cudaStream_t stream) {
  return LaunchFitting<Large, Middle, Small>(tile, arguments, device, stream);
}

}  // namespace bertfuse::kernels
