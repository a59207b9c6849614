// Activations on the device, in float32: a policy for each, and the set of them that kernels are compiled with.
#ifndef BERTFUSE_KERNELS_ACTIVATION_CUH_
#define BERTFUSE_KERNELS_ACTIVATION_CUH_

#include "core/activation.h"
#include "kernels/ptx/scalar.cuh"

namespace bertfuse::kernels {

// A policy has its enumerator, Exact(), and For16Bits(), whose error is too small to show in 16-bit results;
// ForFinite() is the same where infinity may give NaN.
template <Activation kWhich, class Policy>
struct OnDevice {
  static constexpr Activation kActivation = kWhich;
  __device__ __forceinline__ static float Exact(float x) { return Policy::Of(x); }
  __device__ __forceinline__ static float For16Bits(float x) { return Policy::Of(x); }
  __device__ __forceinline__ static float ForFinite(float x) { return For16Bits(x); }
};

template <>
struct OnDevice<Activation::kGeluErf, activations::GeluErf> {
  static constexpr Activation kActivation = Activation::kGeluErf;
  __device__ __forceinline__ static float Exact(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

  // In fewer instructions than Exact(), with a relative error of up to 1e-4 (absolute: 1.5e-5), a fifth of half a
  // float16's last bit. With u = |x|, gelu(x) = x * (1 - Phi(-u)) where x is positive and x * Phi(-u) elsewhere, and
  // log2 Phi(-u) is smooth: a polynomial (minimax on [0, 6], fitted in float64, falling beyond) and one exp2 keep the
  // relative error small in the negative tail too, where 1 + erf would cancel. Two more terms would give 4e-6, which 16
  // bits do not show. As in Exact(), infinity gives infinity, and -infinity and NaN give NaN.
  __device__ __forceinline__ static float For16Bits(float x) {
    const float tail = Tail(fabsf(x));
    return x * (x > 0.0f ? 1.0f - tail : tail);
  }
  // max(x, 0) - u * Phi(-u): one instruction of ten less.
  __device__ __forceinline__ static float ForFinite(float x) { return fmaf(-fabsf(x), Tail(fabsf(x)), fmaxf(x, 0.0f)); }

 private:
  // Phi(-u).
  __device__ __forceinline__ static float Tail(float u) {
    float log2_tail = -3.0804096824786924e-4f;
    log2_tail = fmaf(log2_tail, u, 5.702630692391135e-3f);
    log2_tail = fmaf(log2_tail, u, -4.780703019108071e-2f);
    log2_tail = fmaf(log2_tail, u, -4.647166726313563e-1f);
    log2_tail = fmaf(log2_tail, u, -1.1488932477362928f);
    log2_tail = fmaf(log2_tail, u, -1.0001416897283517f);
    return Exp2Approximate(log2_tail);
  }
};

template <>
struct OnDevice<Activation::kGeluTanh, activations::GeluTanh> {
  static constexpr Activation kActivation = Activation::kGeluTanh;
  __device__ __forceinline__ static float Exact(float x) {
    // x * sigmoid(2z) is 0.5x(1 + tanh z) without the cancellation at the negative end. An IEEE division would be 20
    // instructions and a branch for each value.
    const float z = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + __expf(-2.0f * z));
  }
  __device__ __forceinline__ static float For16Bits(float x) { return Exact(x); }
  __device__ __forceinline__ static float ForFinite(float x) { return Exact(x); }
};

template <Activation kWhich, int kThousandths>
struct OnDevice<kWhich, activations::ScaledSilu<kThousandths>> {
  static constexpr Activation kActivation = kWhich;
  // As in GeluTanh, without an IEEE division.
  __device__ __forceinline__ static float Exact(float x) {
    return __fdividef(x, 1.0f + __expf(-activations::ScaledSilu<kThousandths>::kFactor * x));
  }
  __device__ __forceinline__ static float For16Bits(float x) { return Exact(x); }
  __device__ __forceinline__ static float ForFinite(float x) { return Exact(x); }
};

// A launch says which of the set's policies the kernel applies. A kernel for each would multiply the kernels that are
// compiled, and a uniform branch outside of the loop over values costs next to nothing. Launches refuse an activation
// that is not in the set.
template <class... Policies>
struct ActivationSet {
  static constexpr bool Has(Activation activation) { return ((activation == Policies::kActivation) || ...); }

  // For many values at a time, because the compiler overlaps nothing across branches.
  template <int kCount>
  __device__ __forceinline__ static void Exact(float* v, Activation activation) {
    ((activation == Policies::kActivation ? (AllExact<Policies, kCount>(v), true) : false) || ...);
  }
  template <int kCount>
  __device__ __forceinline__ static void For16Bits(float* v, Activation activation) {
    ((activation == Policies::kActivation ? (AllFor16Bits<Policies, kCount>(v), true) : false) || ...);
  }

  template <int kCount>
  __device__ __forceinline__ static void ForFinite(float* v, Activation activation) {
    ((activation == Policies::kActivation ? (AllForFinite<Policies, kCount>(v), true) : false) || ...);
  }

  // A call: where a thread has so many values that the code of each would be most of the kernel.
  __device__ __attribute__((noinline)) static float ExactByCall(float x, Activation activation) {
    Exact<1>(&x, activation);
    return x;
  }

 private:
  template <class Policy, int kCount>
  __device__ __forceinline__ static void AllExact(float* v) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = Policy::Exact(v[i]);
  }
  template <class Policy, int kCount>
  __device__ __forceinline__ static void AllFor16Bits(float* v) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = Policy::For16Bits(v[i]);
  }
  template <class Policy, int kCount>
  __device__ __forceinline__ static void AllForFinite(float* v) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = Policy::ForFinite(v[i]);
  }
};

#define BERTFUSE_ON_DEVICE(ENUMERATOR, NAME, POLICY) OnDevice<Activation::ENUMERATOR, activations::POLICY>,
using Activations =
    ActivationSet<BERTFUSE_PRODUCT_ACTIVATIONS(BERTFUSE_ON_DEVICE) OnDevice<Activation::kNone, activations::Identity>>;
using GateActivations =
    ActivationSet<BERTFUSE_ACTIVATIONS(BERTFUSE_ON_DEVICE) OnDevice<Activation::kNone, activations::Identity>>;
#undef BERTFUSE_ON_DEVICE

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ACTIVATION_CUH_
