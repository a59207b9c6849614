// The ops of one matrix product (graph_rewrite/ops/products.py) under common names.
#ifndef BERTFUSE_CORE_GEMM_OP_H_
#define BERTFUSE_CORE_GEMM_OP_H_

#include <iterator>
#include <optional>
#include <string_view>

#include "bertfuse/op.h"
#include "core/activation.h"
#include "core/op_table.h"
#include "core/status.h"
#include "op_table.generated.h"

namespace bertfuse {

// Where an op has its tensors and attributes; -1: it has none of that name.
struct GemmOp {
  const char* name;
  int x, weight, bias, residual, gamma, beta, weight_scale, x_smooth, x_scale, x_zero, x_quantized, x_row_scale,
      x_compensation, y_zero_point, y_smooth, y_tensor_scale, residual_quantized, residual_row_scale, residual_factor,
      row_count, product_gamma, cos, sin, places;
  int y, total, y_quantized, y_scale;
  int epsilon, gamma_offset, activation, approximate, norm, num_heads, kv_num_heads, pairs, places_in, y_use;
  bool gates;  // weight has rows for two factors, each of y's columns: the gate's come first

  constexpr bool normalizes() const { return gamma >= 0; }
  constexpr bool keeps_total() const { return total >= 0; }  // what is normalised is an output, too
};

template <class Named>
constexpr int PlaceOf(std::string_view name, const Named* first, int count) {
  for (int i = 0; i < count; ++i) {
    if (name == first[i].name) return i;
  }
  return -1;
}

constexpr GemmOp GemmOpOf(const OpDef& op) {
  const auto input = [&](std::string_view name) { return PlaceOf(name, op.inputs, op.num_inputs); };
  const auto output = [&](std::string_view name) {
    return PlaceOf(name, op.outputs, op.num_outputs + op.num_quantized_outputs);
  };
  const auto attribute = [&](std::string_view name) { return PlaceOf(name, op.attributes, op.num_attributes); };
  const int weight = input("weight");
  return {op.name,
          input("x"),
          weight,
          input("bias"),
          input("residual"),
          input("gamma"),
          input("beta"),
          input("weight_scale"),
          input("x_smooth"),
          input("x_scale"),
          input("x_zero"),
          input("x_quantized"),
          input("x_row_scale"),
          input("x_compensation"),
          input("y_zero_point"),
          input("y_smooth"),
          input("y_tensor_scale"),
          input("residual_quantized"),
          input("residual_row_scale"),
          input("residual_factor"),
          input("row_count"),
          input("product_gamma"),
          input("cos"),
          input("sin"),
          input("places"),
          output("y"),
          output("total"),
          output("y_quantized"),
          output("y_scale"),
          attribute("epsilon"),
          attribute("gamma_offset"),
          attribute("activation"),
          attribute("approximate"),
          attribute("norm"),
          attribute("num_heads"),
          attribute("kv_num_heads"),
          attribute("pairs"),
          attribute("places_in"),
          attribute("y_use"),
          weight >= 0 && op.inputs[weight].axes[0].multiplier == 2};
}

// The description of an op of the generated table, as in kGemmOp<FusedGemm>.
template <class Op>
inline constexpr GemmOp kGemmOp = GemmOpOf(kOps[PlaceOf(Op::kName, kOps, static_cast<int>(std::size(kOps)))]);

// By the value of the attribute `activation`; nothing where no kernel has it.
inline std::optional<Activation> FindActivation(std::string_view name) {
#define BERTFUSE_NAMED(ENUMERATOR, NAME, POLICY) \
  if (name == NAME) return Activation::ENUMERATOR;
  BERTFUSE_ACTIVATIONS(BERTFUSE_NAMED)
#undef BERTFUSE_NAMED
  return name == "none" ? std::optional(Activation::kNone) : std::nullopt;
}

// The same; throws NOT_SUPPORTED where no kernel has it.
inline Activation ActivationOf(const char* name) {
  const std::optional<Activation> found = FindActivation(name);
  if (!found) Fail(BERTFUSE_NOT_SUPPORTED, "there is no kernel for the activation '%.64s'", name);
  return *found;
}

// The attribute's value.
inline const char* NameOf(Activation activation) {
#define BERTFUSE_NAME(ENUMERATOR, NAME, POLICY) \
  if (activation == Activation::ENUMERATOR) return NAME;
  BERTFUSE_ACTIVATIONS(BERTFUSE_NAME)
#undef BERTFUSE_NAME
  return "none";
}

// A call of one of these ops; a tensor that the op or the call does not have is null, but for row_count, which is then
// BERTFUSE_ABSENT.
struct GemmCall {
  GemmOp op;
  const bertfuse_tensor *x, *weight, *bias, *residual, *gamma, *beta, *weight_scale, *x_smooth, *x_scale, *x_zero,
      *x_quantized, *x_row_scale, *x_compensation, *y_zero_point, *y_smooth, *y_tensor_scale, *residual_quantized,
      *residual_row_scale, *residual_factor, *row_count, *product_gamma, *cos, *sin, *places, *y, *total, *y_quantized,
      *y_scale;
  float epsilon, gamma_offset;
  Activation activation;
  bool rms;            // the norm is RMSNorm, not LayerNorm
  bool y_may_be_left;  // beside y_quantized: nothing reads y itself
  // Of a product whose heads of Q and K are rotated, with cos: pairs of columns of a head, and where they are.
  int64_t heads, kv_heads, head_size, rotated;
  bool neighbours;  // columns 2i and 2i + 1 are a pair, not i and i + rotated
  // Places are tokens of the flattened padded batch, of texts as long as the tables; else they are rows of these.
  bool places_in_batch;

  GemmCall(const bertfuse_call& call, const GemmOp& described) : op(described) {
    const auto input = [&](int place) {
      const bool given = place >= 0 && call.inputs[place].dtype != BERTFUSE_ABSENT;
      return given ? &call.inputs[place] : nullptr;
    };
    x = input(op.x), weight = input(op.weight), bias = input(op.bias), residual = input(op.residual);
    rms = op.norm >= 0 && call.attributes[op.norm].s == std::string_view("rms");
    y_may_be_left = op.y_use >= 0 && call.attributes[op.y_use].s == std::string_view("unread");
    gamma = input(op.gamma), beta = rms ? nullptr : input(op.beta);
    weight_scale = input(op.weight_scale), x_smooth = input(op.x_smooth), x_scale = input(op.x_scale);
    x_zero = input(op.x_zero);
    x_quantized = input(op.x_quantized), x_row_scale = input(op.x_row_scale), y_smooth = input(op.y_smooth);
    x_compensation = input(op.x_compensation);
    y_zero_point = input(op.y_zero_point), y_tensor_scale = input(op.y_tensor_scale);
    residual_quantized = input(op.residual_quantized), residual_row_scale = input(op.residual_row_scale);
    residual_factor = input(op.residual_factor);
    product_gamma = input(op.product_gamma);
    cos = input(op.cos), sin = input(op.sin), places = input(op.places);
    row_count = &call.inputs[op.row_count];
    const auto output = [&](int place) {
      return place >= 0 && place < call.num_outputs ? &call.outputs[place] : nullptr;
    };
    y = &call.outputs[op.y], total = output(op.total);
    y_quantized = output(op.y_quantized), y_scale = output(op.y_scale);
    epsilon = op.epsilon < 0 ? 0.0f : call.attributes[op.epsilon].f;
    gamma_offset = op.gamma_offset < 0 ? 0.0f : call.attributes[op.gamma_offset].f;
    const std::string_view tanh = "tanh";
    activation = op.approximate >= 0
                     ? (call.attributes[op.approximate].s == tanh ? Activation::kGeluTanh : Activation::kGeluErf)
                 : op.activation >= 0 ? ActivationOf(call.attributes[op.activation].s)
                                      : Activation::kNone;
    heads = cos == nullptr ? 0 : call.attributes[op.num_heads].i;
    kv_heads = cos == nullptr ? 0 : call.attributes[op.kv_num_heads].i;
    head_size = cos == nullptr ? 0 : columns() / (heads + 2 * kv_heads);
    rotated = cos == nullptr ? 0 : cos->shape[1];
    neighbours = cos != nullptr && std::string_view(call.attributes[op.pairs].s) == "neighbours";
    places_in_batch = cos != nullptr && std::string_view(call.attributes[op.places_in].s) == "batch";
    if (cos != nullptr) CheckRotation();
    if (product_gamma != nullptr) CheckOneRow(*product_gamma, "product_gamma");
    if (residual_factor != nullptr) CheckOneRow(*residual_factor, "residual_factor");
  }

  // Of y, and its rows.
  int64_t columns() const { return weight->shape[0] / (op.gates ? 2 : 1); }
  int64_t rows() const { return columns() == 0 ? 0 : NumElements(*y) / columns(); }

 private:
  void CheckOneRow(const bertfuse_tensor& tensor, const char* input) const {
    if (tensor.shape[0] == 1) return;
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' has %lld rows, expected 1", op.name, input,
         static_cast<long long>(tensor.shape[0]));
  }
  // Throws INVALID_ARGUMENT where the heads are not the columns, or tables do not fit the heads.
  void CheckRotation() const {
    const auto number = [](int64_t value) { return static_cast<long long>(value); };
    if (columns() % (heads + 2 * kv_heads) != 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'weight' has %lld rows, expected a multiple of %lld, of heads",
           op.name, number(columns()), number(heads + 2 * kv_heads));
    }
    if ((places == nullptr || places_in_batch) && cos->shape[0] != x->shape[1]) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cos' has %lld rows, expected S = %lld", op.name,
           number(cos->shape[0]), number(x->shape[1]));
    }
    if (2 * rotated > head_size) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'cos' has %lld columns, expected at most %lld, of pairs in a head",
           op.name, number(rotated), number(head_size / 2));
    }
  }
};

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_GEMM_OP_H_
