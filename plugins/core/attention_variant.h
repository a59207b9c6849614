// FusedAttentionVariant's call (graph_rewrite/ops/attention_variant.py): what axes and ranges alone do not check.
#ifndef BERTFUSE_CORE_ATTENTION_VARIANT_H_
#define BERTFUSE_CORE_ATTENTION_VARIANT_H_

#include <algorithm>
#include <string_view>

#include "bertfuse/op.h"
#include "core/status.h"
#include "op_table.generated.h"

namespace bertfuse {

// Tensors that are not given are null.
struct AttentionVariantCall {
  const bertfuse_tensor *qkv, *bias, *mask, *cos, *sin, *q_gamma, *k_gamma, *distance_bias, *positions, *cu_seqlens,
      *token_index;
  int64_t batch, sequence;  // of packed rows those that there is room for
  int64_t longest;          // no sequence is longer
  int64_t heads, kv_heads, head_size;
  int64_t rotated;  // pairs of columns of a head
  bool neighbours;  // columns 2i and 2i + 1 are a pair, not i and i + rotated
  int64_t window_left, window_right, bias_left, positions_left;
  bool alike;  // a token that the mask hides attends to all alike
  float scale, epsilon, gamma_offset;

  // Throws INVALID_ARGUMENT where heads do not share K and V evenly, or tables do not fit the heads.
  explicit AttentionVariantCall(const bertfuse_call& call) {
    using Op = FusedAttentionVariant;
    const auto input = [&](int place) {
      return call.inputs[place].dtype == BERTFUSE_ABSENT ? nullptr : &call.inputs[place];
    };
    qkv = input(Op::In::qkv), bias = input(Op::In::bias), mask = input(Op::In::mask);
    cos = input(Op::In::cos), sin = input(Op::In::sin);
    q_gamma = input(Op::In::q_gamma), k_gamma = input(Op::In::k_gamma);
    distance_bias = input(Op::In::distance_bias), positions = input(Op::In::positions);
    cu_seqlens = input(Op::In::cu_seqlens);
    token_index = input(Op::In::token_index);
    if (packed()) mask = nullptr;
    const bertfuse_value* const attributes = call.attributes;
    heads = attributes[Op::Attr::num_heads].i, kv_heads = attributes[Op::Attr::kv_num_heads].i;
    batch = qkv->shape[0], sequence = qkv->shape[1], head_size = qkv->shape[2] / (heads + 2 * kv_heads);
    longest = packed() ? batch * sequence : sequence;
    rotated = cos == nullptr ? 0 : cos->shape[1];
    neighbours = std::string_view(attributes[Op::Attr::pairs].s) == "neighbours";
    window_left = attributes[Op::Attr::window_left].i, window_right = attributes[Op::Attr::window_right].i;
    bias_left = attributes[Op::Attr::bias_left].i, positions_left = attributes[Op::Attr::positions_left].i;
    alike = mask != nullptr && std::string_view(attributes[Op::Attr::hidden_queries].s) == "alike";
    scale = attributes[Op::Attr::scale].f, epsilon = attributes[Op::Attr::epsilon].f;
    gamma_offset = attributes[Op::Attr::gamma_offset].f;
    Check();
    // Of no effect, but sums of them with places stay small.
    window_left = std::min(window_left, longest), window_right = std::min(window_right, longest);
    if (distance_bias != nullptr) bias_left = std::min(bias_left, longest + distance_bias->shape[2]);
    if (positions != nullptr) positions_left = std::min(positions_left, longest + positions->shape[2]);
  }

  bool packed() const { return cu_seqlens != nullptr; }
  bool changes_heads() const { return cos != nullptr || q_gamma != nullptr; }
  // Whether scores depend on how far apart tokens are, not on their order alone.
  bool counts_distances() const {
    return distance_bias != nullptr || positions != nullptr || window_left > 0 || window_right > 0;
  }
  bool has_window() const { return window_left >= 0 || window_right >= 0; }

 private:
  void Check() const {
    const char* const name = FusedAttentionVariant::kName;
    const auto number = [](int64_t value) { return static_cast<long long>(value); };
    if (heads % kv_heads != 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute 'kv_num_heads' is %lld, expected a divisor of num_heads = %lld",
           name, number(kv_heads), number(heads));
    }
    if (cos != nullptr && !packed() && cos->shape[0] != sequence) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cos' has %lld rows, expected S = %lld", name, number(cos->shape[0]),
           number(sequence));
    }
    if (2 * rotated > head_size) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cos' has %lld columns, expected at most %lld, of pairs in a head",
           name, number(rotated), number(head_size / 2));
    }
    if (positions != nullptr && positions->shape[0] != 2) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'positions' axis 0 is %lld, expected 2", name,
           number(positions->shape[0]));
    }
    if (positions != nullptr && positions->shape[2] == 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'positions' has no row, expected one or more", name);
    }
    if (distance_bias == nullptr) return;
    if (distance_bias->shape[0] != 1) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'distance_bias' axis 0 is %lld, expected 1", name,
           number(distance_bias->shape[0]));
    }
    if (distance_bias->shape[1] != 1 && distance_bias->shape[1] != heads) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'distance_bias' has %lld rows, expected 1 or num_heads = %lld", name,
           number(distance_bias->shape[1]), number(heads));
    }
    if (distance_bias->shape[2] == 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'distance_bias' has no column, expected one or more", name);
    }
  }
};

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_ATTENTION_VARIANT_H_
