// Norms whose rows are written in 8 bits, too, in the emulator: y, and the sum that is normalised where it is an
// output, have the bits that they have without, and the rest is what QuantizeRows() makes of y, bit for bit. And norms
// whose residual comes in 8 bits: they give what they give of these numbers in 16 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "emulator/late_array.h"
#include "emulator/random_data.h"
#include "kernels/layer_norm.h"
#include "kernels/quantize_rows.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

constexpr Device kDevice = {0, 90, 4, 227 << 10};

template <class T>
class Problem {
 public:
  explicit Problem(Random& random) {
    const int64_t steps[] = {1, 4, 8, 8}, step = steps[random.Between(0, 3)];
    columns_ = random.Between(1, (random.OneIn(4) ? 2200 : 900) / step) * step, rows_ = random.Between(1, 60);
    Fill(random, &product_, rows_ * columns_), Fill(random, &residual_, rows_ * columns_);
    for (auto* vector : {&bias_, &gamma_, &beta_}) Fill(random, vector, columns_);
    // Rows alike but for one number, of zeros, denormal and large ones, and with what is not finite.
    const float sizes[] = {1, 0, 1e-6f, 1e-30f, 300};
    const float size = sizes[random.Between(0, 4)];
    for (int64_t i = 0; i < columns_; ++i) {
      (*gamma_)[i] = FromFloat<T>(ToFloat((*gamma_)[i]) * size),
      (*beta_)[i] = FromFloat<T>(ToFloat((*beta_)[i]) * size);
    }
    const float odd[] = {NAN, INFINITY, -INFINITY, 6e4f};
    for (int i = 0; i < 2; ++i) {
      (*residual_)[random.Between(0, rows_ * columns_ - 1)] = FromFloat<T>(odd[random.Between(0, 3)]);
    }
    if (random.OneIn(6)) (*beta_)[random.Between(0, columns_ - 1)] = FromFloat<T>(odd[random.Between(0, 2)]);
    norm_.bias = random.OneIn(3) ? nullptr : bias_->data(), norm_.residual = residual_->data();
    norm_.gamma = gamma_->data(), norm_.beta = beta_->data();
    norm_.rows = rows_, norm_.columns = columns_, norm_.epsilon = 1e-5f;
    norm_.vectors_are_constant = random.OneIn(2), norm_.residual_is_complete = random.OneIn(2);
    if (sizeof(T) == 4 || random.OneIn(3)) {
      norm_.splits = static_cast<int>(random.Between(1, 3));
      sums_ = std::make_unique<DeviceArray<float>>(norm_.splits * rows_ * columns_);
      random.Fill(*sums_, 1), norm_.float_partials = sums_->data();
    } else {
      norm_.product = product_->data();
      if (columns_ <= kMaxSplitColumns && random.OneIn(2)) {
        norm_.more_partials = static_cast<int>(random.Between(1, kMaxMorePartials));
        norm_.last_wave = {16, 1, static_cast<int>(random.Between(2, 4))};
        norm_.partial_rows = MaxRowsLeft(norm_.last_wave, rows_);
        Fill(random, &partials_, norm_.more_partials * norm_.partial_rows * columns_);
        norm_.partials = partials_->data();
      }
    }
    row_count_[0] = static_cast<int32_t>(random.Between(-1, rows_ + 1));
    if (random.OneIn(3)) norm_.packed = {row_count_.data(), random.Between(1, rows_)};
    smooth_ = std::make_unique<DeviceArray<float>>(columns_);
    for (float& factor : *smooth_) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
    has_smooth_ = random.OneIn(2);
    keeps_total_ = sizeof(T) == 2 && random.OneIn(2);
    if (keeps_total_ && random.OneIn(2)) norm_.norm = NormKind::kRmsNorm, norm_.gamma_offset = random.OneIn(2) ? 1 : 0;
    if (keeps_total_ && random.OneIn(3)) norm_.beta = nullptr;
  }

  // By every kernel that takes it; how many do.
  template <class Quantized>
  int Check(Random& random) {
    int count = 0;
    for (const LayerNormKernel kernel :
         {LayerNormKernel::kBlockPerRow, LayerNormKernel::kWarpPerRow, LayerNormKernel::kPersistentWarps,
          LayerNormKernel::kPersistentWarpsFewPartials}) {
      SCOPED_TRACE(testing::Message() << rows_ << " x " << columns_ << ", kernel " << static_cast<int>(kernel) << ", "
                                      << norm_.more_partials << " partial sums, row count "
                                      << (norm_.packed.row_count == nullptr ? -9 : row_count_[0])
                                      << (keeps_total_ ? ", keeps the sum" : ""));
      const int64_t all = rows_ * columns_;
      DeviceArray<T> plain(all), y(all), plain_total(all), total(all);
      DeviceArray<Quantized> expected(all), quantized(all);
      DeviceArray<float> expected_scales(rows_), scales(rows_);
      LayerNormArguments<T> with = norm_;
      with.y = y.data(), with.total = keeps_total_ ? total.data() : nullptr;
      with.quantized = {quantized.data(), scales.data(), has_smooth_ ? smooth_->data() : nullptr,
                        !std::is_same_v<Quantized, int8_t>};
      DeviceArray<float> one_scale(1);
      DeviceArray<int8_t> zero(1);
      one_scale[0] = static_cast<float>(random.Between(1, 100)) * 1e-3f;
      zero[0] = static_cast<int8_t>(random.Between(-128, 127));
      if (random.OneIn(3)) {
        with.quantized.scale = one_scale.data();
        if (std::is_same_v<Quantized, int8_t> && random.OneIn(2)) with.quantized.zero = zero.data();
      }
      const LayerNormProblem problem = {columns_,           sizeof(T), LayerNormVector(with), with.product != nullptr,
                                        with.more_partials, false};
      if (!LayerNormSupports(kernel, problem)) continue;
      ++count;
      norm_.y = plain.data(), norm_.total = keeps_total_ ? plain_total.data() : nullptr;
      SetUp(random);
      EXPECT_EQ(LayerNorm(kernel, norm_, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
      const emulator::HiddenArrays late = HideWhatMayBeLate();
      bool wrote_early = false;
      emulator::TheSettings().dependencies_end = [&] {
        wrote_early = emulator::IsWritten(y) || emulator::IsWritten(total) || emulator::IsWritten(quantized) ||
                      emulator::IsWritten(scales);
        late.Appear();
      };
      emulator::TheSettings().finds_races = random.OneIn(2);
      EXPECT_EQ(LayerNorm(kernel, with, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
      emulator::TheSettings().finds_races = false;
      emulator::TheSettings().dependencies_end = nullptr;
      EXPECT_FALSE(wrote_early) << "results were written before the kernels before had ended";
      const QuantizeRowsArguments<T, Quantized> rows = {y.data(),
                                                        with.quantized.smooth,
                                                        with.quantized.scale,
                                                        expected.data(),
                                                        expected_scales.data(),
                                                        rows_,
                                                        columns_,
                                                        with.packed,
                                                        true,
                                                        with.quantized.zero};
      EXPECT_EQ(QuantizeRows(rows, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
      EXPECT_EQ(std::memcmp(plain.data(), y.data(), all * sizeof(T)), 0) << "y is another";
      EXPECT_EQ(std::memcmp(plain_total.data(), total.data(), all * sizeof(T)), 0) << "the sum is another";
      for (int64_t row = 0; row < rows_; ++row) {
        const float scale = scales[row], wanted = expected_scales[row];
        EXPECT_TRUE(scale == wanted || (std::isnan(scale) && std::isnan(wanted))) << row << ": " << scale << wanted;
        for (int64_t i = 0; i < columns_ && !std::isnan(wanted); ++i) {  // else the numbers are no matter
          const int64_t at = row * columns_ + i;
          EXPECT_EQ(std::memcmp(&quantized[at], &expected[at], 1), 0) << row << ", " << i;
        }
      }
      // Behind the last row that is there, nothing is written.
      const int64_t there = norm_.packed.row_count == nullptr ? rows_ : std::clamp<int64_t>(row_count_[0], 0, rows_);
      for (int64_t i = there * columns_; i < all; ++i) EXPECT_EQ(std::memcmp(&quantized[i], "\xff", 1), 0) << i;
    }
    return count;
  }

  // A residual of integers, which are exact in T, by every kernel that takes it; how many do.
  template <class Quantized>
  int CheckQuantizedResidual(Random& random) {
    const int64_t all = rows_ * columns_;
    DeviceArray<int8_t> numbers(all);
    DeviceArray<float> scales(rows_), factor(columns_);
    const bool has_factor = random.OneIn(2);
    for (int64_t row = 0; row < rows_; ++row) scales[row] = std::exp2(static_cast<float>(random.Between(-7, -4)));
    for (float& f : factor) f = std::exp2(static_cast<float>(random.Between(-1, 1)));
    for (int64_t i = 0; i < all; ++i) {
      numbers[i] = static_cast<int8_t>(random.Between(-128, 127));
      const float value = static_cast<float>(numbers[i]) * scales[i / columns_];
      (*residual_)[i] = FromFloat<T>(has_factor ? value * factor[i % columns_] : value);
    }
    for (int64_t i = 0; i < columns_; ++i) (*gamma_)[i] = (*beta_)[i] = FromFloat<T>(1);
    norm_.total = nullptr, norm_.norm = NormKind::kLayerNorm, norm_.beta = beta_->data();
    LayerNormArguments<T> restores = norm_;
    restores.residual = nullptr;
    restores.quantized_residual = {numbers.data(), scales.data(), has_factor ? factor.data() : nullptr};
    int count = 0;
    for (const LayerNormKernel kernel :
         {LayerNormKernel::kBlockPerRow, LayerNormKernel::kWarpPerRow, LayerNormKernel::kPersistentWarps,
          LayerNormKernel::kPersistentWarpsFewPartials}) {
      SCOPED_TRACE(testing::Message() << rows_ << " x " << columns_ << ", kernel " << static_cast<int>(kernel) << ", "
                                      << norm_.more_partials << " partial sums");
      DeviceArray<T> plain(all), y(all), unwritten(all);
      DeviceArray<Quantized> expected(all), quantized(all);
      DeviceArray<float> expected_scales(rows_), row_scales(rows_);
      norm_.y = plain.data(), restores.y = y.data(), restores.quantized = {};
      LayerNormArguments<T> writes = restores;
      writes.y = unwritten.data();
      writes.quantized = {quantized.data(), row_scales.data(), has_smooth_ ? smooth_->data() : nullptr,
                          !std::is_same_v<Quantized, int8_t>};
      const LayerNormProblem problem = {
          columns_, sizeof(T), LayerNormVector(writes), norm_.product != nullptr, norm_.more_partials, false};
      if (!LayerNormSupports(kernel, problem)) continue;
      ++count;
      SetUp(random);
      EXPECT_EQ(LayerNorm(kernel, norm_, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
      writes.quantized.alone = random.OneIn(2);
      for (const LayerNormArguments<T>* launched : {&restores, &writes}) {
        emulator::HiddenArrays late = HideWhatMayBeLate();
        if (!norm_.residual_is_complete) late.Hide(numbers), late.Hide(scales);
        if (!norm_.vectors_are_constant) late.Hide(factor);
        bool wrote_early = false;
        emulator::TheSettings().dependencies_end = [&] {
          wrote_early = emulator::IsWritten(unwritten) || emulator::IsWritten(quantized) ||
                        (launched == &restores && emulator::IsWritten(y));
          late.Appear();
        };
        emulator::TheSettings().finds_races = random.OneIn(2);
        EXPECT_EQ(LayerNorm(kernel, *launched, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
        emulator::TheSettings().dependencies_end = nullptr;
        emulator::TheSettings().finds_races = false;
        EXPECT_FALSE(wrote_early) << "results were written before the kernels before had ended";
      }
      if (writes.quantized.alone) {
        EXPECT_FALSE(emulator::IsWritten(unwritten));
      } else {
        EXPECT_EQ(std::memcmp(unwritten.data(), y.data(), all * sizeof(T)), 0) << "y is another";
      }
      const QuantizeRowsArguments<T, Quantized> rows = {
          y.data(),     writes.quantized.smooth, nullptr, expected.data(), expected_scales.data(), rows_, columns_,
          writes.packed};
      EXPECT_EQ(QuantizeRows(rows, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
      const int64_t there = norm_.packed.row_count == nullptr ? rows_ : std::clamp<int64_t>(row_count_[0], 0, rows_);
      // The sum's terms come in another order: of y the last place may differ, and columns_ of 1 have no deviation.
      const double unit = std::is_same_v<T, __half> ? 0x1p-10 : 0x1p-7;
      for (int64_t i = 0; i < there * columns_ && columns_ > 4; ++i) {
        EXPECT_NEAR(ToFloat(y[i]), ToFloat(plain[i]), unit * (std::fabs(ToFloat(plain[i])) + 0.02)) << i;
      }
      EXPECT_EQ(std::memcmp(&quantized[0], &expected[0], static_cast<size_t>(there * columns_)), 0);
      EXPECT_EQ(std::memcmp(&row_scales[0], &expected_scales[0], static_cast<size_t>(there) * sizeof(float)), 0);
      for (int64_t i = there * columns_; i < all; ++i) EXPECT_EQ(std::memcmp(&quantized[i], "\xff", 1), 0) << i;
    }
    return count;
  }

 private:
  static void SetUp(Random& random) {
    emulator::TheSettings().seed = random.Seed();
    emulator::TheSettings().compute_capability = kDevice.compute_capability;
    emulator::TheSettings().shared_bytes = kDevice.shared_bytes;
  }
  // What kernels before the norm may still be writing.
  emulator::HiddenArrays HideWhatMayBeLate() const {
    emulator::HiddenArrays late;
    late.Hide(*product_);
    if (sums_ != nullptr) late.Hide(*sums_);
    if (partials_ != nullptr) late.Hide(*partials_);
    if (!norm_.residual_is_complete) late.Hide(*residual_);
    if (norm_.vectors_are_constant) return late;
    for (auto* vector : {&bias_, &gamma_, &beta_}) late.Hide(**vector);
    late.Hide(*smooth_);
    return late;
  }
  static void Fill(Random& random, std::unique_ptr<DeviceArray<T>>* to, int64_t count) {
    *to = std::make_unique<DeviceArray<T>>(count);
    random.Fill(**to, 1);
  }
  int64_t rows_, columns_;
  std::unique_ptr<DeviceArray<T>> product_, residual_, bias_, gamma_, beta_, partials_;
  std::unique_ptr<DeviceArray<float>> sums_, smooth_;
  DeviceArray<int32_t> row_count_{1};
  bool has_smooth_, keeps_total_;
  LayerNormArguments<T> norm_ = {};
};

template <class T>
void TestNorm() {
  Random random(emulator::Seed());
  int count = 0;
  for (int i = 0; i < 4; ++i) {
    Problem<T> problem(random);
    count += problem.template Check<int8_t>(random) + problem.template Check<__nv_fp8_e4m3>(random);
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%d launches wrote what QuantizeRows() gives\n", count);
}

template <class T>
void TestQuantizedResidual() {
  Random random(emulator::Seed());
  int count = 0;
  for (int i = 0; i < 6; ++i) {
    Problem<T> problem(random);
    count += random.OneIn(3) ? problem.template CheckQuantizedResidual<__nv_fp8_e4m3>(random)
                             : problem.template CheckQuantizedResidual<int8_t>(random);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(count, 0);
  std::printf("%d kernels added a residual of integers\n", count);
}

TEST(EmulatedNormOfQuantizedResidual, Float16) { TestQuantizedResidual<__half>(); }
TEST(EmulatedNormOfQuantizedResidual, Bfloat16) { TestQuantizedResidual<__nv_bfloat16>(); }

TEST(EmulatedQuantizingNorm, Float16) { TestNorm<__half>(); }
TEST(EmulatedQuantizingNorm, Bfloat16) { TestNorm<__nv_bfloat16>(); }
TEST(EmulatedQuantizingNorm, Float32) { TestNorm<float>(); }

}  // namespace
}  // namespace bertfuse::kernels
