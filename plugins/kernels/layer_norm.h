#ifndef BERTFUSE_KERNELS_LAYER_NORM_H_
#define BERTFUSE_KERNELS_LAYER_NORM_H_

#include "kernels/activation.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {

// y[rows, columns] = LayerNorm(activation(sum of `splits` partial products + bias) + residual) * gamma + beta.
// `partial` is float32 [splits, rows, columns], as a matrix product leaves it; `bias` and `residual` may be null. Where
// `product` is given it stands in for `partial`: one product that is rounded to T already. It may be y itself: what is
// overwritten while it is in the L2 cache never goes to memory. From row whole_rows on `product` is the first part of
// k's sum, and `parts`, [more_parts, rows - whole_rows, columns], are the rest, each rounded to T.
template <class T>
struct LayerNormArguments {
  const T* product;
  const float* partial;
  int splits;
  const T* bias;
  const T* residual;
  const T* gamma;
  const T* beta;
  T* y;
  int64_t rows, columns;
  float epsilon;
  Activation activation;
  // No kernel that may still run writes bias, gamma or beta: they are read before the kernels before this one have
  // ended.
  bool vectors_are_constant = false;
  const T* parts = nullptr;
  int more_parts = 0;
  int64_t whole_rows = 0;
};

// Of a row that a block holds in registers, in accesses of `vector` elements: four, or one where columns or pointers do
// not allow that.
constexpr int64_t MostRowColumns(int vector) { return int64_t{8192} * vector; }

constexpr int64_t kMostColumnsInParts = 4096;
constexpr int kMostMoreParts = 5;

// Whether rows are narrow enough.
template <class T>
bool LayerNormTakes(const LayerNormArguments<T>& arguments);

// Rows that are too wide give cudaErrorInvalidValue. So do a product in float32 or without accesses of four elements,
// and more than kMostMoreParts parts, or parts of more than kMostColumnsInParts columns.
template <class T>
cudaError_t LayerNorm(const LayerNormArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAYER_NORM_H_
