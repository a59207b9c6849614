// The shape of the op table: what the generated header fills in from graph_rewrite/ops.
#ifndef BERTFUSE_CORE_OP_DEF_H_
#define BERTFUSE_CORE_OP_DEF_H_

#include <cmath>
#include <cstdint>

namespace bertfuse {

// A dtype variable: every tensor of an op that has it must have the same dtype. kT is a float, kI an index; kC is
// int32, counts and offsets of packed rows. kW is a weight's: T's, or a quantised type, and then kS is that of its
// scales: float32, as it is for what else does not follow T. kQ is the quantised type in which a result is written,
// too, or a residual comes.
enum class Variable { kT, kI, kC, kW, kS, kQ };
inline constexpr Variable kVariables[] = {Variable::kT, Variable::kI, Variable::kC,
                                          Variable::kW, Variable::kS, Variable::kQ};
inline constexpr int kNumVariables = 6;
enum class AttrKind { kInt, kFloat, kString };

// A number times an integer attribute.
struct AxisTerm {
  int64_t number;
  int attribute;
};

// multiplier * symbol / attribute[divisor] + offset, or the value of an attribute where `value` is not -1. With terms
// their sum is the multiplier.
struct AxisDef {
  const char* text;
  const char* symbol;
  int64_t multiplier;
  int divisor;
  int value;
  int64_t offset;
  AxisTerm terms[2];
  int num_terms;
};

struct TensorDef {
  const char* name;
  Variable dtype;
  bool optional;
  bool constant;
  bool leading;    // any number of axes before `axes`, the same in every tensor that has them
  bool packed;     // given where the op's rows are packed
  bool quantized;  // given in the op's quantised form alone
  int needs;       // the input that must be there if this one is, or -1
  int scales;      // the input whose scales it holds, or -1
  const AxisDef* axes;
  int num_axes;
};

struct AttrDef {
  const char* name;
  AttrKind kind;
  bool required;
  int64_t default_int;
  float default_float;
  const char* default_string;
  double minimum, maximum;  // inclusive
  const char* const* choices;
  int num_choices;
  const char* divides;  // axis symbol that the value must divide, or null
};

inline constexpr int kMaxTensors = 20;  // inputs, or outputs, of any op

struct OpDef {
  const char* name;
  const TensorDef* inputs;
  int num_inputs;
  // Behind the num_outputs that every node has come those that are there if the input that they need is.
  const TensorDef* outputs;
  int num_outputs;
  int num_quantized_outputs;
  const AttrDef* attributes;
  int num_attributes;
};

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_OP_DEF_H_
