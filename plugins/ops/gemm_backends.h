// What each backend needs of a product, and how it launches one.
#ifndef BERTFUSE_OPS_GEMM_BACKENDS_H_
#define BERTFUSE_OPS_GEMM_BACKENDS_H_

#include "kernels/backend.h"
#include "kernels/gpu_code.h"
#include "kernels/mma/gemm.h"
#include "kernels/portable/gemm.h"
#include "kernels/sm90/gemm.h"
#include "ops/call.h"
#include "ops/gemm_cublaslt.h"
#include "ops/gemm_tactic.h"

namespace bertfuse::cuda {

using kernels::kIsQuantized;

template <class Elements>
struct GemmBackend {
  using Arguments = kernels::GemmArguments<Elements>;

  Backend backend;
  // Whether it takes the types, sizes and alignment.
  bool (*supports)(const Arguments& a, const kernels::Device& device);
  cudaError_t (*launch)(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                        cudaStream_t stream);
};

template <class Elements>
struct Sm90Gemm {
  using Arguments = typename GemmBackend<Elements>::Arguments;
  static constexpr bool kIsCompiled = kIsHalf<typename Elements::Y>;

  static bool Supports(const Arguments& a, const kernels::Device& device) {
    if constexpr (kIsCompiled) {
      return kernels::GemmMmaSupports(a) && kernels::GemmSm90Supports(a, device);
    } else {
      return false;
    }
  }
  static cudaError_t Launch(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                            cudaStream_t stream) {
    if constexpr (kIsCompiled && kernels::kSm90IsBuilt) {
      return kernels::GemmSm90(tactic.form, tactic.tile, a, device, stream);
    } else {
      return cudaErrorInvalidConfiguration;
    }
  }
};

template <class Elements>
struct MmaGemm {
  using Arguments = typename GemmBackend<Elements>::Arguments;
  using X = typename Elements::X;
  static constexpr bool kIsCompiled = kIsHalf<X> || std::is_same_v<X, float> || kIsQuantized<Elements>;

  static bool Supports(const Arguments& a, const kernels::Device& device) {
    // (Code for 8.0 runs on later devices, without their instructions.)
    constexpr bool kIsFp8 = std::is_same_v<X, __nv_fp8_e4m3>;
    const bool has_code = !kIsFp8 || kernels::PtxInUse(device) >= kernels::kFirstWithFp8Mma;
    return kIsCompiled && kernels::HasMmaOf<X>(device) && has_code && kernels::GemmMmaSupports(a);
  }
  static cudaError_t Launch(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                            cudaStream_t stream) {
    if constexpr (std::is_same_v<X, int8_t>) {
      return kernels::GemmMmaInt8<typename Elements::Y>(tactic.form, tactic.tile, a, device, stream);
    } else if constexpr (kIsQuantized<Elements>) {
      return kernels::GemmMmaFp8<typename Elements::Y>(tactic.form, tactic.tile, a, device, stream);
    } else if constexpr (kIsCompiled) {
      return kernels::GemmMma<X>(tactic.form, tactic.tile, a, device, stream);
    } else {
      return cudaErrorInvalidConfiguration;
    }
  }
};

// Of 8-bit operands cuBLASLt has no scales by row and column.
template <class Elements>
struct NoCublasLt {
  using Arguments = kernels::GemmArguments<Elements>;
  static bool Supports(const Arguments&, const kernels::Device&) { return false; }
  static std::shared_ptr<const kernels::cublaslt::Plan> PlanOf(GemmForm, const Arguments&, const kernels::Device&) {
    return nullptr;
  }
  static cudaError_t Launch(const GemmTactic&, const Arguments&, const kernels::Device&, cudaStream_t) {
    return cudaErrorInvalidConfiguration;
  }
};
template <class Elements>
struct CublasLtBackend : CublasLtGemm<typename Elements::X> {};
template <class T>
struct CublasLtBackend<kernels::Int8Elements<T>> : NoCublasLt<kernels::Int8Elements<T>> {};
template <class T>
struct CublasLtBackend<kernels::Fp8Elements<T>> : NoCublasLt<kernels::Fp8Elements<T>> {};

template <class Elements>
cudaError_t LaunchSimt(const GemmTactic& tactic, const kernels::GemmArguments<Elements>& a,
                       const kernels::Device& device, cudaStream_t stream) {
  return kernels::GemmSimt(kernels::MakePortableGemm(tactic.form, a), device, stream);
}

template <class Elements>
inline constexpr GemmBackend<Elements> kGemmBackends[] = {
    {Backend::kSm90, Sm90Gemm<Elements>::Supports, Sm90Gemm<Elements>::Launch},
    {Backend::kCublasLt, CublasLtBackend<Elements>::Supports, CublasLtBackend<Elements>::Launch},
    {Backend::kMma, MmaGemm<Elements>::Supports, MmaGemm<Elements>::Launch},
    {Backend::kSimt, [](const auto&, const kernels::Device&) { return true; }, LaunchSimt<Elements>},
};

// Those that run the product on the device, of our own kernels.
template <class Elements>
kernels::BackendSet GemmBackendsFor(const kernels::GemmArguments<Elements>& a, const kernels::Device& device) {
  kernels::BackendSet found;
  for (const GemmBackend<Elements>& row : kGemmBackends<Elements>) {
    if (row.backend == Backend::kCublasLt) continue;  // the process may not have it
    if (RunsOn(row.backend, device) && row.supports(a, device)) found.Add(row.backend);
  }
  return found;
}

// Launches the tactic's product, with everything after it that the tactic's form does not leave to LayerNorm.
template <class Elements>
cudaError_t LaunchGemm(const GemmTactic& tactic, const kernels::GemmArguments<Elements>& a,
                       const kernels::Device& device, cudaStream_t stream) {
  for (const GemmBackend<Elements>& row : kGemmBackends<Elements>) {
    if (row.backend == tactic.backend) return row.launch(tactic, a, device, stream);
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_BACKENDS_H_
