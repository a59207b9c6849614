#include <cstring>
#include <string>

#include "core/op_table.h"
#include "core/status.h"

namespace bertfuse {
namespace {

std::string Describe(const TensorDef& tensor) {
  std::string text = "[";
  if (tensor.leading) text += "...";
  for (int i = 0; i < tensor.num_axes; ++i) {
    if (text.size() > 1) text += ", ";
    text += tensor.axes[i].text;
  }
  return text + "]";
}

std::string Describe(const Dim* dims, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += ", ";
    text += dims[i].known() ? std::to_string(dims[i].size) : dims[i].name != nullptr ? dims[i].name : "?";
  }
  return text + "]";
}

// Two sizes that cannot both be right. Names alone prove nothing: "batch" and "N" may be the same size.
bool Disagree(const Dim& a, const Dim& b) { return a.known() && b.known() && a.size != b.size; }

long long Printable(int64_t value) { return value; }

}  // namespace

AxisBinder::AxisBinder(const OpDef& op, const bertfuse_value* attributes) : op_(op), attributes_(attributes) {}

AxisBinder::Symbol* AxisBinder::Find(const char* name) {
  return const_cast<Symbol*>(static_cast<const AxisBinder*>(this)->Find(name));
}

const AxisBinder::Symbol* AxisBinder::Find(const char* name) const {
  for (int i = 0; i < num_symbols_; ++i) {
    if (std::strcmp(symbols_[i].name, name) == 0) return &symbols_[i];
  }
  return nullptr;
}

Dim AxisBinder::Expected(const AxisDef& axis) const {
  if (axis.value >= 0) return {axis.multiplier * attributes_[axis.value].i, nullptr};
  const Symbol* symbol = Find(axis.symbol);
  if (symbol == nullptr) return {};
  const int64_t multiplier = MultiplierOf(axis, attributes_);
  if (multiplier == 1 && axis.divisor < 0 && axis.offset == 0) return symbol->dim;
  if (!symbol->dim.known()) return {};
  const int64_t divisor = axis.divisor < 0 ? 1 : attributes_[axis.divisor].i;
  const int64_t product = multiplier * symbol->dim.size;
  if (divisor <= 0 || product % divisor != 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute '%s' is %lld, expected a divisor of %s = %lld (%s from '%s')",
         op_.name, op_.attributes[axis.divisor].name, Printable(divisor), axis.symbol, Printable(symbol->dim.size),
         axis.symbol, symbol->from);
  }
  return {product / divisor + axis.offset, nullptr};
}

void AxisBinder::BindAxis(const TensorDef& tensor, const char* role, int index, const AxisDef& axis, Dim dim) {
  const Dim expected = Expected(axis);
  if (Disagree(expected, dim)) {
    const Symbol* symbol = axis.value >= 0 ? nullptr : Find(axis.symbol);
    if (symbol == nullptr) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' axis %d is %lld, expected %lld (attribute '%s')", op_.name, role,
           tensor.name, index, Printable(dim.size), Printable(expected.size), axis.symbol);
    }
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' axis %d is %lld, expected %s = %lld (%s from '%s')", op_.name, role,
         tensor.name, index, Printable(dim.size), axis.text, Printable(expected.size), axis.symbol, symbol->from);
  }
  if (axis.value >= 0) return;

  Dim value;
  const int64_t multiplier = MultiplierOf(axis, attributes_);
  if (multiplier == 1 && axis.divisor < 0 && axis.offset == 0) {
    value = dim;
  } else if (dim.known()) {
    if (dim.size < axis.offset) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' axis %d is %lld, expected %s: at least %lld", op_.name, role,
           tensor.name, index, Printable(dim.size), axis.text, Printable(axis.offset));
    }
    const int64_t product = (dim.size - axis.offset) * (axis.divisor < 0 ? 1 : attributes_[axis.divisor].i);
    if (product % multiplier != 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' axis %d is %lld, expected %s: a multiple of %lld", op_.name, role,
           tensor.name, index, Printable(dim.size), axis.text, Printable(multiplier));
    }
    value.size = product / multiplier;
  }
  Symbol* symbol = Find(axis.symbol);
  if (symbol == nullptr) {
    if (num_symbols_ == static_cast<int>(symbols_.size())) {
      Fail(BERTFUSE_RUNTIME_ERROR, "%s: more axis symbols than the binder has room for", op_.name);
    }
    symbols_[num_symbols_++] = {axis.symbol, value, tensor.name};
  } else if (!symbol->dim.known() && (value.known() || symbol->dim.name == nullptr)) {
    symbol->dim = value;
    symbol->from = tensor.name;
  }
}

void AxisBinder::BindLeading(const TensorDef& tensor, const char* role, const DimList& shape, int count) {
  if (leading_from_ == nullptr) {
    leading_.rank = count;
    for (int i = 0; i < count; ++i) leading_.dims[i] = shape.dims[i];
    leading_from_ = tensor.name;
    return;
  }
  bool disagree = leading_.rank != count;
  for (int i = 0; i < count && !disagree; ++i) disagree = Disagree(leading_.dims[i], shape.dims[i]);
  if (disagree) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' has the leading axes %s, expected %s (from '%s')", op_.name, role,
         tensor.name, Describe(shape.dims.data(), count).c_str(), Describe(leading_.dims.data(), leading_.rank).c_str(),
         leading_from_);
  }
  for (int i = 0; i < count; ++i) {
    if (!leading_.dims[i].known() && shape.dims[i].known()) leading_.dims[i] = shape.dims[i];
  }
}

void AxisBinder::Bind(const TensorDef& tensor, const char* role, const DimList& shape) {
  const int leading = shape.rank - tensor.num_axes;
  if (leading < 0 || (leading > 0 && !tensor.leading)) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %s '%s' has rank %d %s, expected %s%d %s", op_.name, role, tensor.name,
         shape.rank, Describe(shape.dims.data(), shape.rank).c_str(), tensor.leading ? "at least " : "",
         tensor.num_axes, Describe(tensor).c_str());
  }
  if (tensor.leading) BindLeading(tensor, role, shape, leading);
  for (int i = 0; i < tensor.num_axes; ++i) {
    BindAxis(tensor, role, leading + i, tensor.axes[i], shape.dims[leading + i]);
  }
}

void AxisBinder::CheckDivisors() const {
  for (int i = 0; i < op_.num_attributes; ++i) {
    const AttrDef& attribute = op_.attributes[i];
    const Symbol* symbol = attribute.divides == nullptr ? nullptr : Find(attribute.divides);
    if (symbol == nullptr || !symbol->dim.known()) continue;
    const int64_t value = attributes_[i].i;
    if (value > 0 && symbol->dim.size % value == 0) continue;
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute '%s' is %lld, expected a divisor of %s = %lld (%s from '%s')",
         op_.name, attribute.name, Printable(value), symbol->name, Printable(symbol->dim.size), symbol->name,
         symbol->from);
  }
}

DimList AxisBinder::Resolve(const TensorDef& tensor) const {
  DimList shape;
  if (tensor.leading && leading_from_ == nullptr) {
    shape.rank = -1;
    return shape;
  }
  if (tensor.leading) shape = leading_;
  if (shape.rank + tensor.num_axes > BERTFUSE_MAX_RANK) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: output '%s' would have rank %d, expected at most %d", op_.name, tensor.name,
         shape.rank + tensor.num_axes, BERTFUSE_MAX_RANK);
  }
  for (int i = 0; i < tensor.num_axes; ++i) shape.dims[shape.rank++] = Expected(tensor.axes[i]);
  return shape;
}

}  // namespace bertfuse
