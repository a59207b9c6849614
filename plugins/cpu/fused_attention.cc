#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = FusedAttention;

// Added to the score of a hidden key. So large that in float32 the score is lost in it: a row with every key hidden has
// equal scores, and next to a key that is seen the weight is exactly 0.
constexpr float kHidden = -1e30f;

struct Sizes {
  explicit Sizes(const bertfuse_call& call) {
    const bertfuse_tensor& qkv = call.inputs[Op::In::qkv];
    batch = qkv.shape[0];
    sequence = qkv.shape[1];
    hidden = qkv.shape[2] / 3;
    heads = call.attributes[Op::Attr::num_heads].i;
    head_size = hidden / heads;
    kt_stride = (sequence + kKeyPadding - 1) / kKeyPadding * kKeyPadding;
  }
  int64_t batch, sequence, hidden, heads, head_size;
  int64_t kt_stride;  // transposed keys are padded, so that every step works on full vectors
};

// Q and V with their biases per head, K transposed, and the mask as numbers to add.
struct Buffers {
  Buffers(const Sizes& s, bool masked, Arena& arena)
      : q(arena.Take<float>(s.batch * s.sequence * s.hidden)),
        kt(arena.Take<float>(s.batch * s.hidden * s.kt_stride)),
        v(arena.Take<float>(s.batch * s.sequence * s.hidden)),
        mask(arena.Take<float>(masked ? s.batch * s.kt_stride : 0)) {}
  float* q;
  float* kt;
  float* v;
  float* mask;
};

bool IsMasked(const bertfuse_call& call) { return call.inputs[Op::In::mask].dtype != BERTFUSE_ABSENT; }

void FillMask(const bertfuse_tensor& mask, const Sizes& s, float* out) {
  SwitchIndex(mask.dtype, [&](auto tag) {
    const auto* in = static_cast<const decltype(tag)*>(mask.data);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < s.kt_stride; ++i) {
        out[b * s.kt_stride + i] = i < s.sequence && in[b * s.sequence + i] == 0 ? kHidden : 0.0f;
      }
    }
  });
}

// One head of one batch entry: adds the bias and brings Q, K and V into the buffers' layout.
void SplitHead(const float* qkv, const float* bias, const Sizes& s, int64_t item, const Buffers& to) {
  const int64_t b = item / s.heads, column = item % s.heads * s.head_size;
  const float* x = qkv + b * s.sequence * 3 * s.hidden + column;
  float* q = to.q + item * s.sequence * s.head_size;
  float* kt = to.kt + item * s.head_size * s.kt_stride;
  float* v = to.v + item * s.sequence * s.head_size;
  // The transposition goes in squares, so that both sides stay in the first cache level.
  constexpr int64_t kSquare = 16;
  for (int64_t first = 0; first < s.sequence; first += kSquare) {
    const int64_t last = std::min(first + kSquare, s.sequence);
    for (int64_t row = first; row < last; ++row) {
      const float* in = x + row * 3 * s.hidden;
      Loops().add(in, bias + column, q + row * s.head_size, s.head_size);
      Loops().add(in + 2 * s.hidden, bias + 2 * s.hidden + column, v + row * s.head_size, s.head_size);
    }
    for (int64_t d = 0; d < s.head_size; ++d) {
      const float key_bias = bias[s.hidden + column + d];
      for (int64_t row = first; row < last; ++row) {
        kt[d * s.kt_stride + row] = x[row * 3 * s.hidden + s.hidden + d] + key_bias;
      }
    }
  }
  for (int64_t d = 0; d < s.head_size; ++d) {
    std::fill(kt + d * s.kt_stride + s.sequence, kt + (d + 1) * s.kt_stride, 0.0f);
  }
}

size_t WorkspaceSize(const bertfuse_call& call) {
  Arena arena;
  Buffers(Sizes(call), IsMasked(call), arena);
  return arena.used();
}

void Run(const bertfuse_call& call) {
  const Sizes s(call);
  if (s.batch == 0 || s.sequence == 0 || s.hidden == 0) return;
  Arena arena(call.workspace);
  const bool masked = IsMasked(call);
  const Buffers buffers(s, masked, arena);
  if (masked) FillMask(call.inputs[Op::In::mask], s, buffers.mask);

  const float* qkv = FloatData(call.inputs[Op::In::qkv]);
  const float* bias = FloatData(call.inputs[Op::In::bias]);
  const int64_t items = s.batch * s.heads;
  ParallelFor(call, items, GrainFor(6 * s.sequence * s.head_size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) SplitHead(qkv, bias, s, item, buffers);
  });

  float* y = static_cast<float*>(call.outputs[Op::Out::y].data);
  const float scale = call.attributes[Op::Attr::scale].f;
  const int64_t query_blocks = (s.sequence + kQueryBlock - 1) / kQueryBlock;
  // A block multiplies each key and value with all its queries, hence the factor.
  const int64_t grain = GrainFor(kQueryBlock * s.sequence * s.head_size / 16);
  ParallelFor(call, items * query_blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t item = i / query_blocks, first = i % query_blocks * kQueryBlock;
      const int64_t b = item / s.heads, head = item % s.heads;
      AttentionRows block;
      block.q = buffers.q + (item * s.sequence + first) * s.head_size;
      block.kt = buffers.kt + item * s.head_size * s.kt_stride;
      block.v = buffers.v + item * s.sequence * s.head_size;
      block.mask = masked ? buffers.mask + b * s.kt_stride : nullptr;
      block.y = y + (b * s.sequence + first) * s.hidden + head * s.head_size;
      block.rows = std::min(kQueryBlock, s.sequence - first);
      block.num_keys = s.sequence;
      block.head_size = s.head_size;
      block.kt_stride = s.kt_stride;
      block.y_stride = s.hidden;
      block.scale = scale;
      Loops().attention(block);
    }
  });
}

constexpr Float32Kernel kFloat32 = {WorkspaceSize, Run};

}  // namespace

const bertfuse_kernel kFusedAttention = AnyFloatKernel<Op, kFloat32>();

}  // namespace bertfuse::cpu
