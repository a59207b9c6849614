// What each backend needs of a product, and how it launches one.
#ifndef BERTFUSE_OPS_GEMM_BACKENDS_H_
#define BERTFUSE_OPS_GEMM_BACKENDS_H_

#include "kernels/backend.h"
#include "kernels/mma/gemm.h"
#include "kernels/portable/gemm.h"
#include "kernels/sm90/gemm.h"
#include "ops/call.h"
#include "ops/gemm_cublaslt.h"
#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

template <class T>
struct GemmBackend {
  using Arguments = kernels::GemmArguments<kernels::Elements<T>>;

  Backend backend;
  // Whether it takes the types, sizes and alignment.
  bool (*supports)(const Arguments& a, const kernels::Device& device);
  cudaError_t (*launch)(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                        cudaStream_t stream);
};

template <class T>
struct Sm90Gemm {
  using Arguments = typename GemmBackend<T>::Arguments;

  static bool Supports(const Arguments& a, const kernels::Device& device) {
    return kIsHalf<T> && kernels::GemmMmaSupports<T>(a) && kernels::GemmSm90Supports(a, device);
  }
  static cudaError_t Launch(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                            cudaStream_t stream) {
    if constexpr (kIsHalf<T> && kernels::kSm90IsBuilt) {
      return kernels::GemmSm90(tactic.form, tactic.tile, a, device, stream);
    } else {
      return cudaErrorInvalidConfiguration;
    }
  }
};

template <class T>
struct MmaGemm {
  using Arguments = typename GemmBackend<T>::Arguments;
  static constexpr bool kIsCompiled = kIsHalf<T> || std::is_same_v<T, float>;

  // On Hopper float32 that may not be rounded stays with the kernel that was measured there.
  static bool Supports(const Arguments& a, const kernels::Device& device) {
    const bool three_products = std::is_same_v<T, float> && !a.allow_tf32;
    return kIsCompiled && kernels::HasMmaOf<T>(device) && kernels::GemmMmaSupports<T>(a) && !(three_products && device.compute_capability == 90);
  }
  static cudaError_t Launch(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                            cudaStream_t stream) {
    if constexpr (kIsCompiled) {
      return kernels::GemmMma<T>(tactic.form, tactic.tile, a, device, stream);
    } else {
      return cudaErrorInvalidConfiguration;
    }
  }
};

template <class T>
cudaError_t LaunchSimt(const GemmTactic& tactic, const typename GemmBackend<T>::Arguments& a,
                       const kernels::Device& device, cudaStream_t stream) {
  return kernels::GemmSimt<T>(kernels::MakePortableGemm<T>(tactic.form, a), device, stream);
}

template <class T>
inline constexpr GemmBackend<T> kGemmBackends[] = {
    {Backend::kSm90, Sm90Gemm<T>::Supports, Sm90Gemm<T>::Launch},
    {Backend::kCublasLt, CublasLtGemm<T>::Supports, CublasLtGemm<T>::Launch},
    {Backend::kMma, MmaGemm<T>::Supports, MmaGemm<T>::Launch},
    {Backend::kSimt, [](const auto&, const kernels::Device&) { return true; }, LaunchSimt<T>},
};

// Those that run the product on the device, of our own kernels.
template <class T>
kernels::BackendSet GemmBackendsFor(const typename GemmBackend<T>::Arguments& a, const kernels::Device& device) {
  kernels::BackendSet found;
  for (const GemmBackend<T>& row : kGemmBackends<T>) {
    if (row.backend == Backend::kCublasLt) continue;  // the process may not have it
    if (RunsOn(row.backend, device) && row.supports(a, device)) found.Add(row.backend);
  }
  return found;
}

// Launches the tactic's product, with everything after it that the tactic's form does not leave to LayerNorm.
template <class T>
cudaError_t LaunchGemm(const GemmTactic& tactic, const typename GemmBackend<T>::Arguments& a,
                       const kernels::Device& device, cudaStream_t stream) {
  for (const GemmBackend<T>& row : kGemmBackends<T>) {
    if (row.backend == tactic.backend) return row.launch(tactic, a, device, stream);
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_BACKENDS_H_
