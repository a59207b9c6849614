#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
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
    const bertfuse_tensor& cu_seqlens = call.inputs[Op::In::cu_seqlens];
    packed = cu_seqlens.dtype != BERTFUSE_ABSENT;
    masked = !packed && call.inputs[Op::In::mask].dtype != BERTFUSE_ABSENT;
    rows = qkv.shape[0] * qkv.shape[1];
    sequences = packed ? cu_seqlens.shape[0] - 1 : qkv.shape[0];
    hidden = qkv.shape[2] / 3;
    heads = call.attributes[Op::Attr::num_heads].i;
    head_size = hidden / heads;
    // All transposed keys of one head, each sequence's padded, so that every step works on full vectors.
    keys = rows + sequences * (kKeyPadding - 1);
  }
  bool packed, masked;
  int64_t rows, sequences, hidden, heads, head_size, keys;
};

// Q and V with their biases per head, K transposed, and the mask as numbers to add; where each sequence's parts begin.
struct Buffers {
  Buffers(const Sizes& s, Arena& arena)
      : q(arena.Take<float>(s.rows * s.hidden)),
        kt(arena.Take<float>(s.hidden * s.keys)),
        v(arena.Take<float>(s.rows * s.hidden)),
        mask(arena.Take<float>(s.masked ? s.keys : 0)),
        first_row(arena.Take<int64_t>(s.sequences + 1)),
        first_key(arena.Take<int64_t>(s.sequences + 1)),
        first_block(arena.Take<int64_t>(s.sequences + 1)) {}
  float* q;
  float* kt;
  float* v;
  float* mask;
  int64_t* first_row;
  int64_t* first_key;    // counted with padding
  int64_t* first_block;  // of queries, counted for one head
};

// One sequence: `length` rows from `first` on, its keys' padded length, and where those begin.
struct Sequence {
  Sequence(const Buffers& buffers, int64_t b)
      : first(buffers.first_row[b]),
        length(buffers.first_row[b + 1] - first),
        first_key(buffers.first_key[b]),
        kt_stride(buffers.first_key[b + 1] - first_key) {}
  int64_t first, length, first_key, kt_stride;
};

void FillOffsets(const bertfuse_call& call, const Sizes& s, const Buffers& to) {
  const bertfuse_tensor& given = call.inputs[Op::In::cu_seqlens];
  if (s.packed) CheckSequences(Op::kName, given, s.rows);
  const int64_t length = s.sequences == 0 ? 0 : s.rows / s.sequences;
  to.first_key[0] = to.first_block[0] = 0;
  for (int64_t b = 0; b <= s.sequences; ++b) {
    to.first_row[b] = s.packed ? static_cast<const int32_t*>(given.data)[b] : b * length;
    if (b == 0) continue;
    const int64_t rows = to.first_row[b] - to.first_row[b - 1];
    to.first_key[b] = to.first_key[b - 1] + (rows + kKeyPadding - 1) / kKeyPadding * kKeyPadding;
    to.first_block[b] = to.first_block[b - 1] + (rows + kQueryBlock - 1) / kQueryBlock;
  }
}

void FillMask(const bertfuse_tensor& mask, const Sizes& s, const Buffers& to) {
  SwitchIndex(mask.dtype, [&](auto tag) {
    const auto* in = static_cast<const decltype(tag)*>(mask.data);
    for (int64_t b = 0; b < s.sequences; ++b) {
      const Sequence sequence(to, b);
      for (int64_t i = 0; i < sequence.kt_stride; ++i) {
        to.mask[sequence.first_key + i] = i < sequence.length && in[sequence.first + i] == 0 ? kHidden : 0.0f;
      }
    }
  });
}

// One head of one sequence: adds the bias and brings Q, K and V into the buffers' layout, in which a sequence's heads
// lie one after the other.
void SplitHead(const float* qkv, const float* bias, const Sizes& s, const Sequence& sequence, int64_t head,
               const Buffers& to) {
  const int64_t column = head * s.head_size, stride = sequence.kt_stride;
  const float* x = qkv + sequence.first * 3 * s.hidden + column;
  float* q = to.q + sequence.first * s.hidden + head * sequence.length * s.head_size;
  float* kt = to.kt + sequence.first_key * s.hidden + head * s.head_size * stride;
  float* v = to.v + sequence.first * s.hidden + head * sequence.length * s.head_size;
  // The transposition goes in squares, so that both sides stay in the first cache level.
  constexpr int64_t kSquare = 16;
  for (int64_t first = 0; first < sequence.length; first += kSquare) {
    const int64_t last = std::min(first + kSquare, sequence.length);
    for (int64_t row = first; row < last; ++row) {
      const float* in = x + row * 3 * s.hidden;
      Loops().add(in, bias + column, q + row * s.head_size, s.head_size);
      Loops().add(in + 2 * s.hidden, bias + 2 * s.hidden + column, v + row * s.head_size, s.head_size);
    }
    for (int64_t d = 0; d < s.head_size; ++d) {
      const float key_bias = bias[s.hidden + column + d];
      for (int64_t row = first; row < last; ++row) {
        kt[d * stride + row] = x[row * 3 * s.hidden + s.hidden + d] + key_bias;
      }
    }
  }
  for (int64_t d = 0; d < s.head_size; ++d) {
    std::fill(kt + d * stride + sequence.length, kt + (d + 1) * stride, 0.0f);
  }
}

size_t WorkspaceSize(const bertfuse_call& call) {
  Arena arena;
  Buffers(Sizes(call), arena);
  return arena.used();
}

void Run(const bertfuse_call& call) {
  const Sizes s(call);
  if (s.rows == 0 || s.sequences == 0 || s.hidden == 0) return;
  Arena arena(call.workspace);
  const Buffers buffers(s, arena);
  FillOffsets(call, s, buffers);
  if (s.masked) FillMask(call.inputs[Op::In::mask], s, buffers);

  const float* qkv = FloatData(call.inputs[Op::In::qkv]);
  const float* bias = FloatData(call.inputs[Op::In::bias]);
  const int64_t usual_length = std::max<int64_t>(1, buffers.first_row[s.sequences] / s.sequences);
  ParallelFor(call, s.sequences * s.heads, GrainFor(6 * usual_length * s.head_size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      SplitHead(qkv, bias, s, Sequence(buffers, item / s.heads), item % s.heads, buffers);
    }
  });

  float* y = static_cast<float*>(call.outputs[Op::Out::y].data);
  const float scale = call.attributes[Op::Attr::scale].f;
  // A block multiplies each key and value with all its queries, hence the factor.
  const int64_t grain = GrainFor(kQueryBlock * usual_length * s.head_size / 16);
  const int64_t* blocks = buffers.first_block;
  ParallelFor(call, blocks[s.sequences] * s.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // Sequence by sequence, in it head by head. Of sequences without a row none begins behind this block.
      const int64_t b = std::upper_bound(blocks, blocks + s.sequences + 1, i / s.heads) - blocks - 1;
      const Sequence sequence(buffers, b);
      const int64_t own_blocks = blocks[b + 1] - blocks[b], own = i - blocks[b] * s.heads;
      const int64_t head = own / own_blocks, first = own % own_blocks * kQueryBlock;
      const int64_t head_begin = sequence.first * s.hidden + head * sequence.length * s.head_size;
      AttentionRows block;
      block.q = buffers.q + head_begin + first * s.head_size;
      block.kt = buffers.kt + sequence.first_key * s.hidden + head * s.head_size * sequence.kt_stride;
      block.v = buffers.v + head_begin;
      block.mask = s.masked ? buffers.mask + sequence.first_key : nullptr;
      block.y = y + (sequence.first + first) * s.hidden + head * s.head_size;
      block.rows = std::min(kQueryBlock, sequence.length - first);
      block.num_keys = sequence.length;
      block.head_size = s.head_size;
      block.kt_stride = sequence.kt_stride;
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
