#ifndef BERTFUSE_KERNELS_LAYER_NORM_H_
#define BERTFUSE_KERNELS_LAYER_NORM_H_

#include <algorithm>

#include "core/activation.h"
#include "kernels/last_wave.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"
#include "kernels/prefetch.h"
#include "kernels/quantized_result.h"

namespace bertfuse::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };

// y[rows, columns] = LayerNorm(activation(product + bias) + residual) * gamma + beta; with product_gamma what residual
// is added to becomes its RMSNorm before, times product_gamma. The product comes as split-K's float32 partial sums,
// `float_partials` [splits, rows, columns], or rounded to T, as `product`. That may be y itself: what is overwritten
// while it is in the L2 cache never goes to memory. In the rows after last_wave's full panels `product` holds the first
// split's partial sums, and `partials` [more_partials, partial_rows, columns] those of the others, each rounded to T.
// `bias` and `residual` may be null.
template <class T>
struct LayerNormArguments {
  const T* product;
  const float* float_partials;
  int splits;
  const T* bias;
  const T* residual;
  const T* gamma;
  const T* beta;
  T* y;
  int64_t rows, columns;
  float epsilon;
  Activation activation;
  // No kernel that may still be running writes bias, gammas or beta, so they are read before the preceding kernels have
  // ended.
  bool vectors_are_constant = false;
  bool residual_is_complete = false;  // and none writes the residual: persistent warps read their first one early, too
  const T* partials = nullptr;
  int more_partials = 0;
  LastWave last_wave = {};
  int64_t partial_rows = 0;
  PackedRows packed = {};  // of the rows; nothing is written from *row_count on
  // Set by LayerNorm(): rows before the first that has partial sums, and how many blocks go through a row that does not
  // exist while the kernels before theirs still run: as many as there are multiprocessors.
  int64_t unsplit_rows = 0;
  unsigned warm_up_blocks = 0;
  // [rows, columns], given: gets what is normalised. Then the norm may be any of NormKind's and beta null. `product`
  // may be the same memory, where neither bias nor residual nor partial sums are left to be added: nothing is stored.
  T* total = nullptr;
  NormKind norm = NormKind::kLayerNorm;
  QuantizedResult quantized = {};  // where CanQuantize()
  // In place of `residual`, beside 16-bit y, where `total` is not given.
  QuantizedResidual quantized_residual = {};
  const T* product_gamma = nullptr;  // beside `total`
  float gamma_offset = 0;            // of RMSNorms: added to gamma and product_gamma
  Prefetch next = {};                // by the kernels of a block for each row and of persistent warps
};

// The widest row that a block holds in registers, with accesses of `vector` elements: four, or one where columns or
// pointers do not allow that.
constexpr int64_t MaxRowColumns(int vector) { return int64_t{8192} * vector; }

constexpr int64_t kMaxSplitColumns = 4096;
constexpr int kMaxMorePartials = 5;

constexpr int64_t kMaxWarpColumns = 1024;  // a warp holds a row in its registers

enum class LayerNormKernel {
  kBlockPerRow,
  kWarpPerRow,
  kPersistentWarps,  // a warp for each row; it loads its next row while it normalises one
  // The same for rows few of which have more than one partial sum beside the product: the others are loaded one round
  // trip to the L2 cache later, and up to twice as many warps run at a time.
  kPersistentWarpsFewPartials,
};

// What decides which kernels can run.
struct LayerNormProblem {
  int64_t columns;
  int element_bytes;  // of T
  int vector;         // elements of T that are read at a time (LayerNormVector())
  bool rounded;       // the product comes rounded to T, not as float32 partial sums
  int more_partials;  // rounded to T, beside the first
  bool has_activation;
};

// Elements of T that can be read at a time, by columns and pointers: 8 (of 2 bytes each), 4 or 1.
template <class T>
int LayerNormVector(const LayerNormArguments<T>& a) {
  const auto aligned = [&](int elements) {
    const auto all = [&](const auto*... data) { return (IsAligned(data, elements * sizeof(T)) && ...); };
    return a.columns % elements == 0 &&
           all(a.product, a.partials, a.bias, a.residual, a.gamma, a.beta, a.y, a.total, a.product_gamma) &&
           IsAligned(a.quantized.rows, elements) && IsAligned(a.quantized.smooth, 4 * sizeof(float)) &&
           IsAligned(a.quantized_residual.rows, elements) && IsAligned(a.quantized_residual.factor, 4 * sizeof(float));
  };
  if (!IsAligned(a.float_partials, 4 * sizeof(float)) || !aligned(4)) return 1;
  return sizeof(T) == 2 && aligned(8) ? 8 : 4;
}

constexpr bool LayerNormSupports(LayerNormKernel kernel, const LayerNormProblem& p) {
  if (p.columns > MaxRowColumns(std::min(p.vector, 4))) return false;
  if (p.rounded && (p.element_bytes != 2 || p.vector == 1)) return false;
  if (p.more_partials > kMaxMorePartials) return false;
  if (p.more_partials > 0 && (!p.rounded || p.columns > kMaxSplitColumns)) return false;
  switch (kernel) {
    case LayerNormKernel::kBlockPerRow:
      return true;
    case LayerNormKernel::kWarpPerRow:
      return p.vector >= 4 && p.columns <= kMaxWarpColumns && p.more_partials == 0;
    case LayerNormKernel::kPersistentWarps:
    case LayerNormKernel::kPersistentWarpsFewPartials:
      return p.vector == 8 && p.columns <= kMaxWarpColumns && p.rounded && !p.has_activation &&
             (kernel == LayerNormKernel::kPersistentWarps || p.more_partials > 1);
  }
  return false;
}

// Whether LayerNorm() also writes y in 8 bits, where that is asked for. Beside `total` few models do: there are kernels
// for 16-bit products that are not normalised themselves.
template <class T>
bool CanQuantize(const LayerNormArguments<T>& a) {
  return a.quantized.rows == nullptr || a.total == nullptr || (sizeof(T) == 2 && a.product_gamma == nullptr);
}

// cudaErrorInvalidConfiguration where the kernel does not support the arguments; cudaErrorInvalidValue for 2^31 packed
// rows.
template <class T>
cudaError_t LayerNorm(LayerNormKernel kernel, const LayerNormArguments<T>& arguments, const Device& device,
                      cudaStream_t stream);

// The same where `total` is given, where `quantized` is, where both are, and where `quantized_residual` is.
template <class T>
cudaError_t ResidualNorm(LayerNormKernel kernel, const LayerNormArguments<T>& arguments, const Device& device,
                         cudaStream_t stream);
template <class T>
cudaError_t QuantizingLayerNorm(LayerNormKernel kernel, const LayerNormArguments<T>& arguments, const Device& device,
                                cudaStream_t stream);
template <class T>
cudaError_t QuantizingResidualNorm(LayerNormKernel kernel, const LayerNormArguments<T>& arguments, const Device& device,
                                   cudaStream_t stream);
template <class T>
cudaError_t NormOfQuantizedResidual(LayerNormKernel kernel, const LayerNormArguments<T>& arguments,
                                    const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAYER_NORM_H_
