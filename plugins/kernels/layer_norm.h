#ifndef BERTFUSE_KERNELS_LAYER_NORM_H_
#define BERTFUSE_KERNELS_LAYER_NORM_H_

#include "kernels/activation.h"
#include "kernels/last_wave.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// y[rows, columns] = LayerNorm(activation(product + bias) + residual) * gamma + beta. The product comes as split-K's
// float32 partial sums, `float_partials` [splits, rows, columns], or rounded to T, as `product`. That may be y itself:
// what is overwritten while it is in the L2 cache never goes to memory. In the rows after last_wave's full panels
// `product` holds the first split's partial sums, and `partials` [more_partials, partial_rows, columns] those of the
// others, each rounded to T. `bias` and `residual` may be null.
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
  // No kernel that may still be running writes bias, gamma or beta, so they are read before the preceding kernels have
  // ended.
  bool vectors_are_constant = false;
  const T* partials = nullptr;
  int more_partials = 0;
  LastWave last_wave = {};
  int64_t partial_rows = 0;
  PackedRows packed = {};  // of the rows; nothing is written from *row_count on
  // Choose the kernel regardless of the number of rows, so that a row's bits are the same in any batch.
  bool deterministic_rows = false;
  int64_t unsplit_rows = 0;  // set by LayerNorm()
};

// The widest row that a block holds in registers, with accesses of `vector` elements: four, or one where columns or
// pointers do not allow that.
constexpr int64_t MostRowColumns(int vector) { return int64_t{8192} * vector; }

constexpr int64_t kMostSplitColumns = 4096;
constexpr int kMostMorePartials = 5;

// Whether rows are narrow enough.
template <class T>
bool LayerNormTakes(const LayerNormArguments<T>& arguments);

// Rows that are too wide, and 2^31 packed ones, give cudaErrorInvalidValue. So do a product in float32 or without
// accesses of four elements, and more than kMostMorePartials partial sums beside the first, or such of more than
// kMostSplitColumns columns.
template <class T>
cudaError_t LayerNorm(const LayerNormArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAYER_NORM_H_
