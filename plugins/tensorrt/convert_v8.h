// From TensorRT 8's and 9's structures and expressions to those of abi.h.
#ifndef BERTFUSE_TENSORRT_CONVERT_V8_H_
#define BERTFUSE_TENSORRT_CONVERT_V8_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>

#include "tensorrt/abi.h"
#include "tensorrt/abi_v8.h"

namespace bertfuse::tensorrt {

inline abi::Dims Widened(const abi::v8::Dims& dims) {
  static_assert(abi::Dims::kMaxDims == abi::v8::Dims::kMaxDims);
  abi::Dims result = {dims.nbDims, {}};
  std::copy_n(dims.d, std::clamp(dims.nbDims, 0, abi::Dims::kMaxDims), result.d);
  return result;
}

inline abi::PluginTensorDesc Widened(const abi::v8::PluginTensorDesc& desc) {
  return {Widened(desc.dims), desc.type, desc.format, desc.scale};
}

// A profile has no `opt` there: `max` is as good a shape as any.
inline abi::DynamicPluginTensorDesc Widened(const abi::v8::DynamicPluginTensorDesc& desc) {
  const abi::Dims max = Widened(desc.max);
  return {Widened(desc.desc), Widened(desc.min), max, max};
}

// One of TensorRT's expressions, with a value of 64 bits.
class WidenedExpression final : public abi::IDimensionExpr, public abi::DimensionExprImpl {
 public:
  explicit WidenedExpression(const abi::v8::IDimensionExpr& narrow) : narrow_(narrow) { impl = this; }
  WidenedExpression(const WidenedExpression&) = delete;
  WidenedExpression& operator=(const WidenedExpression&) = delete;

  bool isConstant() const override { return narrow_.isConstant(); }
  int64_t getConstantValue() const override { return narrow_.getConstantValue(); }
  const abi::v8::IDimensionExpr& narrow() const { return narrow_; }

 private:
  const abi::v8::IDimensionExpr& narrow_;
};

// TensorRT's builder of expressions. Every expression that goes through it must be one that it made or wrapped; it owns
// the wrappers, TensorRT what is in them.
class WidenedBuilder final : public abi::IExprBuilder, public abi::ExprBuilderImpl {
 public:
  explicit WidenedBuilder(abi::v8::IExprBuilder& narrow) : narrow_(narrow) { impl = this; }

  const abi::IDimensionExpr* Wrap(const abi::v8::IDimensionExpr* expression) {
    return expression == nullptr ? nullptr : &made_.emplace_back(*expression);
  }
  static const abi::v8::IDimensionExpr& Unwrap(const abi::IDimensionExpr& expression) {
    return static_cast<const WidenedExpression&>(expression).narrow();
  }

  // Null for a value that does not go into 32 bits, as where TensorRT makes nothing.
  const abi::IDimensionExpr* constant(int64_t value) override {
    using Limits = std::numeric_limits<int32_t>;
    if (value < Limits::min() || value > Limits::max()) return nullptr;
    return Wrap(narrow_.constant(static_cast<int32_t>(value)));
  }
  const abi::IDimensionExpr* operation(abi::DimensionOperation op, const abi::IDimensionExpr& first,
                                       const abi::IDimensionExpr& second) override {
    return Wrap(narrow_.operation(op, Unwrap(first), Unwrap(second)));
  }

 private:
  abi::v8::IExprBuilder& narrow_;
  std::deque<WidenedExpression> made_;
};

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_CONVERT_V8_H_
