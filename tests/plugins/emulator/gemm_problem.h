// Random problems for matrix products, and what their results should be, in float64.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_GEMM_PROBLEM_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_GEMM_PROBLEM_H_

#include <cmath>
#include <memory>
#include <vector>

#include "emulator/late_array.h"
#include "emulator/product.h"
#include "emulator/random_data.h"
#include "kernels/sm90/gemm.h"

namespace bertfuse::kernels {

inline double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kNone:
      break;
  }
  return x;
}

template <class T>
class GemmProblem {
 public:
  // With a norm, of a whole row of blocks. `gates`: n is of both factors.
  GemmProblem(emulator::Random* random, int64_t m, int64_t n, int64_t k, bool packed, bool gates = false)
      : x_(m * k),
        weight_(n * k),
        bias_(n),
        residual_(m * n),
        gamma_(n),
        beta_(n),
        y_(m * n / (gates ? 2 : 1)),
        row_count_(1) {
    GemmArguments<Elements<T>>& a = arguments;
    a.m = m, a.n = n, a.k = k;
    x_.Fill(random, 1), weight_.Fill(random, 1 / std::sqrt(static_cast<double>(k)));
    bias_.Fill(random, 0.5), residual_.Fill(random, 1), gamma_.Fill(random, 0.3), beta_.Fill(random, 0.3);
    a.x = x_.array.data(), a.weight = weight_.array.data(), a.y = y_.data();
    a.bias = random->OneIn(4) ? nullptr : bias_.array.data();
    a.gates = gates;
    a.activation = static_cast<Activation>(random->Between(0, gates ? 4 : 2));
    a.weights_are_constant = random->OneIn(2), a.dependents_begin_late = random->OneIn(2);
    a.last_rows_first = random->OneIn(2);
    a.epsilon = 1e-5f;
    rows_ = m;
    if (!packed) return;
    // At times none, and at times more than the grid was sized for.
    rows_ = random->OneIn(8) ? 0 : random->Between(1, m);
    row_count_[0] = static_cast<int32_t>(rows_);
    a.packed = {row_count_.data(), random->Between(1, m)};
  }
  void AddNorm(emulator::Random* random) {
    arguments.bias = bias_.array.data();
    arguments.residual = random->OneIn(3) ? nullptr : residual_.array.data();
    arguments.gamma = gamma_.array.data(), arguments.beta = beta_.array.data();
  }
  // Heads of 64 columns, n of them all, rotated in halves.
  void AddRotation(emulator::Random* random) {
    Rotation<T>& r = arguments.rotation;
    const int64_t heads = arguments.n / kEpilogueHead;  // three at least
    r.kv_heads = random->Between(1, (heads - 1) / 2), r.heads = heads - 2 * r.kv_heads;
    r.head_size = kEpilogueHead, r.rotated = kEpilogueHead / 2;
    r.table_rows = random->Between(1, 2 * arguments.m);
    cos_ = std::make_unique<emulator::LateArray<T>>(r.table_rows * r.rotated);
    sin_ = std::make_unique<emulator::LateArray<T>>(r.table_rows * r.rotated);
    cos_->Fill(random, 0.7), sin_->Fill(random, 0.7);
    r.cos = cos_->array.data(), r.sin = sin_->array.data();
    arguments.activation = Activation::kNone;
    for (int64_t row = 0; row < arguments.m; ++row) places_.push_back(row % r.table_rows);
    if (random->OneIn(2)) return;
    row_places_ = std::make_unique<emulator::LateArray<int32_t>>(arguments.m);
    for (int64_t row = 0; row < arguments.m; ++row) {
      places_[row] = random->Between(0, r.table_rows - 1);
      // Of a padded batch, or below 0, where the first row is read.
      const int64_t text = random->OneIn(2) ? random->Between(0, 1000) : 0;
      const bool below = places_[row] == 0 && random->OneIn(2);
      row_places_->values()[row] = static_cast<int32_t>(below ? -text : places_[row] + text * r.table_rows);
    }
    r.places = row_places_->array.data();
  }
  // Which y's rows get with the bias.
  void AddResidual() {
    arguments.residual = residual_.array.data(), arguments.adds_residual = true;
    arguments.activation = Activation::kNone;
  }
  void BareProduct() { arguments.bias = nullptr, arguments.activation = Activation::kNone; }

  int64_t rows() const { return rows_; }

  // Called when the kernels before this one end: what they write appears, and nothing may be overwritten yet.
  void EndDependencies() {
    x_.Appear(), residual_.Appear();
    if (cos_ != nullptr) cos_->Appear(), sin_->Appear();
    if (row_places_ != nullptr) row_places_->Appear();
    if (!arguments.weights_are_constant) AppearWeights();
    early_ |= emulator::IsWritten(y_);
  }
  void Prepare() {
    if (arguments.weights_are_constant) AppearWeights();
    emulator::TheSettings().dependencies_end = [this] { EndDependencies(); };
  }
  bool wrote_early() const { return early_; }

  // x weight^T, of the stages of k from `first` to `last` (of 128 bytes each).
  std::vector<double> Product() const {
    const GemmArguments<Elements<T>>& a = arguments;
    std::vector<double> x(a.m * a.k), weight(a.n * a.k), product(a.m * a.n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = x_[i];
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = weight_[i];
    emulator::MultiplyReference(x.data(), weight.data(), rows_, a.n, a.k, product.data());
    return product;
  }
  double AfterActivation(double product, int64_t column) const {
    return Activated(arguments.activation, product + (arguments.bias == nullptr ? 0.0 : bias_[column]));
  }
  double WithResidual(double product, int64_t row, int64_t column) const {
    return AfterActivation(product, column) + residual_[row * arguments.n + column];
  }
  // An element of a row's products, rotated.
  double Rotated(const double* product, int64_t row, int64_t column) const {
    const Rotation<T>& r = arguments.rotation;
    const double x = AfterActivation(product[column], column);
    if (column >= (r.heads + r.kv_heads) * r.head_size) return x;
    const bool second = column % r.head_size >= r.rotated;
    const int64_t other = second ? column - r.rotated : column + r.rotated;
    const int64_t at = places_[row] * r.rotated + column % r.rotated;
    const double y = AfterActivation(product[other], other);
    return x * (*cos_)[at] + (second ? y : -y) * (*sin_)[at];
  }
  // An element of a gate's result, of a row's products.
  double Gated(const double* product, int64_t column) const {
    const int64_t other = arguments.n / 2 + column;
    return AfterActivation(product[column], column) *
           (product[other] + (arguments.bias == nullptr ? 0.0 : bias_[other]));
  }
  // One row of the result with LayerNorm.
  std::vector<double> Normalized(const double* product, int64_t row) const {
    const int64_t n = arguments.n;
    std::vector<double> values(n);
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      values[i] = AfterActivation(product[i], i) + (arguments.residual == nullptr ? 0.0 : residual_[row * n + i]);
      mean += values[i] / n;
    }
    for (double value : values) squares += (value - mean) * (value - mean) / n;
    for (int64_t i = 0; i < n; ++i) {
      values[i] = (values[i] - mean) / std::sqrt(squares + arguments.epsilon) * gamma_[i] + beta_[i];
    }
    return values;
  }

  GemmArguments<Elements<T>> arguments = {};

 private:
  void AppearWeights() const { weight_.Appear(), bias_.Appear(), gamma_.Appear(), beta_.Appear(); }

  emulator::LateArray<T> x_, weight_, bias_, residual_, gamma_, beta_;
  std::unique_ptr<emulator::LateArray<T>> cos_, sin_;
  std::unique_ptr<emulator::LateArray<int32_t>> row_places_;
  std::vector<int64_t> places_;  // of each row, within the tables
  emulator::DeviceArray<T> y_;
  emulator::DeviceArray<int32_t> row_count_;
  int64_t rows_;
  bool early_ = false;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_GEMM_PROBLEM_H_
