// The activations that kernels compute. activation.cuh has their functions.
#ifndef BERTFUSE_KERNELS_ACTIVATION_H_
#define BERTFUSE_KERNELS_ACTIVATION_H_

namespace bertfuse::kernels {

enum class Activation : int { kNone, kGeluErf, kGeluTanh };

// By the value of an op's attribute `approximate`.
struct GeluName {
  const char* approximate;
  Activation activation;
};
inline constexpr GeluName kGelus[] = {{"none", Activation::kGeluErf}, {"tanh", Activation::kGeluTanh}};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ACTIVATION_H_
