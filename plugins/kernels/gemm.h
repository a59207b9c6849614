// A matrix product with what follows it, as every backend takes it.
#ifndef BERTFUSE_KERNELS_GEMM_H_
#define BERTFUSE_KERNELS_GEMM_H_

#include "core/activation.h"
#include "kernels/elements.h"
#include "kernels/last_wave.h"
#include "kernels/packed_rows.h"
#include "kernels/prefetch.h"
#include "kernels/quantized_result.h"
#include "kernels/rotation.h"

namespace bertfuse::kernels {

// What one thread block of a product is: its tile and its pipeline (CUTLASS: TileShape and StageCount).
struct GemmBlock {
  int m, n;                // the tile of y
  int stages;              // of the ring in shared memory
  int per_multiprocessor;  // blocks that are resident at a time
  // Sums of 8-bit floats go to other registers after each stage, where they are added with rounding: tensor cores keep
  // about 14 bits of a sum.
  bool promotes = false;
  bool long_stages = false;  // of mma/: a stage holds 128 bytes of k of each row, not 64
};

constexpr bool operator==(const GemmBlock& a, const GemmBlock& b) {
  return a.m == b.m && a.n == b.n && a.stages == b.stages && a.per_multiprocessor == b.per_multiprocessor &&
         a.promotes == b.promotes && a.long_stages == b.long_stages;
}

// How the product x[m, k] * weight[n, k] transposed is tiled: a block, and clusters of cluster_m x cluster_n blocks
// (CUTLASS: ClusterShape), which multicast what they load. k is split `splits` ways, for all rows or for those of the
// last wave. A backend that chooses its tile itself takes none of this.
struct GemmTile {
  GemmBlock block = {};
  int cluster_m = 1;
  int cluster_n = 1;
  int splits = 1;
};

// What a launch of a product leaves to be done.
enum class GemmForm {
  kComplete,     // nothing
  kPartialSums,  // float_partials[splits, m, n] are float32 sums over each split of k: LayerNorm adds them up
  // y holds the product in y's type, in the last wave of splits its partial sums: LayerNorm over it. Of a gate, which
  // makes y half as wide, memory of the workspace holds it in y's place.
  kRounded,
};

template <class Elements>
struct GemmArguments {
  using X = typename Elements::X;
  using Weight = typename Elements::Weight;
  using Y = typename Elements::Y;

  const X* x;
  const Weight* weight;
  const Y* bias;      // may be null, except with LayerNorm
  const Y* residual;  // may be null
  const Y* gamma;     // given: y is to be normalised, by this launch or the next
  const Y* beta;
  Y* y;
  float* float_partials;
  // kRounded with `splits` > 1: for the rows after last_wave's full panels, y gets the first split's partial sums, and
  // this gets the others': [splits - 1, partial_rows, n].
  Y* partials;
  LastWave last_wave;
  int64_t partial_rows;
  int64_t m, n, k;
  PackedRows packed;  // of the m rows; y's rows from *row_count on are unspecified
  // Packed rows in front of x's and y's first one, which another launch computes: *row_count counts them, too. Only
  // GemmMma reads it.
  int64_t rows_before;
  float epsilon;
  Activation activation;
  // No kernel that may still be running writes weight, bias, gammas or beta, so they may be read before the preceding
  // kernels have ended.
  bool weights_are_constant;
  // Begin with the last rows. If x is larger than the L2 cache, these are the rows still in it, provided that the
  // kernel that wrote x began with the first ones.
  bool last_rows_first;
  bool allow_tf32;  // float32 operands may be rounded to 11 bits
  // Of 8-bit operands: row i of x is row_scales[i] times its integers, row n of weight weight_scales[n] times its own.
  const float* row_scales;
  const float* weight_scales;
  const int32_t* x_compensation;  // [n] of integers: taken off the sums of products; may be null
  // Memory of the workspace behind the partial sums, as much as the tactic asks for; for a backend that takes some.
  void* scratch;
  // Given: gets the sum that is normalised. Then the norm has a launch of its own, may be RMSNorm, and beta null.
  Y* total;
  // kRounded: the residual is added before y is rounded. Only GemmSm90Residual reads it.
  bool adds_residual;
  bool rms;
  QuantizedResult quantized;  // of a norm's own launch, or in place of y (GemmSm90Quantizing, GemmSm90Gated)
  // In place of the residual, of a norm's own launch or of GemmSm90QuantizingNorm.
  QuantizedResidual quantized_residual;
  // kComplete: y[m, n / 2] = activation(product + bias of the first n / 2 columns) * (the same of the others).
  bool gates;
  // kComplete, without an activation: y's heads are rotated behind the bias. Only GemmSm90Rotating reads it.
  Rotation<Y> rotation;
  // The kernel behind this one begins no earlier than those before it have ended, so that it may read what they wrote
  // before it waits for this one. Only GemmSm90 reads it.
  bool dependents_begin_late;
  Prefetch next;  // by GemmMma alone, and where no other kernel of the op follows
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_GEMM_H_
