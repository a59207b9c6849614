// A product of a call in cuBLASLt.
#ifndef BERTFUSE_OPS_GEMM_CUBLASLT_H_
#define BERTFUSE_OPS_GEMM_CUBLASLT_H_

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "core/status.h"
#include "kernels/bias_activation.h"
#include "kernels/cublaslt/plan.h"
#include "kernels/gemm.h"
#include "kernels/mma/gemm.h"
#include "ops/gemm_tactic.h"
#include "ops/row_hints.h"

namespace bertfuse::cuda {

// What cuBLASLt reported for a product; nothing of the op has been launched by then.
class CublasLtError : public Error {
 public:
  CublasLtError(int status, bool first)
      : Error(BERTFUSE_RUNTIME_ERROR,
              ("cuBLASLt " + kernels::cublaslt::VersionName() + " failed: " + kernels::cublaslt::StatusName(status))
                  .c_str()),
        is_first(first) {}

  const bool is_first;  // of this product
};

// A product of which cuBLASLt computes the packed rows that are expected, and mma.sync what there are more.
template <class T>
struct CublasLtGemm {
  using Arguments = kernels::GemmArguments<kernels::Elements<T>>;

  static constexpr cudaDataType_t kType = std::is_same_v<T, float>    ? CUDA_R_32F
                                          : std::is_same_v<T, __half> ? CUDA_R_16F
                                                                      : CUDA_R_16BF;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);

  static bool Supports(const Arguments& a, const kernels::Device& device) {
    const bool sized = a.m > 0 && a.n > 0 && a.k > 0 && a.m <= INT32_MAX && a.n <= INT32_MAX && a.k <= INT32_MAX;
    return sized && kernels::cublaslt::HandleOf(device) != nullptr;
  }

  // Of a product that is computed in that form: as float32 partial sums, or before a gate, it goes to the workspace.
  // Without LayerNorm cuBLASLt adds the bias, where that is aligned and it has an algorithm that does.
  static std::shared_ptr<const kernels::cublaslt::Plan> PlanOf(GemmForm form, const Arguments& a,
                                                               const kernels::Device& device) {
    using kernels::cublaslt::AlignmentOfRows;
    const bool sums = form == GemmForm::kPartialSums;
    kernels::cublaslt::PlanKey key;
    key.operands = kType, key.result = sums ? CUDA_R_32F : kType;
    key.tf32 = std::is_same_v<T, float> && a.allow_tf32;
    key.m = Rows(a, device), key.n = a.n, key.k = a.k;
    const auto bytes = [](int64_t columns, size_t element) { return columns * static_cast<int64_t>(element); };
    key.x_alignment = AlignmentOfRows(a.x, bytes(a.k, sizeof(T)));
    key.weight_alignment = AlignmentOfRows(a.weight, bytes(a.k, sizeof(T)));
    const bool in_workspace = sums || (a.gates && form == GemmForm::kRounded);  // at its beginning
    key.y_alignment = AlignmentOfRows(in_workspace ? nullptr : a.y, bytes(a.n, sums ? sizeof(float) : sizeof(T)));
    if (form == GemmForm::kComplete && a.bias != nullptr &&
        kernels::IsAligned(a.bias, kernels::cublaslt::kVectorAlignment)) {
      kernels::cublaslt::PlanKey biased = key;
      biased.bias_alignment = kernels::cublaslt::AlignmentOf(a.bias);
      auto plan = kernels::cublaslt::FindPlan(biased, device);
      if (plan->algorithms().count > 0) return plan;
    }
    return kernels::cublaslt::FindPlan(key, device);
  }

  // Rows that cuBLASLt computes, which takes their number on the host. Expected ones are rounded up, by 3% at most: it
  // is asked about each number.
  static int64_t Rows(const Arguments& a, const kernels::Device& device) {
    const bool leaves_others =
        kernels::RunsOn(kernels::Backend::kMma, device) && kernels::HasMmaOf<T>(device) && kernels::GemmMmaSupports(a);
    if (a.packed.row_count == nullptr || !leaves_others) return a.m;
    return std::min(a.m, RoundedRows(std::max<int64_t>(a.packed.expected, 1), 32));
  }

  // Throws CublasLtError, after which the plan is not chosen again.
  static cudaError_t Launch(const GemmTactic& tactic, const Arguments& a, const kernels::Device& device,
                            cudaStream_t stream) {
    const auto plan = PlanOf(tactic.form, a, device);
    void* const y = tactic.form == GemmForm::kPartialSums ? static_cast<void*>(a.float_partials) : a.y;
    const int status = plan->Run(tactic.algorithm, a.x, a.weight, a.bias, y, a.scratch, stream);
    if (status != kernels::cublaslt::kSuccess) throw CublasLtError(status, plan->Withdraw());
    if (const int64_t rows = Rows(a, device); rows < a.m) {
      const cudaError_t error = LaunchOthers(tactic.form, a, rows, plan->adds_bias(), device, stream);
      if (error != cudaSuccess) return error;
    }
    const T* const bias = plan->adds_bias() ? nullptr : a.bias;
    if (tactic.form != GemmForm::kComplete || (bias == nullptr && a.activation == Activation::kNone))
      return cudaSuccess;
    return kernels::BiasActivation<T>({a.y, bias, a.m, a.n, a.activation, a.weights_are_constant, a.packed}, device,
                                      stream);
  }

 private:
  // The packed rows from the first `rows` on, mostly none: blocks that find none end at once. A graph may be captured
  // with few rows and replayed with many, so that there is a block for each multiprocessor.
  static cudaError_t LaunchOthers(GemmForm form, const Arguments& a, int64_t rows, bool adds_bias,
                                  const kernels::Device& device, cudaStream_t stream) {
    using namespace kernels::gemm_mma;
    constexpr Math kExact = kIsHalf<T> ? Math::kHalf : Math::kThreeTf32;
    const Math math = !kIsHalf<T> && a.allow_tf32 ? Math::kTf32 : kExact;
    constexpr int kSize = 64;
    kernels::GemmTile tile;
    ForTiles(math, [&](const Tile& compiled) {
      const bool is_it = compiled.m == kSize && compiled.n == kSize && !compiled.has_long_stages();
      if (is_it) tile.block = BlockOn(math, compiled, device.shared_bytes);
    });
    Arguments others = a;
    others.x += rows * a.k;
    if (others.y != nullptr) others.y += rows * a.n;
    if (form == GemmForm::kPartialSums) others.float_partials += rows * a.n;
    others.m = a.m - rows, others.rows_before = rows;
    if (!adds_bias) others.bias = nullptr;
    others.residual = nullptr, others.activation = Activation::kNone, others.gates = false;
    const int64_t blocks_of_rows = kernels::CeilDiv(device.multiprocessors, kernels::CeilDiv(a.n, int64_t{kSize}));
    others.packed.expected = blocks_of_rows * kSize;
    return kernels::GemmMma<T>(form, tile, others, device, stream);
  }
};

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_GEMM_CUBLASLT_H_
