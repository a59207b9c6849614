// What each backend needs of attention, and how it launches it.
#ifndef BERTFUSE_OPS_ATTENTION_BACKENDS_H_
#define BERTFUSE_OPS_ATTENTION_BACKENDS_H_

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/mma/attention.h"
#include "ops/attention_tactic.h"
#include "ops/call.h"

namespace bertfuse::cuda {

template <class T>
struct AttentionBackend {
  using Arguments = kernels::AttentionArguments<T>;

  Backend backend;
  bool (*supports)(const Arguments& a, const kernels::Device& device);  // dtype, head size and alignment
  cudaError_t (*launch)(const AttentionTactic& tactic, const Arguments& a, const kernels::Device& device,
                        cudaStream_t stream);
};

template <class T>
struct Sm90Attention {
  static bool Supports(const kernels::AttentionArguments<T>& a, const kernels::Device& device) {
    return kIsHalf<T> && kernels::AttentionSm90Supports(a, device);
  }
  static cudaError_t Launch(const AttentionTactic& tactic, const kernels::AttentionArguments<T>& a,
                            const kernels::Device& device, cudaStream_t stream) {
    if constexpr (kIsHalf<T> && kernels::kSm90IsBuilt) {
      return kernels::AttentionSm90(a, tactic.tile, device, stream);
    } else {
      return cudaErrorInvalidConfiguration;
    }
  }
};

template <class T>
struct MmaAttention {
  static bool Supports(const kernels::AttentionArguments<T>& a, const kernels::Device& device) {
    return kernels::AttentionMmaSupports(a, device);
  }
  static cudaError_t Launch(const AttentionTactic& tactic, const kernels::AttentionArguments<T>& a,
                            const kernels::Device& device, cudaStream_t stream) {
    if constexpr (kIsHalf<T>) {
      return kernels::AttentionMma(a, tactic.tile, device, stream);
    } else if (a.allow_tf32) {
      return kernels::AttentionMmaTf32(a, tactic.tile, device, stream);
    } else {
      return kernels::AttentionMmaThreeTf32(a, tactic.tile, device, stream);
    }
  }
};

template <class T>
struct SimtAttention {
  static bool Supports(const kernels::AttentionArguments<T>& a, const kernels::Device&) {
    return kernels::AttentionSimtSupports(a);
  }
  static cudaError_t Launch(const AttentionTactic&, const kernels::AttentionArguments<T>& a,
                            const kernels::Device& device, cudaStream_t stream) {
    return kernels::AttentionSimt(a, device, stream);
  }
};

template <class T>
inline constexpr AttentionBackend<T> kAttentionBackends[] = {
    {Backend::kSm90, Sm90Attention<T>::Supports, Sm90Attention<T>::Launch},
    {Backend::kMma, MmaAttention<T>::Supports, MmaAttention<T>::Launch},
    {Backend::kSimt, SimtAttention<T>::Supports, SimtAttention<T>::Launch},
};

// Those that run it on the device.
template <class T>
kernels::BackendSet AttentionBackendsFor(const kernels::AttentionArguments<T>& a, const kernels::Device& device) {
  kernels::BackendSet found;
  for (const AttentionBackend<T>& row : kAttentionBackends<T>) {
    if (RunsOn(row.backend, device) && row.supports(a, device)) found.Add(row.backend);
  }
  return found;
}

template <class T>
cudaError_t LaunchAttention(const AttentionTactic& tactic, const kernels::AttentionArguments<T>& a,
                            const kernels::Device& device, cudaStream_t stream) {
  for (const AttentionBackend<T>& row : kAttentionBackends<T>) {
    if (row.backend == tactic.backend) return row.launch(tactic, a, device, stream);
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_ATTENTION_BACKENDS_H_
