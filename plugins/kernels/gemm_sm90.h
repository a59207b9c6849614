#ifndef BERTFUSE_KERNELS_GEMM_SM90_H_
#define BERTFUSE_KERNELS_GEMM_SM90_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/activation.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {

// What follows the product x[m, k] * weight[n, k] transposed.
enum class GemmEpilogue {
  kElementwise,  // y[m, n] = activation(product + bias); with `splits` > 1 the bare product, in parts
  kLayerNorm,    // y[m, n] = LayerNorm(activation(product + bias) + residual); n = cluster_n * block_n
  kPartial,      // partial[splits, m, n] = the float32 product over each part of k
};

constexpr int kStageK = 64;      // elements of k that are multiplied at a time: rows of 128 bytes
constexpr int kMostCluster = 8;  // blocks that every Hopper device takes in a cluster

// How the product is cut up. A block computes block_m x block_n outputs at a time; the blocks of a cluster, cluster_m x
// cluster_n of them, share what they load. k is cut into `splits` parts: for all rows with kPartial, for those from
// whole_rows on with kElementwise.
struct GemmSm90Tile {
  int block_m;
  int block_n;
  int cluster_m;
  int cluster_n;
  int splits;
};

template <class T>
struct GemmSm90Arguments {
  const T* x;
  const T* weight;
  const T* bias;      // may be null with kElementwise
  const T* residual;  // may be null
  const T* gamma;
  const T* beta;
  T* y;
  float* partial;
  // With kElementwise and `splits` > 1: of the rows from whole_rows on y gets the first part of k's sum, this the
  // others: [splits - 1, m - whole_rows, n]. whole_rows is a multiple of the cluster's rows.
  T* parts;
  int64_t whole_rows;
  int64_t m, n, k;
  float epsilon;
  Activation activation;
  // No kernel that may still run writes weight, bias, gamma or beta: they are then read before the kernels before this
  // one have ended.
  bool weights_are_constant;
  // The last rows first: of an x larger than the L2 cache they are what is left there, if the kernel that wrote it
  // began with the first.
  bool backwards;
};

// Whether shapes and pointers fit the copy engine: 16-byte rows; and those of LayerNorm the kernel after it, which
// reads four elements at a time.
template <class T>
bool GemmSm90Takes(const GemmSm90Arguments<T>& a, const Device& device) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const int vector_bytes = a.gamma == nullptr ? 4 : 8;
  return device.hopper && a.k % 8 == 0 && a.n % 8 == 0 && a.m < kMost && a.n < kMost && a.k < kMost &&
         IsAligned(a.x, 16) && IsAligned(a.weight, 16) && IsAligned(a.residual, 16) && IsAligned(a.y, 16) &&
         IsAligned(a.bias, vector_bytes) && IsAligned(a.gamma, vector_bytes) && IsAligned(a.beta, vector_bytes) &&
         IsAligned(a.partial, 16) && IsAligned(a.parts, 16);
}

// cudaErrorInvalidConfiguration where no kernel was compiled for that tile. One file for each epilogue and element
// type.
template <class T, GemmEpilogue kEpilogue>
cudaError_t GemmSm90(const GemmSm90Tile& tile, const GemmSm90Arguments<T>& arguments, const Device& device,
                     cudaStream_t stream);

#define BERTFUSE_DECLARE(T, EPILOGUE)                                                                              \
  template <>                                                                                                      \
  cudaError_t GemmSm90<T, GemmEpilogue::EPILOGUE>(const GemmSm90Tile&, const GemmSm90Arguments<T>&, const Device&, \
                                                  cudaStream_t);
BERTFUSE_DECLARE(__half, kElementwise)
BERTFUSE_DECLARE(__half, kLayerNorm)
BERTFUSE_DECLARE(__half, kPartial)
BERTFUSE_DECLARE(__nv_bfloat16, kElementwise)
BERTFUSE_DECLARE(__nv_bfloat16, kLayerNorm)
BERTFUSE_DECLARE(__nv_bfloat16, kPartial)
#undef BERTFUSE_DECLARE

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_SM90_H_
