// The inner loops of the CPU kernels, compiled once per instruction set and chosen when first used. float32 throughout.
#ifndef BERTFUSE_CPU_VECTOR_LOOPS_H_
#define BERTFUSE_CPU_VECTOR_LOOPS_H_

#include <cstdint>

#include "core/activation.h"

namespace bertfuse::cpu {

// Score columns of one attention step, and what rows of transposed keys are padded to.
inline constexpr int64_t kKeyBlock = 128;
inline constexpr int64_t kKeyPadding = 32;
// Query rows of one attention step.
inline constexpr int64_t kQueryBlock = 32;

// One block of queries of one head.
struct AttentionRows {
  const float* q;     // [rows, head_size], dense
  const float* kt;    // [head_size, kt_stride]: keys transposed, zeros from num_keys on
  const float* v;     // [num_keys, head_size], dense
  const float* mask;  // [kt_stride], added to the scaled scores; null: nothing hidden
  // Added to them by distance, from by_distance[-row] on for the keys of a row; null: nothing. Readable as far as
  // kt_stride and the rows need.
  const float* by_distance;
  // Vectors by distance that queries and keys are multiplied with, [positions, head_size] each, before scores are
  // scaled; null: none. Row 0 and key 0 have those at position_at, counted on as far as the tables' ends.
  const float *q_positions, *k_positions;
  const float* qt;  // [head_size, kt_stride]: the queries transposed; kQueryBlock of them can be read
  int64_t positions, position_at;
  float* y;      // [rows, y_stride]
  int64_t rows;  // at most kQueryBlock
  int64_t num_keys;
  int64_t head_size;
  int64_t kt_stride;  // multiple of kKeyPadding
  int64_t y_stride;
  float scale;
};

// Rows of a matrix as 8-bit integers, in the form that these loops' products take.
struct Int8Rows {
  void* rows;        // quantized_stride(k) bytes from one to the next
  float* scales;     // what each row's integers are multiples of
  int32_t* offsets;  // what its sums of products begin with
  int64_t k, stride;
  int32_t zero;         // the integer that 0 is; this times `sums` is taken off each row's sums of products
  const int32_t* sums;  // weight_sums() of the weight, or beside a `zero` of 1 that product; else not read
};

// One row to be normalised.
struct NormRow {
  float* y;
  const float* bias;      // may be null
  const float* residual;  // may be null
  const float* gamma;
  const float* beta;  // may be null
  float* total;       // gets what is normalised; may be null
  int64_t n;
  float epsilon;
  bool rms;  // RMSNorm: neither a mean nor a shift
  // May be null; else y + bias becomes its RMSNorm, of this scale, before the residual is added.
  const float* product_gamma = nullptr;
  float gamma_offset = 0;  // of RMSNorms: added to gamma and product_gamma
};

struct VectorLoops {
  const char* name;
  // y = activation(y + bias) over one row.
  void (*activate)(float* y, const float* bias, int64_t n, Activation activation);
  // y = LayerNorm(y + bias + residual) over one row, or with `rms` RMSNorm. Two passes: mean, then variance.
  void (*norm)(const NormRow& row);
  // y = gate * up over one row.
  void (*multiply)(const float* gate, const float* up, float* y, int64_t n);
  // y = a + b.
  void (*add)(const float* a, const float* b, float* y, int64_t n);
  // y[rows, columns] = x[rows, k] weight[columns, k]ᵀ; y's rows are y_stride apart. A row's bits depend on nothing but
  // it and the weights.
  void (*gemm)(const float* x, const float* weight, float* y, int64_t rows, int64_t columns, int64_t k,
               int64_t y_stride);
  // The same, faster from some sixty rows on. A row's bits depend on nothing but it and the weights, but are others.
  void (*gemm_panels)(const float* x, const float* weight, float* y, int64_t rows, int64_t columns, int64_t k,
                      int64_t y_stride);
  // y = softmax(q kt scale + mask + by distance) v, one pass over the keys with a running maximum.
  void (*attention)(const AttentionRows& block);
  void (*float16_to_float)(const uint16_t* x, float* y, int64_t n);
  void (*float_to_float16)(const float* x, uint16_t* y, int64_t n);
  void (*bfloat16_to_float)(const uint16_t* x, float* y, int64_t n);
  void (*float_to_bfloat16)(const float* x, uint16_t* y, int64_t n);
  void (*int8_to_float)(const int8_t* x, float scale, float* y, int64_t n);

  // x wᵀ of integers. A weight [n, k] is packed once; products take most by tiles of so many of
  // x's rows and the weight's.
  int64_t tile_rows, tile_columns;
  int64_t (*packed_bytes)(int64_t n, int64_t k);
  void (*pack_int8)(const int8_t* weight, int64_t n, int64_t k, void* packed);
  // The sum of each of the weight's rows, of a packed one, with zeros up to a multiple of tile_columns; zeros alone
  // where quantize_row's integers are without their `zero`.
  const int32_t* (*weight_sums)(const void* packed, int64_t n, int64_t k);
  int64_t (*quantized_stride)(int64_t k);
  // A row of x, times `smooth` where that is not null, as integers, multiples of `scale`, or, where that is null, of
  // its own largest magnitude / 127. To integers of a given scale `zero` is added before they are cut off at -128 and
  // 127; see weight_sums. Returns the scale: NaN where the row holds what is not finite.
  float (*quantize_row)(const float* x, const float* smooth, int64_t k, const float* scale, int32_t zero, void* row,
                        int32_t* offset);
  // y[rows, columns] = the product of rows from `first` on and the weight's rows from `column` on, a multiple of
  // tile_columns.
  void (*gemm_int8)(const Int8Rows& x, int64_t first, int64_t rows, const void* packed, const float* weight_scale,
                    int64_t column, int64_t columns, float* y, int64_t y_stride);
};

// The loops for this machine.
const VectorLoops& Loops();

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_LOOPS_H_
