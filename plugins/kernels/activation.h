#ifndef BERTFUSE_KERNELS_ACTIVATION_H_
#define BERTFUSE_KERNELS_ACTIVATION_H_

namespace bertfuse::kernels {

enum class Activation : int { kNone, kGeluErf, kGeluTanh };

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ACTIVATION_H_
