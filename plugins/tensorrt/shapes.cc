#include "tensorrt/shapes.h"

#include <array>
#include <cstring>

#include "core/op_table.h"
#include "core/status.h"

namespace bertfuse::tensorrt {
namespace {

using abi::DimensionOperation;
using abi::IDimensionExpr;

const IDimensionExpr* Made(const OpDef& op, const IDimensionExpr* expression) {
  if (expression == nullptr) Fail(BERTFUSE_RUNTIME_ERROR, "%s: TensorRT made no shape expression", op.name);
  return expression;
}

// The columns of 8 bits in so many of int32, or the other way round.
const IDimensionExpr* Scaled(const OpDef& op, const IDimensionExpr* columns, bool up, abi::IExprBuilder& builder) {
  if (columns->isConstant()) {
    const int64_t size = columns->getConstantValue();
    return Made(op, builder.constant(up ? ColumnsIn(size) : size / kColumnsInInt32));
  }
  const IDimensionExpr& factor = *Made(op, builder.constant(kColumnsInInt32));
  return Made(op, builder.operation(up ? DimensionOperation::kPROD : DimensionOperation::kFLOOR_DIV, *columns, factor));
}

// What the axis symbols stand for. AxisBinder does the same for numbers; here nothing is compared, as expressions say
// nothing before a run.
class Expressions {
 public:
  Expressions(const OpDef& op, const bertfuse_value* attributes, abi::IExprBuilder& builder)
      : op_(op), attributes_(attributes), builder_(builder) {}

  void Bind(const TensorDef& tensor, const abi::DimsExprs& shape) {
    const int leading = shape.nbDims - tensor.num_axes;
    if (tensor.leading && leading_ == nullptr) {
      leading_ = &shape;
      num_leading_ = leading;
    }
    for (int i = 0; i < tensor.num_axes; ++i) {
      const AxisDef& axis = tensor.axes[i];
      if (axis.value < 0) Bind(axis, shape.d[leading + i]);
    }
  }

  void Resolve(const TensorDef& tensor, abi::DimsExprs* shape) {
    shape->nbDims = 0;
    if (tensor.leading) {
      if (leading_ == nullptr || num_leading_ + tensor.num_axes > abi::Dims::kMaxDims) {
        Fail(BERTFUSE_INVALID_ARGUMENT, "%s: output '%s' would have more than %d axes", op_.name, tensor.name,
             abi::Dims::kMaxDims);
      }
      for (int i = 0; i < num_leading_; ++i) shape->d[shape->nbDims++] = leading_->d[i];
    }
    for (int i = 0; i < tensor.num_axes; ++i) shape->d[shape->nbDims++] = Expected(tensor, tensor.axes[i]);
  }

 private:
  struct Symbol {
    const char* name;
    const IDimensionExpr* value;
    bool derived;  // from a multiple or a fraction of it
  };

  // A size that is constant is the best to have, then one that is an input's size as it is.
  static int Rank(const Symbol& symbol) { return symbol.value->isConstant() ? 2 : symbol.derived ? 0 : 1; }

  void Bind(const AxisDef& axis, const IDimensionExpr* size) {
    Symbol symbol = {axis.symbol, size, false};
    if (axis.divisor >= 0) symbol = {axis.symbol, Times(symbol.value, attributes_[axis.divisor].i), true};
    if (axis.offset != 0) symbol = {axis.symbol, Plus(symbol.value, -axis.offset), true};
    const int64_t multiplier = MultiplierOf(axis, attributes_);
    if (multiplier != 1) symbol = {axis.symbol, Over(symbol.value, multiplier), true};
    for (int i = 0; i < num_symbols_; ++i) {
      if (std::strcmp(symbols_[i].name, axis.symbol) != 0) continue;
      if (Rank(symbol) > Rank(symbols_[i])) symbols_[i] = symbol;
      return;
    }
    if (num_symbols_ == static_cast<int>(symbols_.size())) {
      Fail(BERTFUSE_RUNTIME_ERROR, "%s: more axis symbols than there is room for", op_.name);
    }
    symbols_[num_symbols_++] = symbol;
  }

  const IDimensionExpr* Expected(const TensorDef& tensor, const AxisDef& axis) {
    if (axis.value >= 0) return Made(op_, builder_.constant(axis.multiplier * attributes_[axis.value].i));
    for (int i = 0; i < num_symbols_; ++i) {
      if (std::strcmp(symbols_[i].name, axis.symbol) != 0) continue;
      const IDimensionExpr* product = Times(symbols_[i].value, MultiplierOf(axis, attributes_));
      return Plus(axis.divisor < 0 ? product : Over(product, attributes_[axis.divisor].i), axis.offset);
    }
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: output '%s' has the axis %s, which no input has", op_.name, tensor.name,
         axis.text);
  }

  const IDimensionExpr* Times(const IDimensionExpr* size, int64_t factor) {
    return factor == 1 ? size : Made(op_, builder_.operation(DimensionOperation::kPROD, *size, Constant(factor)));
  }
  const IDimensionExpr* Over(const IDimensionExpr* size, int64_t divisor) {
    return divisor == 1 ? size
                        : Made(op_, builder_.operation(DimensionOperation::kFLOOR_DIV, *size, Constant(divisor)));
  }
  const IDimensionExpr* Plus(const IDimensionExpr* size, int64_t offset) {
    return offset == 0 ? size : Made(op_, builder_.operation(DimensionOperation::kSUM, *size, Constant(offset)));
  }
  const IDimensionExpr& Constant(int64_t value) { return *Made(op_, builder_.constant(value)); }

  const OpDef& op_;
  const bertfuse_value* attributes_;
  abi::IExprBuilder& builder_;
  std::array<Symbol, 16> symbols_;
  int num_symbols_ = 0;
  const abi::DimsExprs* leading_ = nullptr;
  int num_leading_ = 0;
};

DimList KnownSizes(const OpDef& op, const TensorDef& tensor, const abi::DimsExprs& shape) {
  if (shape.nbDims < 0 || shape.nbDims > abi::Dims::kMaxDims) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' has rank %d, expected 0 to %d", op.name, tensor.name, shape.nbDims,
         abi::Dims::kMaxDims);
  }
  DimList sizes;
  sizes.rank = shape.nbDims;
  for (int i = 0; i < shape.nbDims; ++i) {
    if (shape.d[i]->isConstant()) sizes.dims[i].size = shape.d[i]->getConstantValue();
  }
  return sizes;
}

// Throws where an output's columns are known, and no multiple of four.
void CheckColumns(const OpDef& op, const TensorDef& tensor, const DimList& sizes) {
  const int64_t columns = sizes.rank < 1 ? 0 : sizes.dims[sizes.rank - 1].size;
  if (columns < 0 || columns % kColumnsInInt32 == 0) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: output '%s' has %lld columns, expected a multiple of %lld for results in 8 bits",
       op.name, tensor.name, static_cast<long long>(columns), static_cast<long long>(kColumnsInInt32));
}

}  // namespace

void ExpressOutputs(const OpDef& op, const bertfuse_value* attributes, const Form& form, const abi::DimsExprs* inputs,
                    abi::DimsExprs* outputs, abi::IExprBuilder& builder) {
  AxisBinder sizes(op, attributes);
  // Of which Expressions keeps pointers.
  std::array<abi::DimsExprs, kMaxTensors> shapes = {};
  Expressions expressions(op, attributes, builder);
  for (int i = 0, place = 0; i < op.num_inputs; ++i) {
    if (!Has(form.present, i)) continue;
    abi::DimsExprs& shape = shapes[place] = inputs[place];
    ++place;
    if (form.CrossesAsInt32(op.inputs[i]) && shape.nbDims > 0 && shape.nbDims <= abi::Dims::kMaxDims) {
      shape.d[shape.nbDims - 1] = Scaled(op, shape.d[shape.nbDims - 1], true, builder);
    }
    sizes.Bind(op.inputs[i], "input", KnownSizes(op, op.inputs[i], shape));
    expressions.Bind(op.inputs[i], shape);
  }
  sizes.CheckDivisors();
  const int count = NumOutputs(op, form.present);
  for (int i = 0; i < count; ++i) {
    expressions.Resolve(op.outputs[i], &outputs[i]);
    if (!form.CrossesAsInt32(op.outputs[i]) || outputs[i].nbDims < 1) continue;
    CheckColumns(op, op.outputs[i], sizes.Resolve(op.outputs[i]));
    const IDimensionExpr*& columns = outputs[i].d[outputs[i].nbDims - 1];
    columns = Scaled(op, columns, false, builder);
  }
}

}  // namespace bertfuse::tensorrt
