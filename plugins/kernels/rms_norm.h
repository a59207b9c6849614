#ifndef BERTFUSE_KERNELS_RMS_NORM_H_
#define BERTFUSE_KERNELS_RMS_NORM_H_

#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// y[rows, columns] = RMSNorm(x) * (gamma + gamma_offset), of rows that lie in memory as they are to be normalised. y
// may be x.
template <class T>
struct RmsNormArguments {
  const T* x;
  const T* gamma;
  T* y;
  int64_t rows, columns;
  float epsilon;
  float gamma_offset;
  PackedRows packed;  // of the rows; nothing is written from *row_count on
  // Choose the kernel regardless of the number of rows, so that a row's bits are the same in any batch.
  bool deterministic_rows;
};

// Whether rows are narrow enough.
template <class T>
bool RmsNormSupports(const RmsNormArguments<T>& arguments);

// Rows that are too wide give cudaErrorInvalidValue.
template <class T>
cudaError_t RmsNorm(const RmsNormArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_RMS_NORM_H_
