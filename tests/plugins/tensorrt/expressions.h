// Sizes as TensorRT's builder has them: constants, free sizes, and expressions over both.
#ifndef BERTFUSE_TESTS_TENSORRT_EXPRESSIONS_H_
#define BERTFUSE_TESTS_TENSORRT_EXPRESSIONS_H_

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <vector>

#include "tensorrt/abi.h"

namespace bertfuse::test::tensorrt {

namespace abi = bertfuse::tensorrt::abi;

class Expression final : public abi::IDimensionExpr, public abi::DimensionExprImpl {
 public:
  static Expression Constant(int64_t value) { return {Kind::kConstant, value, {}, nullptr, nullptr}; }
  static Expression Free(int64_t variable) { return {Kind::kFree, variable, {}, nullptr, nullptr}; }
  static Expression Operation(abi::DimensionOperation op, const Expression* first, const Expression* second) {
    return {Kind::kOperation, 0, op, first, second};
  }
  Expression(const Expression& other) : Expression(other.kind_, other.value_, other.op_, other.first_, other.second_) {}

  bool isConstant() const override {
    return kind_ == Kind::kConstant || (kind_ == Kind::kOperation && first_->isConstant() && second_->isConstant());
  }
  int64_t getConstantValue() const override { return Evaluate({}); }

  // `sizes` by number of the free size.
  int64_t Evaluate(const std::vector<int64_t>& sizes) const {
    switch (kind_) {
      case Kind::kConstant:
        return value_;
      case Kind::kFree:
        return sizes.at(static_cast<size_t>(value_));
      default:
        return Apply(op_, first_->Evaluate(sizes), second_->Evaluate(sizes));
    }
  }

 private:
  enum class Kind { kConstant, kFree, kOperation };

  Expression(Kind kind, int64_t value, abi::DimensionOperation op, const Expression* first, const Expression* second)
      : kind_(kind), value_(value), op_(op), first_(first), second_(second) {
    impl = this;
  }

  static int64_t Apply(abi::DimensionOperation op, int64_t a, int64_t b) {
    using Op = abi::DimensionOperation;
    switch (op) {
      case Op::kSUM:
        return a + b;
      case Op::kPROD:
        return a * b;
      case Op::kMAX:
        return std::max(a, b);
      case Op::kMIN:
        return std::min(a, b);
      case Op::kSUB:
        return a - b;
      case Op::kEQUAL:
        return a == b;
      case Op::kLESS:
        return a < b;
      case Op::kFLOOR_DIV:
        if (b == 0) throw std::domain_error("a size divided by 0");
        return a / b;
      case Op::kCEIL_DIV:
        if (b == 0) throw std::domain_error("a size divided by 0");
        return (a + b - 1) / b;
    }
    throw std::domain_error("an unknown operation over sizes");
  }

  Kind kind_;
  int64_t value_;
  abi::DimensionOperation op_;
  const Expression *first_, *second_;
};

// Owns what it makes. After `refuse_after` expressions it gives null, as TensorRT does out of memory.
class ExpressionBuilder final : public abi::IExprBuilder, public abi::ExprBuilderImpl {
 public:
  ExpressionBuilder() { impl = this; }
  const abi::IDimensionExpr* constant(int64_t value) override { return Keep(Expression::Constant(value)); }
  const abi::IDimensionExpr* operation(abi::DimensionOperation op, const abi::IDimensionExpr& first,
                                       const abi::IDimensionExpr& second) override {
    return Keep(
        Expression::Operation(op, static_cast<const Expression*>(&first), static_cast<const Expression*>(&second)));
  }
  const Expression* Free(int64_t variable) { return Keep(Expression::Free(variable)); }

  size_t refuse_after = SIZE_MAX;

 private:
  const Expression* Keep(const Expression& expression) {
    return made_.size() >= refuse_after ? nullptr : &made_.emplace_back(expression);
  }
  std::deque<Expression> made_;
};

}  // namespace bertfuse::test::tensorrt
#endif  // BERTFUSE_TESTS_TENSORRT_EXPRESSIONS_H_
