#include "tensorrt/bounds.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace bertfuse::tensorrt {
namespace {

struct Axis {
  const char* symbol;  // null: a leading axis
  int index;           // of a leading axis
  int64_t low, high;
};

// visit(symbol, index, place, in_int32) for every axis of the tensor that is a symbol's as it is, or a leading one, or,
// `in_int32`, what of a symbol's columns of 8 bits is in int32.
template <class Visit>
void ForEachAxis(const Form& form, const TensorDef& tensor, const abi::DynamicPluginTensorDesc& shape, Visit&& visit) {
  const int rank = shape.max.nbDims, leading = rank - tensor.num_axes;
  if (rank > abi::Dims::kMaxDims || shape.min.nbDims != rank || leading < 0 || (leading > 0 && !tensor.leading)) return;
  for (int i = 0; i < leading; ++i) visit(nullptr, i, i, false);
  for (int i = 0; i < tensor.num_axes; ++i) {
    const AxisDef& axis = tensor.axes[i];
    const bool plain = axis.value < 0 && axis.divisor < 0 && axis.offset == 0 && axis.num_terms == 0;
    const bool in_int32 = form.CrossesAsInt32(tensor) && i == tensor.num_axes - 1;
    if (plain && axis.multiplier == 1) visit(axis.symbol, 0, leading + i, in_int32);
  }
}

template <class Visit>
void ForEachTensor(const OpDef& op, Present present, abi::DynamicPluginTensorDesc* tensors, Visit&& visit) {
  for (int i = 0; i < op.num_inputs; ++i) {
    if (Has(present, i)) visit(op.inputs[i], *tensors++);
  }
  const int outputs = NumOutputs(op, present);
  for (int i = 0; i < outputs; ++i) visit(op.outputs[i], *tensors++);
}

}  // namespace

void Agree(const OpDef& op, const Form& form, abi::DynamicPluginTensorDesc* tensors) {
  std::vector<Axis> axes;
  const auto find = [&](const char* symbol, int index) {
    return std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) {
      if (symbol == nullptr || axis.symbol == nullptr) return symbol == axis.symbol && index == axis.index;
      return std::strcmp(symbol, axis.symbol) == 0;
    });
  };
  ForEachTensor(op, form.present, tensors, [&](const TensorDef& tensor, const abi::DynamicPluginTensorDesc& shape) {
    ForEachAxis(form, tensor, shape, [&](const char* symbol, int index, int place, bool in_int32) {
      const auto whole = [&](int64_t size) { return in_int32 ? ColumnsIn(size) : size; };
      const int64_t low = whole(shape.min.d[place]), high = whole(shape.max.d[place]);
      const auto known = find(symbol, index);
      if (known == axes.end()) {
        axes.push_back({symbol, index, low, high});
      } else {
        *known = {symbol, index, std::max(low, known->low), std::min(high, known->high)};
      }
    });
  });
  // Columns of which one tensor has quarters are multiples of four in all.
  ForEachTensor(op, form.present, tensors, [&](const TensorDef& tensor, const abi::DynamicPluginTensorDesc& shape) {
    ForEachAxis(form, tensor, shape, [&](const char* symbol, int index, int, bool in_int32) {
      if (!in_int32) return;
      Axis& axis = *find(symbol, index);
      axis.low = ColumnsIn((axis.low + kColumnsInInt32 - 1) / kColumnsInInt32);
      axis.high = ColumnsIn(axis.high / kColumnsInInt32);
    });
  });
  ForEachTensor(op, form.present, tensors, [&](const TensorDef& tensor, abi::DynamicPluginTensorDesc& shape) {
    ForEachAxis(form, tensor, shape, [&](const char* symbol, int index, int place, bool in_int32) {
      const Axis& axis = *find(symbol, index);
      if (axis.low > axis.high) return;
      const int64_t parts = in_int32 ? kColumnsInInt32 : 1, low = axis.low / parts, high = axis.high / parts;
      shape.min.d[place] = low;
      shape.max.d[place] = high;
      shape.opt.d[place] = std::clamp<int64_t>(shape.opt.d[place], low, high);
    });
  });
}

}  // namespace bertfuse::tensorrt
