// What both registries need of an op: find it, check a call against it, and say what comes out.
#ifndef BERTFUSE_CORE_OP_TABLE_H_
#define BERTFUSE_CORE_OP_TABLE_H_

#include <array>
#include <initializer_list>

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "core/status.h"

namespace bertfuse {

struct OpList {
  const OpDef* first;
  int count;
  const OpDef* begin() const { return first; }
  const OpDef* end() const { return first + count; }
};

// Every op, in the order of graph_rewrite/ops.
OpList AllOps();

// The op of that name, or null.
const OpDef* FindOp(const char* name);

// The dtypes (bertfuse_dtype) that a variable may take.
struct DtypeList {
  const int32_t* first;
  int count;
  const int32_t* begin() const { return first; }
  const int32_t* end() const { return first + count; }
};
DtypeList DtypesOf(Variable variable);
bool Allows(Variable variable, int32_t dtype);

// The variable that a tensor's dtype binds: T for a weight that is not quantised.
Variable BoundBy(const TensorDef& tensor, int32_t dtype);

// Whether an input that is given or absent fits the dtype of the weight whose scales it holds.
bool FitsScaled(const TensorDef& tensor, bool absent, int32_t scaled_dtype);

// Whether an input or output of the op is of that variable.
bool Uses(const OpDef& op, Variable variable);

// The dtype of each variable, from the first tensor of it. One that is not allowed, or another later, throws
// INVALID_ARGUMENT with the tensor.
class DtypeBinder {
 public:
  explicit DtypeBinder(const OpDef& op) : op_(op) {}

  // `role` is "input" or "output", for messages.
  void Bind(const TensorDef& tensor, const char* role, int32_t given);

  // BERTFUSE_ABSENT where no tensor bound it and there is a choice.
  int32_t Of(Variable variable) const;

 private:
  const OpDef& op_;
  int32_t dtypes_[kNumVariables] = {};
  const char* from_[kNumVariables] = {};
};

// A size that may be unknown before a run: `size` is -1 then, and `name` the runtime's name for it (null: none).
struct Dim {
  int64_t size = -1;
  const char* name = nullptr;
  bool known() const { return size >= 0; }
};

struct DimList {
  int rank = 0;
  std::array<Dim, BERTFUSE_MAX_RANK> dims;
};

// What an axis' symbol is multiplied with. The attributes must be checked.
inline int64_t MultiplierOf(const AxisDef& axis, const bertfuse_value* attributes) {
  if (axis.num_terms == 0) return axis.multiplier;
  int64_t sum = 0;
  for (int i = 0; i < axis.num_terms; ++i) sum += axis.terms[i].number * attributes[axis.terms[i].attribute].i;
  return sum;
}

// Checks an attribute's value against range and choices. Throws INVALID_ARGUMENT.
void CheckAttributes(const OpDef& op, const bertfuse_value* attributes);

// Sets the value to the attribute's default.
void SetDefault(const AttrDef& attribute, bertfuse_value* value);

// Binds axis symbols over the tensors of one op, input by input; sizes that are unknown bind by name or not at all.
// Every disagreement throws INVALID_ARGUMENT with both sizes and where the first one came from.
class AxisBinder {
 public:
  // `attributes` must be checked and outlive the binder.
  AxisBinder(const OpDef& op, const bertfuse_value* attributes);

  // `role` is "input" or "output", for messages.
  void Bind(const TensorDef& tensor, const char* role, const DimList& shape);

  // Attributes that must divide an axis do so. Call when every input is bound.
  void CheckDivisors() const;

  // The shape that the bound symbols give; sizes not bound stay unknown. An unknown rank of "..." gives rank -1.
  DimList Resolve(const TensorDef& tensor) const;

 private:
  struct Symbol {
    const char* name;
    Dim dim;
    const char* from;  // tensor that bound it
  };
  Symbol* Find(const char* name);
  const Symbol* Find(const char* name) const;
  Dim Expected(const AxisDef& axis) const;
  void BindAxis(const TensorDef& tensor, const char* role, int index, const AxisDef& axis, Dim dim);
  void BindLeading(const TensorDef& tensor, const char* role, const DimList& shape, int count);

  const OpDef& op_;
  const bertfuse_value* attributes_;
  std::array<Symbol, 16> symbols_;
  int num_symbols_ = 0;
  DimList leading_;
  const char* leading_from_ = nullptr;
};

// Throws INVALID_ARGUMENT where the caller was built with another release's bertfuse_call.
inline void CheckCallSize(const char* op, const bertfuse_call& call) {
  if (call.struct_size == sizeof(bertfuse_call)) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: the call has %u bytes, expected %zu: caller and library are of two releases", op,
       call.struct_size, sizeof(bertfuse_call));
}

// Checks everything that the op's description says about a call: arity, presence, dtypes, axes, attributes, and its
// outputs. Throws Error with op and tensor or attribute named.
void Validate(const OpDef& op, const bertfuse_call& call);

// The outputs of a call with these inputs: op.num_outputs, and behind them the optional ones where they are wanted.
int NumOutputs(const OpDef& op, const bertfuse_tensor* inputs);

// Fills in dtype, rank and shape of every output, and checks attributes and inputs on the way as Validate does; `data`
// is left alone. `outputs` has NumOutputs() elements, which are returned.
int InferOutputs(const OpDef& op, const bertfuse_tensor* inputs, const bertfuse_value* attributes,
                 bertfuse_tensor* outputs);

// The elements of a tensor: the product of its shape.
int64_t NumElements(const bertfuse_tensor& tensor);

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_OP_TABLE_H_
