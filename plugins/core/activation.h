// The activations that kernels compute, by the names that ops have for them (graph_rewrite/ops/activations.py), and the
// functions of those that CPU and GPU compute alike.
#ifndef BERTFUSE_CORE_ACTIVATION_H_
#define BERTFUSE_CORE_ACTIVATION_H_

#ifdef __CUDACC__
#define BERTFUSE_ANY_DEVICE __host__ __device__ __forceinline__
#else
#define BERTFUSE_ANY_DEVICE inline __attribute__((always_inline))
#endif

namespace bertfuse {

// X(enumerator, name, policy), in the order in which kernels try them: those that any product may have, of which each
// one more makes all their kernels larger, and behind them those that gates alone have.
#define BERTFUSE_PRODUCT_ACTIVATIONS(X) \
  X(kGeluErf, "gelu", GeluErf)          \
  X(kRelu2, "relu2", Relu2)             \
  X(kGeluTanh, "gelu_tanh", GeluTanh)
#define BERTFUSE_ACTIVATIONS(X)   \
  BERTFUSE_PRODUCT_ACTIVATIONS(X) \
  X(kSilu, "silu", Silu)          \
  X(kQuickGelu, "quick_gelu", QuickGelu)

#define BERTFUSE_ENUMERATOR(ENUMERATOR, NAME, POLICY) , ENUMERATOR
enum class Activation : int { kNone BERTFUSE_ACTIVATIONS(BERTFUSE_ENUMERATOR) };
#undef BERTFUSE_ENUMERATOR

constexpr bool IsOfProducts(Activation activation) {
#define BERTFUSE_IS_ONE(ENUMERATOR, NAME, POLICY) || activation == Activation::ENUMERATOR
  return activation == Activation::kNone BERTFUSE_PRODUCT_ACTIVATIONS(BERTFUSE_IS_ONE);
#undef BERTFUSE_IS_ONE
}

// A policy's Of(x) is of a float, or of each element of a vector of the CPU. One without it has functions of its own in
// kernels/activation.cuh and cpu/vector_loops.cc.
namespace activations {

struct Identity {
  template <class V>
  BERTFUSE_ANY_DEVICE static V Of(V x) {
    return x;
  }
};
struct Relu2 {
  template <class V>
  static BERTFUSE_ANY_DEVICE V Of(V x) {
    return x < V{} ? V{} : x * x;
  }
};
struct GeluErf {};
struct GeluTanh {};

// x * sigmoid(factor * x).
template <int kThousandths>
struct ScaledSilu {
  static constexpr float kFactor = kThousandths / 1000.0f;
};
using Silu = ScaledSilu<1000>;
using QuickGelu = ScaledSilu<1702>;

}  // namespace activations
}  // namespace bertfuse
#endif  // BERTFUSE_CORE_ACTIVATION_H_
