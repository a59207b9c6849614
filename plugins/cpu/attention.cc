// Attention, BERT's and its variants.
#include <cmath>
#include <optional>

#include "core/attention_variant.h"
#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "cpu/quantize_result.h"
#include "cpu/rotary.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

// Added to the score of a hidden key. So large that in float32 the score is lost in it: a row with every key hidden by
// the mask has equal scores, and next to a key that is seen the weight is exactly 0.
constexpr float kHidden = -1e30f;

// A call of either op; tensors that it has not are null.
struct AttentionCall {
  const char* op;
  const bertfuse_tensor *qkv, *bias, *mask, *cu_seqlens, *token_index;
  int64_t heads, kv_heads;
  float scale;
  std::optional<AttentionVariantCall> variant;

  bool packed() const { return cu_seqlens != nullptr; }
  int64_t rows() const { return qkv->shape[0] * qkv->shape[1]; }
  int64_t sequences() const { return packed() ? cu_seqlens->shape[0] - 1 : qkv->shape[0]; }
  int64_t row_width() const { return qkv->shape[2]; }
  int64_t head_size() const { return row_width() / (heads + 2 * kv_heads); }
  int64_t hidden() const { return heads * head_size(); }
  int64_t kv_width() const { return kv_heads * head_size(); }
  // All transposed keys of one head, each sequence's padded, so that every step works on full vectors.
  int64_t keys() const { return rows() + sequences() * (kKeyPadding - 1); }
  bool changes_heads() const { return variant && variant->changes_heads(); }
  bool has_window() const { return variant && variant->has_window(); }
  // Whether packed tokens may have to be laid out as far apart as they were.
  bool may_spread() const { return token_index != nullptr && variant->counts_distances(); }
  bool has_positions() const { return variant && variant->positions != nullptr; }
  // Whether some queries may attend to all keys alike beside others that do not.
  bool counts_shown() const { return mask != nullptr && variant && (variant->has_window() || variant->alike); }
  // Of what is added by distance: rows of it, and the length of each, from -(longest - 1) on.
  int64_t distance_rows() const {
    if (!variant || (variant->distance_bias == nullptr && !has_window())) return 0;
    return variant->distance_bias == nullptr ? 1 : variant->distance_bias->shape[1];
  }
  int64_t distances() const { return variant ? 2 * variant->longest + kKeyPadding : 0; }
};

const bertfuse_tensor* Given(const bertfuse_tensor& tensor) {
  return tensor.dtype == BERTFUSE_ABSENT ? nullptr : &tensor;
}

const float* FloatData(const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : cpu::FloatData(*tensor); }

template <class Op>
AttentionCall Read(const bertfuse_call& call);

template <>
AttentionCall Read<FusedAttention>(const bertfuse_call& call) {
  using Op = FusedAttention;
  const bertfuse_tensor* const cu_seqlens = Given(call.inputs[Op::In::cu_seqlens]);
  const int64_t heads = call.attributes[Op::Attr::num_heads].i;
  return {Op::kName,
          &call.inputs[Op::In::qkv],
          &call.inputs[Op::In::bias],
          cu_seqlens == nullptr ? Given(call.inputs[Op::In::mask]) : nullptr,
          cu_seqlens,
          nullptr,
          heads,
          heads,
          call.attributes[Op::Attr::scale].f,
          std::nullopt};
}

template <>
AttentionCall Read<FusedAttentionVariant>(const bertfuse_call& call) {
  const AttentionVariantCall v(call);
  return {FusedAttentionVariant::kName,
          v.qkv,
          v.bias,
          v.mask,
          v.cu_seqlens,
          v.token_index,
          v.heads,
          v.kv_heads,
          v.scale,
          v};
}

// Q and V with their biases per head, K transposed, and what is added to scores as numbers; where each sequence's parts
// begin.
struct Buffers {
  Buffers(const AttentionCall& a, Arena& arena)
      : q(arena.Take<float>(a.rows() * a.hidden())),
        k(arena.Take<float>(a.changes_heads() ? a.rows() * a.kv_width() : 0)),
        kt(arena.Take<float>(a.kv_width() * a.keys())),
        qt(arena.Take<float>(a.has_positions() ? a.hidden() * a.keys() : 0)),
        v(arena.Take<float>(a.rows() * a.kv_width())),
        mask(arena.Take<float>(a.mask != nullptr || a.may_spread() ? a.keys() : 0)),
        by_distance(arena.Take<float>(a.distance_rows() * a.distances())),
        shown(arena.Take<int64_t>(a.counts_shown() ? a.rows() + a.sequences() : 0)),
        first_row(arena.Take<int64_t>(a.sequences() + 1)),
        first_place(arena.Take<int64_t>(a.sequences() + 1)),
        first_key(arena.Take<int64_t>(a.sequences() + 1)),
        first_block(arena.Take<int64_t>(a.sequences() + 1)) {}
  float* q;
  float* k;  // by rows, where they are changed before they are transposed
  float* kt;
  float* qt;  // where queries are multiplied with vectors by distance
  float* v;
  float* mask;
  float* by_distance;
  int64_t* shown;  // for each sequence, and each of its keys and one more: how many before it the mask shows
  int64_t* first_row;
  int64_t* first_place;  // counted with gaps between tokens, where those are laid out
  int64_t* first_key;    // counted with padding, too
  int64_t* first_block;  // of queries, counted for one head
};

// One sequence: `length` rows from `first` on, for how many keys and values there is room from `first_place` on, the
// keys' padded length, and where those begin.
struct Sequence {
  Sequence(const AttentionCall& a, const Buffers& buffers, int64_t b)
      : number(b),
        first(buffers.first_row[b]),
        length(buffers.first_row[b + 1] - first),
        first_place(buffers.first_place[b]),
        room(buffers.first_place[b + 1] - first_place),
        first_key(buffers.first_key[b]),
        kt_stride(buffers.first_key[b + 1] - first_key),
        index(a.token_index == nullptr ? nullptr : static_cast<const int32_t*>(a.token_index->data) + first) {}
  bool is_spread() const { return room != length; }
  // How far a token was behind the first one.
  int64_t Place(int64_t row) const { return index == nullptr ? row : index[row] - index[0]; }
  // Where its key and its value are.
  int64_t Column(int64_t row) const { return is_spread() ? Place(row) : row; }

  int64_t number, first, length, first_place, room, first_key, kt_stride;
  const int32_t* index;
};

void FillOffsets(const AttentionCall& a, const Buffers& to) {
  if (a.packed()) CheckSequences(a.op, *a.cu_seqlens, a.rows());
  if (a.token_index != nullptr) CheckPlaces(a.op, *a.cu_seqlens, *a.token_index);
  const bertfuse_tensor* const cos = a.packed() && a.variant ? a.variant->cos : nullptr;
  const auto* const index = a.token_index == nullptr ? nullptr : static_cast<const int32_t*>(a.token_index->data);
  const int64_t length = a.sequences() == 0 ? 0 : a.rows() / a.sequences();
  to.first_place[0] = to.first_key[0] = to.first_block[0] = 0;
  for (int64_t b = 0; b <= a.sequences(); ++b) {
    to.first_row[b] = a.packed() ? static_cast<const int32_t*>(a.cu_seqlens->data)[b] : b * length;
    if (b == 0) continue;
    const int64_t rows = to.first_row[b] - to.first_row[b - 1];
    const int64_t last = to.first_row[b] - 1;
    const int64_t places = index == nullptr || rows == 0 ? rows : index[last] - index[last - rows + 1] + int64_t{1};
    if (cos != nullptr && places > cos->shape[0]) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cos' has %lld rows, and sequence %lld %lld tokens", a.op,
           static_cast<long long>(cos->shape[0]), static_cast<long long>(b - 1), static_cast<long long>(places));
    }
    const int64_t room = a.may_spread() ? places : rows;
    to.first_place[b] = to.first_place[b - 1] + room;
    to.first_key[b] = to.first_key[b - 1] + (room + kKeyPadding - 1) / kKeyPadding * kKeyPadding;
    // Of spread tokens a query alone: places of the next ones are others.
    const int64_t blocks = room != rows ? rows : (rows + kQueryBlock - 1) / kQueryBlock;
    to.first_block[b] = to.first_block[b - 1] + blocks;
  }
  if (to.first_place[a.sequences()] > a.rows()) {
    Fail(BERTFUSE_INVALID_ARGUMENT,
         "%s: input 'token_index' spreads the tokens over %lld places, expected at most %lld", a.op,
         static_cast<long long>(to.first_place[a.sequences()]), static_cast<long long>(a.rows()));
  }
}

void FillMask(const AttentionCall& a, const Buffers& to) {
  SwitchIndex(a.mask->dtype, [&](auto tag) {
    const auto* in = static_cast<const decltype(tag)*>(a.mask->data);
    for (int64_t b = 0; b < a.sequences(); ++b) {
      const Sequence sequence(a, to, b);
      for (int64_t i = 0; i < sequence.kt_stride; ++i) {
        to.mask[sequence.first_key + i] = i < sequence.length && in[sequence.first + i] == 0 ? kHidden : 0.0f;
      }
      if (!a.counts_shown()) continue;
      int64_t* const shown = to.shown + sequence.first + b;
      shown[0] = 0;
      for (int64_t i = 0; i < sequence.length; ++i) shown[i + 1] = shown[i] + (in[sequence.first + i] != 0);
    }
  });
}

// What hides the places between spread tokens.
void HideGaps(const AttentionCall& a, const Buffers& to) {
  for (int64_t b = 0; b < a.sequences(); ++b) {
    const Sequence sequence(a, to, b);
    if (!sequence.is_spread()) continue;
    float* const mask = to.mask + sequence.first_key;
    std::fill(mask, mask + sequence.kt_stride, kHidden);
    for (int64_t row = 0; row < sequence.length; ++row) mask[sequence.Place(row)] = 0.0f;
  }
}

// The bias of each distance, and what hides the keys outside of the window.
void FillDistances(const AttentionCall& a, const Buffers& to) {
  const AttentionVariantCall& v = *a.variant;
  const float* const bias = FloatData(v.distance_bias);
  const int64_t columns = bias == nullptr ? 0 : v.distance_bias->shape[2];
  int64_t longest = 0;
  for (int64_t b = 0; b < a.sequences(); ++b) longest = std::max(longest, Sequence(a, to, b).room);
  for (int64_t row = 0; row < a.distance_rows(); ++row) {
    for (int64_t i = v.longest - longest; i < v.longest + longest + kKeyPadding; ++i) {
      const int64_t distance = i - (v.longest - 1);
      const bool inside =
          (v.window_left < 0 || distance >= -v.window_left) && (v.window_right < 0 || distance <= v.window_right);
      const int64_t column = std::clamp<int64_t>(distance + v.bias_left, 0, std::max<int64_t>(0, columns - 1));
      to.by_distance[row * a.distances() + i] = !inside           ? kHidden
                                                : bias == nullptr ? 0.0f
                                                                  : bias[row * columns + column];
    }
  }
}

// y = x + bias, or x where that is null.
void AddOrCopy(const float* x, const float* bias, float* y, int64_t n) {
  if (bias == nullptr) {
    std::copy(x, x + n, y);
  } else {
    Loops().add(x, bias, y, n);
  }
}

// A head of Q or K of the token at `place`: divided by its root mean square, and rotated.
void ChangeHead(const AttentionVariantCall& v, const float* gamma, int64_t place, float* x) {
  if (gamma != nullptr) {
    float squares = 0;
    for (int64_t d = 0; d < v.head_size; ++d) squares += x[d] * x[d];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(v.head_size) + v.epsilon);
    for (int64_t d = 0; d < v.head_size; ++d) x[d] *= inverse * (gamma[d] + v.gamma_offset);
  }
  if (v.cos == nullptr) return;
  const int64_t at = place * v.rotated;
  RotateHead(FloatData(v.cos) + at, FloatData(v.sin) + at, v.rotated, v.neighbours, x);
}

// A head's queries [rows, size] transposed, zeros behind them.
void TransposeQueries(const float* q, int64_t rows, int64_t size, int64_t stride, float* qt) {
  for (int64_t d = 0; d < size; ++d) {
    for (int64_t row = 0; row < rows; ++row) qt[d * stride + row] = q[row * size + d];
    std::fill(qt + d * stride + rows, qt + (d + 1) * stride, 0.0f);
  }
}

// One head of one sequence: adds the bias and brings Q, K and V into the buffers' layout, in which a sequence's heads
// lie one after the other. Keys and values come with the first of the heads that share them.
void SplitHead(const AttentionCall& a, const Sequence& sequence, int64_t head, const Buffers& to) {
  const int64_t size = a.head_size(), width = a.row_width(), stride = sequence.kt_stride, group = a.heads / a.kv_heads;
  const float* const rows = FloatData(a.qkv) + sequence.first * width;
  const float* const bias = FloatData(a.bias);
  const auto bias_at = [&](int64_t column) { return bias == nullptr ? nullptr : bias + column; };
  const bool changes = a.changes_heads(), has_keys = head % group == 0;
  const int64_t kv = head / group, at_q = head * size, at_k = a.hidden() + kv * size, at_v = at_k + a.kv_width();
  float* const q = to.q + sequence.first * a.hidden() + head * sequence.length * size;
  float* const k = to.k + sequence.first * a.kv_width() + kv * sequence.length * size;
  float* const kt = to.kt + sequence.first_key * a.kv_width() + kv * size * stride;
  float* const v = to.v + sequence.first_place * a.kv_width() + kv * sequence.room * size;
  if (has_keys && sequence.is_spread()) {
    std::fill(kt, kt + size * stride, 0.0f);
    std::fill(v, v + size * sequence.room, 0.0f);
  }
  // The transposition goes in squares, so that both sides stay in the first cache level.
  constexpr int64_t kSquare = 16;
  for (int64_t first = 0; first < sequence.length; first += kSquare) {
    const int64_t last = std::min(first + kSquare, sequence.length);
    for (int64_t row = first; row < last; ++row) {
      const float* const x = rows + row * width;
      AddOrCopy(x + at_q, bias_at(at_q), q + row * size, size);
      if (changes) ChangeHead(*a.variant, FloatData(a.variant->q_gamma), sequence.Place(row), q + row * size);
      if (!has_keys) continue;
      AddOrCopy(x + at_v, bias_at(at_v), v + sequence.Column(row) * size, size);
      if (!changes) continue;
      AddOrCopy(x + at_k, bias_at(at_k), k + row * size, size);
      ChangeHead(*a.variant, FloatData(a.variant->k_gamma), sequence.Place(row), k + row * size);
    }
    if (!has_keys) continue;
    const float* const keys = changes ? k : rows + at_k;
    const int64_t key_stride = changes ? size : width;
    for (int64_t d = 0; d < size; ++d) {
      const float key_bias = changes || bias == nullptr ? 0.0f : bias[at_k + d];
      for (int64_t row = first; row < last; ++row) {
        kt[d * stride + sequence.Column(row)] = keys[row * key_stride + d] + key_bias;
      }
    }
  }
  for (int64_t d = 0; d < size && has_keys; ++d) {
    std::fill(kt + d * stride + sequence.room, kt + (d + 1) * stride, 0.0f);
  }
  if (!a.has_positions()) return;
  TransposeQueries(q, sequence.length, size, stride, to.qt + sequence.first_key * a.hidden() + head * size * stride);
}

// Rows of a block to whose window the mask shows no key, and where that is said those that it hides: they attend to all
// of the sequence's keys alike.
void FillRowsWithoutKeys(const AttentionCall& a, const Sequence& sequence, const int64_t* shown, const float* v,
                         int64_t first_query, const AttentionRows& block) {
  const float* mean = nullptr;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t query = first_query + r, left = a.variant->window_left, right = a.variant->window_right;
    const int64_t begin = left < 0 ? 0 : std::max<int64_t>(0, query - left);
    const int64_t end = right < 0 ? sequence.length : std::min(sequence.length, query + right + 1);
    const bool hidden = a.variant->alike && shown[query] == shown[query + 1];
    if (!hidden && shown[begin] != shown[end]) continue;
    float* const y = block.y + r * block.y_stride;
    if (mean == nullptr) {
      std::fill(y, y + block.head_size, 0.0f);
      for (int64_t key = 0; key < sequence.length; ++key) {
        Loops().add(y, v + key * block.head_size, y, block.head_size);
      }
      for (int64_t d = 0; d < block.head_size; ++d) y[d] /= static_cast<float>(sequence.length);
      mean = y;
    } else {
      std::copy(mean, mean + block.head_size, y);
    }
  }
}

// Queries from `first` on of one head of one sequence.
void AttendBlock(const AttentionCall& a, const Buffers& buffers, const Sequence& sequence, int64_t head, int64_t first,
                 float* y) {
  const int64_t size = a.head_size(), kv = head / (a.heads / a.kv_heads);
  const float* const v = buffers.v + sequence.first_place * a.kv_width() + kv * sequence.room * size;
  AttentionRows block;
  block.rows = sequence.is_spread() ? 1 : std::min(kQueryBlock, sequence.length - first);
  // The keys that some query's window has, from a full vector on.
  int64_t begin = 0, end = sequence.room;
  const int64_t column = sequence.Column(first);
  if (a.has_window()) {
    const int64_t left = a.variant->window_left, right = a.variant->window_right;
    if (left >= 0) begin = std::max<int64_t>(0, column - left) / kKeyPadding * kKeyPadding;
    if (right >= 0) end = std::min(end, column + block.rows + right);
  }
  block.q = buffers.q + sequence.first * a.hidden() + (head * sequence.length + first) * size;
  block.kt = buffers.kt + sequence.first_key * a.kv_width() + kv * size * sequence.kt_stride + begin;
  block.v = v + begin * size;
  block.mask = a.mask == nullptr && !sequence.is_spread() ? nullptr : buffers.mask + sequence.first_key + begin;
  block.by_distance = nullptr;
  if (a.distance_rows() > 0) {
    const int64_t row = a.distance_rows() == 1 ? 0 : head;
    block.by_distance = buffers.by_distance + row * a.distances() + (a.variant->longest - 1) + begin - column;
  }
  block.q_positions = block.k_positions = block.qt = nullptr;
  if (a.has_positions()) {
    const bertfuse_tensor& positions = *a.variant->positions;
    block.positions = positions.shape[2], block.position_at = a.variant->positions_left + begin - column;
    block.q_positions = FloatData(&positions) + head * block.positions * size;
    block.k_positions = block.q_positions + a.heads * block.positions * size;
    block.qt = buffers.qt + sequence.first_key * a.hidden() + head * size * sequence.kt_stride + first;
  }
  block.y = y + (sequence.first + first) * a.hidden() + head * size;
  block.num_keys = end - begin;
  block.head_size = size;
  block.kt_stride = sequence.kt_stride;
  block.y_stride = a.hidden();
  block.scale = a.scale;
  Loops().attention(block);
  if (!a.counts_shown()) return;
  FillRowsWithoutKeys(a, sequence, buffers.shown + sequence.first + sequence.number, v, first, block);
}

template <class Op>
size_t WorkspaceSize(const bertfuse_call& call) {
  Arena arena;
  Buffers(Read<Op>(call), arena);
  return arena.used();
}

template <class Op>
void Run(const bertfuse_call& call) {
  const AttentionCall a = Read<Op>(call);
  const int64_t heads = a.heads, sequences = a.sequences();
  if (a.rows() == 0 || sequences == 0 || a.hidden() == 0) return;
  Arena arena(call.workspace);
  const Buffers buffers(a, arena);
  FillOffsets(a, buffers);
  if (a.mask != nullptr) FillMask(a, buffers);
  if (a.may_spread()) HideGaps(a, buffers);
  if (a.distance_rows() > 0) FillDistances(a, buffers);

  const int64_t usual_length = std::max<int64_t>(1, buffers.first_row[sequences] / sequences);
  ParallelFor(call, sequences * heads, GrainFor(6 * usual_length * a.head_size()), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      SplitHead(a, Sequence(a, buffers, item / heads), item % heads, buffers);
    }
  });

  float* y = static_cast<float*>(call.outputs[Op::Out::y].data);
  // A block multiplies each key and value with all its queries, hence the factor.
  const int64_t grain = GrainFor(kQueryBlock * usual_length * a.head_size() / 16);
  const int64_t* blocks = buffers.first_block;
  ParallelFor(call, blocks[sequences] * heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // Sequence by sequence, in it head by head. Of sequences without a row none begins behind this block.
      const int64_t b = std::upper_bound(blocks, blocks + sequences + 1, i / heads) - blocks - 1;
      const int64_t own_blocks = blocks[b + 1] - blocks[b], own = i - blocks[b] * heads;
      const Sequence sequence(a, buffers, b);
      const int64_t first = own % own_blocks * (sequence.is_spread() ? 1 : kQueryBlock);
      AttendBlock(a, buffers, sequence, own / own_blocks, first, y);
    }
  });
}

template <class Op>
constexpr Float32Kernel kFloat32 = {WorkspaceSize<Op>, Run<Op>};

// y's rows in 8 bits follow from y in its own type.
template <class Op>
void RunWithQuantized(const bertfuse_call& call) {
  RunAnyFloat(call, kFloat32<Op>);
  const AttentionCall a = Read<Op>(call);
  int64_t rows = a.rows();
  if (a.packed()) rows = std::clamp<int64_t>(static_cast<const int32_t*>(a.cu_seqlens->data)[a.sequences()], 0, rows);
  QuantizeResult<Op>(call, rows, FloatData(&call.inputs[Op::In::y_tensor_scale]));
}

template <class Op>
constexpr bertfuse_kernel Attention() {
  return CpuKernel<Op, WorkspaceOf<kFloat32<Op>>, RunWithQuantized<Op>>();
}

}  // namespace

const bertfuse_kernel kFusedAttention = Attention<FusedAttention>();
const bertfuse_kernel kFusedAttentionVariant = Attention<FusedAttentionVariant>();

}  // namespace bertfuse::cpu
