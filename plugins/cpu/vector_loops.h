// The inner loops of the CPU kernels, compiled once per instruction set and chosen when first used. float32 throughout.
#ifndef BERTFUSE_CPU_VECTOR_LOOPS_H_
#define BERTFUSE_CPU_VECTOR_LOOPS_H_

#include <cstdint>

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
  float* y;           // [rows, y_stride]
  int64_t rows;       // at most kQueryBlock
  int64_t num_keys;
  int64_t head_size;
  int64_t kt_stride;  // multiple of kKeyPadding
  int64_t y_stride;
  float scale;
};

struct VectorLoops {
  const char* name;
  // y = GELU(y + bias) over one row.
  void (*gelu)(float* y, const float* bias, int64_t n, bool tanh);
  // y = LayerNorm(y + bias + residual) over one row; bias and residual may be null. Two passes: mean, then variance.
  void (*layer_norm)(float* y, const float* bias, const float* residual, const float* gamma, const float* beta,
                     int64_t n, float epsilon);
  // y = a + b.
  void (*add)(const float* a, const float* b, float* y, int64_t n);
  // y = softmax(q kt scale + mask) v, one pass over the keys with a running maximum.
  void (*attention)(const AttentionRows& block);
  void (*float16_to_float)(const uint16_t* x, float* y, int64_t n);
  void (*float_to_float16)(const float* x, uint16_t* y, int64_t n);
  void (*bfloat16_to_float)(const uint16_t* x, float* y, int64_t n);
  void (*float_to_bfloat16)(const float* x, uint16_t* y, int64_t n);
};

// The loops for this machine.
const VectorLoops& Loops();

}  // namespace bertfuse::cpu
#endif  // BERTFUSE_CPU_VECTOR_LOOPS_H_
