// Quantised products, in the emulator: the rule of graph_rewrite/dialect/quantized.py, rounded in
// float32 where it says so and float64 in all else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "emulator/gemm_problem.h"
#include "emulator/random_data.h"
#include "emulator/rounded_rows.h"
#include "kernels/mma/gemm.h"
#include "kernels/portable/gemm.h"
#include "kernels/quantize_rows.h"
#include "kernels/sm90/gemm.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;
using gemm_mma::Math;
using gemm_mma::Tile;

constexpr Device kDevices[] = {{0, 89, 5, 163 << 10}, {1, 120, 3, 99 << 10}};

struct Sizes {
  int64_t m, n, k;
};

Sizes Draw(Random& random, int64_t most_m, int64_t most_n, int64_t multiple_of_k, int64_t multiple_of_n = 1) {
  return {random.Between(1, most_m), random.Between(1, CeilDiv(most_n, multiple_of_n)) * multiple_of_n,
          random.Between(1, random.OneIn(3) ? 40 : 6) * multiple_of_k};
}

template <class Elements>
class Problem {
  using T = typename Elements::Y;
  using X = typename Elements::X;

 public:
  // `aligned`: y, and no tensor has an offset.
  Problem(Random& random, const Sizes& sizes, bool aligned = false)
      : random_(random),
        m_(sizes.m),
        n_(sizes.n),
        k_(sizes.k),
        x_(m_ * k_, random.OneIn(3)),
        smooth_(k_, random.OneIn(3)),
        scale_(1),
        bias_(n_, aligned ? 0 : random.Between(0, 3)),
        y_(m_ * n_, aligned ? 0 : random.Between(0, 3) / 2 * (16 / sizeof(T)) + random.OneIn(4)),
        weight_(n_ * k_),
        quantized_(m_ * k_),
        row_scales_(m_),
        weight_scales_(n_),
        row_count_(1),
        compensation_(n_) {
    random.Fill(x_, 1), random.Fill(bias_, 0.5), random.Fill(weight_scales_, 1.0 / 128 / std::sqrt(k_));
    for (float& factor : smooth_) factor = std::exp2(static_cast<float>(random.Between(-8, 8)) / 4);
    random.Fill(weight_, 60);
    if (random.OneIn(3)) weight_scales_[random.Between(0, n_ - 1)] = random.OneIn(2) ? 0.0f : 1e-41f;
    for (int i = 0; i < 3; ++i) MakeOdd(random.Between(0, m_ - 1));
    // Of a tensor: some numbers lie beyond the ends; at times it is nothing, or hardly anything.
    scale_[0] = random.OneIn(6) ? 0.0f : random.OneIn(6) ? 1e-42f : static_cast<float>(random.Between(5, 40)) / 1000;
    rows_.x = x_.data(), rows_.quantized = quantized_.data(), rows_.row_scales = row_scales_.data();
    if (random.OneIn(2)) rows_.smooth = smooth_.data();
    if (random.OneIn(3)) rows_.scale = scale_.data();
    rows_.rows = m_, rows_.columns = k_;
    packed_ = random.OneIn(3);
    if (packed_) {
      row_count_[0] = static_cast<int32_t>(random.Between(-1, m_ + 1));
      rows_.packed = a_.packed = {row_count_.data(), random.Between(0, m_)};
    }
    a_.x = quantized_.data(), a_.weight = weight_.data(), a_.y = y_.data();
    a_.row_scales = row_scales_.data(), a_.weight_scales = weight_scales_.data();
    if (!random.OneIn(4)) a_.bias = bias_.data();
    for (int32_t& value : compensation_) value = static_cast<int32_t>(random.Between(-100 * k_, 100 * k_));
    if (kIsInteger<X> && random.OneIn(2)) a_.x_compensation = compensation_.data();
    a_.m = m_, a_.n = n_, a_.k = k_;
    a_.activation = static_cast<Activation>(random.Between(0, 2));
    a_.weights_are_constant = random.OneIn(2), a_.last_rows_first = random.OneIn(2);
    form_ = random.OneIn(3) ? GemmForm::kPartialSums : GemmForm::kComplete;
  }

  // By tensor cores; the worst error in parts of what is allowed.
  double RunTile(const Tile& tile) {
    constexpr Math kMath = kIsInteger<X> ? Math::kInt8 : Math::kFp8;
    const Device& device = kDevices[random_.Between(0, 1)];
    GemmTile chosen;
    chosen.block = gemm_mma::BlockOn(kMath, tile, device.shared_bytes);
    if (random_.OneIn(2)) {
      chosen.block.stages = static_cast<int>(random_.Between(gemm_mma::MinStages(tile), chosen.block.stages));
    }
    SplitSums(tile.row_bytes, &chosen);
    return Run(device, chosen.splits, [&] {
      if (random_.OneIn(4) && form_ == GemmForm::kComplete) form_ = GemmForm::kRounded;
      emulator::TakeSharedAccesses();
      emulator::TheSettings().finds_races = random_.OneIn(2);
      cudaError_t error;
      if constexpr (kIsInteger<X>) {
        error = GemmMmaInt8(form_, chosen, a_, device, nullptr);
      } else {
        error = GemmMmaFp8(form_, chosen, a_, device, nullptr);
      }
      emulator::TheSettings().finds_races = false;
      EXPECT_EQ(error, cudaSuccess) << emulator::TakeFault();
      EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
    });
  }

  double RunSimt() {
    const Device& device = kDevices[random_.Between(0, 1)];
    stage_k_ = 1;
    return Run(device, 1, [&] {
      EXPECT_EQ(GemmSimt(MakePortableGemm(form_, a_), device, nullptr), cudaSuccess) << emulator::TakeFault();
    });
  }

  // By Hopper's kernels, in that form.
  double RunHopper(GemmTile tile, GemmForm form) {
    emulator::Settings& settings = emulator::TheSettings();
    const int cluster = tile.cluster_m * tile.cluster_n;
    settings.multiprocessors = cluster * static_cast<int>(random_.Between(1, 3));
    settings.blocks_per_multiprocessor = tile.block.per_multiprocessor;
    const Device device = {settings.multiprocessors, 90, settings.multiprocessors, 227 << 10, 228 << 10};
    form_ = form, keeps_rest_ = false;
    if (form == GemmForm::kPartialSums) SplitSums(kStageRowBytes, &tile);
    stage_k_ = tile.block.promotes ? kStageRowBytes : k_;
    if (form == GemmForm::kRounded) {  // the last wave's splits
      a_.bias = nullptr, a_.activation = Activation::kNone;
      SplitSums(kStageRowBytes, &tile);
      a_.last_wave = {tile.cluster_m * tile.block.m,
                      static_cast<int>(CeilDiv(n_, int64_t{tile.cluster_n} * tile.block.n)),
                      std::max(device.multiprocessors / cluster, 1)};
      a_.partial_rows = MaxRowsLeft(a_.last_wave, m_);
    }
    DeviceArray<T> more((tile.splits - 1) * a_.partial_rows * n_);
    a_.partials = more.data();
    more_ = tile.splits > 1 && form == GemmForm::kRounded ? &more : nullptr;
    SCOPED_TRACE(testing::Message() << "tile " << tile.block.m << " x " << tile.block.n << ", " << tile.block.stages
                                    << " stages, cluster " << tile.cluster_m << " x " << tile.cluster_n
                                    << (tile.block.promotes ? ", promoting" : ""));
    return Run(device, tile.splits, [&] {
      // Rows appear when the kernel that writes them has ended.
      const std::vector<char> x = Hide(quantized_), scales = Hide(row_scales_);
      settings.dependencies_end = [&] {
        std::memcpy(static_cast<void*>(quantized_.data()), x.data(), x.size());
        std::memcpy(row_scales_.data(), scales.data(), scales.size());
      };
      emulator::TakeSharedAccesses();
      const cudaError_t error = form == GemmForm::kPartialSums ? GemmSm90SplitK(tile, a_, device, nullptr)
                                                               : GemmSm90Elementwise(tile, a_, device, nullptr);
      settings.dependencies_end = nullptr;
      EXPECT_EQ(error, cudaSuccess) << emulator::TakeFault();
      EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
    });
  }

 private:
  template <class Element>
  static std::vector<char> Hide(const DeviceArray<Element>& array) {
    const size_t bytes = array.size() * sizeof(Element);
    std::vector<char> kept(bytes);
    std::memcpy(kept.data(), array.data(), bytes);
    std::memset(static_cast<void*>(array.data()), 0xff, bytes);
    return kept;
  }

  // A random number of splits, of which each has a stage.
  void SplitSums(int stage_bytes, GemmTile* tile) {
    const int64_t stages = CeilDiv(k_, stage_bytes);
    if (form_ == GemmForm::kComplete) return;
    tile->splits = static_cast<int>(random_.Between(1, std::min<int64_t>(stages, form_ == GemmForm::kRounded ? 4 : 5)));
    while ((tile->splits - 1) * CeilDiv(stages, tile->splits) >= stages) --tile->splits;
  }

  // Zeros, numbers whose largest is tiny or denormal, large ones, all alike, one that is not finite.
  void MakeOdd(int64_t row) {
    const double factors[] = {0, 1e-33, 1e-40, 100};
    const int64_t kind = random_.Between(0, 6);
    for (int64_t k = 0; k < k_ && kind < 4; ++k) {
      x_[row * k_ + k] = FromFloat<T>(static_cast<float>(ToFloat(x_[row * k_ + k]) * factors[kind]));
    }
    for (int64_t k = 1; k < k_ && kind == 6; ++k) x_[row * k_ + k] = x_[row * k_];
    if (kind == 4 || kind == 5) x_[row * k_ + random_.Between(0, k_ - 1)] = FromFloat<T>(kind == 4 ? NAN : -INFINITY);
  }

  template <class Multiply>
  double Run(const Device& device, int splits, Multiply&& multiply) {
    SCOPED_TRACE(testing::Message() << m_ << " x " << n_ << " x " << k_ << ", " << splits << " splits, activation "
                                    << static_cast<int>(a_.activation) << ", rows " << (packed_ ? row_count_[0] : -1)
                                    << ", scale " << (rows_.scale == nullptr ? -1 : scale_[0]));
    DeviceArray<float> partials(form_ == GemmForm::kPartialSums ? splits * m_ * n_ : 0);
    a_.float_partials = partials.data();
    emulator::TheSettings().seed = random_.Seed();
    emulator::TheSettings().compute_capability = device.compute_capability;
    emulator::TheSettings().shared_bytes = device.shared_bytes;
    EXPECT_EQ(QuantizeRows(rows_, device, nullptr), cudaSuccess) << emulator::TakeFault();
    multiply();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmGelu", emulator::kDtype<T>));
    const int64_t rows = packed_ ? std::clamp<int64_t>(row_count_[0], 0, m_) : m_;
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> x(k_);
      for (int64_t k = 0; k < k_; ++k) x[k] = ToFloat(x_[row * k_ + k]);
      const Row expected = RoundedRow<X>(x, rows_.smooth, rows_.scale);
      for (int64_t k = 0; k < k_ && !std::isnan(expected.scale); ++k) {  // else the numbers are no matter
        const double found = ToFloat(quantized_[row * k_ + k]), wanted = expected.numbers[k];
        EXPECT_TRUE(found == wanted || (std::isnan(found) && std::isnan(wanted)))
            << row << ", " << k << ": " << x[k] << " is " << found << ", expected " << wanted;
      }
      const auto scale = static_cast<float>(expected.scale);
      EXPECT_TRUE(row_scales_[row] == scale || (std::isnan(scale) && std::isnan(row_scales_[row])));
      for (int64_t column = 0; column < n_; ++column) {
        Compare(row, column, splits, rows, expected, partials, &comparison);
      }
    }
    EXPECT_LE(comparison.worst(), 1);
    for (int64_t i = form_ == GemmForm::kPartialSums ? 0 : rows * n_; keeps_rest_ && i < m_ * n_; ++i) {
      EXPECT_EQ(std::memcmp(y_.data() + i, "\xff\xff\xff\xff", sizeof(T)), 0) << "y is written at " << i;
    }
    return comparison.worst();
  }

  void Compare(int64_t row, int64_t column, int splits, int64_t rows, const Row& x, const DeviceArray<float>& partials,
               emulator::Comparison* comparison) {
    double sum = 0, size_of_sum = 0;
    for (int64_t k = 0; k < k_; ++k) {
      sum += x.numbers[k] * ToFloat(weight_[column * k_ + k]);
      size_of_sum += std::abs(x.numbers[k] * ToFloat(weight_[column * k_ + k]));
    }
    if (a_.x_compensation != nullptr) sum -= compensation_[column];
    const double product = sum * x.scale * weight_scales_[column];
    // Large rows make large sums: what float32 rounds of them. What bfloat16 rounds, the table has.
    double bound = std::isfinite(product) ? std::abs(product) * 1e-6 * splits : 0;
    if (!kIsInteger<X> && std::isfinite(product)) {
      const auto product_at = [&](int64_t k) { return x.numbers[k] * ToFloat(weight_[column * k_ + k]); };
      const double cut_off = stage_k_ == 1 ? 0 : CutOff(k_, stage_k_, product_at);  // 1: tensor cores do not sum up
      bound += (size_of_sum * 1e-6 + cut_off) * std::abs(x.scale * weight_scales_[column]);
    }
    if (form_ == GemmForm::kPartialSums) {
      double found = 0, size = 0;
      for (int split = 0; split < splits; ++split) {
        const double part = partials[(split * m_ + row) * n_ + column];
        found += part, size += std::abs(part);
      }
      return comparison->Add(found, product, (std::isfinite(size) ? size * 1e-6 : 0) + bound);
    }
    const double biased = product + (a_.bias == nullptr ? 0 : ToFloat(bias_[column]));
    double found = ToFloat(y_[row * n_ + column]);
    if (more_ != nullptr) {
      const int64_t unsplit = RowsOfFullPanels(a_.last_wave, rows);
      const double unit = std::is_same_v<T, __half> ? 1e-3 : 8e-3;  // each part is rounded
      for (int split = 1; split < splits && row >= unsplit; ++split) {
        const double part = ToFloat((*more_)[((split - 1) * a_.partial_rows + row - unsplit) * n_ + column]);
        bound += unit * (std::isfinite(part) && std::isfinite(found) ? std::abs(part) + std::abs(found) : 0);
        found += part;
      }
      // Parts may be beyond float16's numbers where their sum is not.
      if (!std::isfinite(found) && std::abs(product) > 1e4) return;
    }
    // An activation is no steeper than 1.13.
    comparison->Add(found, Activated(a_.activation, biased),
                    bound * 1.2 + std::abs(Activated(a_.activation, biased)) * (kIsInteger<X> ? 0 : kUnit));
  }

  // Of the result's rounding, for large results.
  static constexpr double kUnit = sizeof(T) == 4 ? 0 : std::is_same_v<T, __half> ? 1e-3 : 8e-3;

  Random& random_;
  int64_t m_, n_, k_, stage_k_ = 1;
  DeviceArray<T> x_;
  DeviceArray<float> smooth_, scale_;
  DeviceArray<T> bias_, y_;
  DeviceArray<X> weight_, quantized_;
  DeviceArray<float> row_scales_, weight_scales_;
  DeviceArray<int32_t> row_count_, compensation_;
  const DeviceArray<T>* more_ = nullptr;
  bool keeps_rest_ = true;  // what is behind *row_count rows
  QuantizeRowsArguments<T, X> rows_ = {};
  GemmArguments<Elements> a_ = {};
  GemmForm form_;
  bool packed_;
};

template <class Elements>
void TestTiles(int count) {
  Random random(emulator::Seed());
  gemm_mma::ForTiles(kIsInteger<typename Elements::X> ? Math::kInt8 : Math::kFp8, [&](const Tile& tile) {
    double worst = 0;
    for (int i = 0; i < count; ++i) {
      const Sizes sizes = Draw(random, tile.m * 3 / 2, tile.n * 3 / 2, 16);
      worst = std::max(worst, Problem<Elements>(random, sizes).RunTile(tile));
    }
    std::printf("%d x %d: %d problems, the worst error is %.2f of what is allowed\n", tile.m, tile.n, count, worst);
  });
}

TEST(EmulatedInt8Gemm, Float16) { TestTiles<Int8Elements<__half>>(10); }
TEST(EmulatedInt8Gemm, Bfloat16) { TestTiles<Int8Elements<__nv_bfloat16>>(5); }
TEST(EmulatedInt8Gemm, Float32) { TestTiles<Int8Elements<float>>(8); }
TEST(EmulatedFp8Gemm, Float16) { TestTiles<Fp8Elements<__half>>(10); }
TEST(EmulatedFp8Gemm, Bfloat16) { TestTiles<Fp8Elements<__nv_bfloat16>>(5); }
TEST(EmulatedFp8Gemm, Float32) { TestTiles<Fp8Elements<float>>(8); }

template <template <class> class E>
void TestAnyShape() {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < 8; ++i) {
    const int64_t multiple = random.Between(1, 9);
    worst = std::max(worst, Problem<E<__half>>(random, Draw(random, 70, 90, multiple)).RunSimt());
    worst = std::max(worst, Problem<E<float>>(random, Draw(random, 70, 90, multiple)).RunSimt());
    worst = std::max(worst, Problem<E<__nv_bfloat16>>(random, Draw(random, 200, 200, 1)).RunSimt());
  }
  std::printf("24 problems, the worst error is %.2f of what is allowed\n", worst);
}

TEST(EmulatedInt8Gemm, AnyShape) { TestAnyShape<Int8Elements>(); }
TEST(EmulatedFp8Gemm, AnyShape) { TestAnyShape<Fp8Elements>(); }

// A cluster that the tile takes; `multiple`: of the rows of weight that a block loads.
GemmTile DrawTile(Random& random, const GemmBlock& block, int multiple) {
  GemmTile tile = {block};
  do {
    tile.cluster_m = static_cast<int>(random.Between(1, 3)), tile.cluster_n = static_cast<int>(random.Between(1, 2));
  } while (block.n % (multiple * tile.cluster_m) != 0);
  return tile;
}

template <class Elements>
void TestHopper(int count) {
  Random random(emulator::Seed());
  const gemm_sm90::Blocks& blocks = gemm_sm90::BlocksOf<typename Elements::X>();
  const auto test = [&](const gemm_sm90::BlockList& list, int multiple_of_n, int multiple_of_slice, GemmForm form) {
    for (const GemmBlock& block : list) {
      double worst = 0;
      for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
        const GemmTile tile = DrawTile(random, block, multiple_of_slice);
        const Sizes sizes = Draw(random, block.m * tile.cluster_m * random.Between(1, 3),
                                 block.n * tile.cluster_n * random.Between(1, 2), 16, multiple_of_n);
        worst = std::max(worst, Problem<Elements>(random, sizes, true).RunHopper(tile, form));
      }
      std::printf("%d x %d%s: %d problems, the worst error is %.2f of what is allowed\n", block.m, block.n,
                  block.promotes ? " promoting" : "", count, worst);
    }
  };
  test(blocks.persistent, 32, 32, GemmForm::kComplete);
  test(blocks.persistent, 32, 32, GemmForm::kRounded);
  test(blocks.one_tile, 8, 8, GemmForm::kComplete);
  test(blocks.split_k, 8, 8, GemmForm::kPartialSums);
}

TEST(EmulatedInt8Gemm, HopperFloat16) { TestHopper<Int8Elements<__half>>(6); }
TEST(EmulatedInt8Gemm, HopperBfloat16) { TestHopper<Int8Elements<__nv_bfloat16>>(3); }
TEST(EmulatedFp8Gemm, HopperFloat16) { TestHopper<Fp8Elements<__half>>(6); }
TEST(EmulatedFp8Gemm, HopperBfloat16) { TestHopper<Fp8Elements<__nv_bfloat16>>(3); }

// What sums of 14 bits cost at k = 4096, beside what rounding to 8 bits does, each as |y - y'| / |y|. The emulator sums
// as tensor cores were found to.
TEST(EmulatedFp8Gemm, ShortSums) {
  Random random(emulator::Seed());
  constexpr int64_t kM = 64, kN = 64, kK = 4096;
  DeviceArray<float> x(kM * kK), weight(kN * kK), row_scales(kM), weight_scales(kN);
  DeviceArray<__nv_fp8_e4m3> rows(kM * kK), columns(kN * kK);
  DeviceArray<__half> y(kM * kN);
  random.Fill(x, 1), random.Fill(weight, 1 / std::sqrt(static_cast<double>(kK)));
  const Device device = {0, 90, 4, 227 << 10, 228 << 10};
  const auto quantize = [&](const DeviceArray<float>& from, const DeviceArray<__nv_fp8_e4m3>& to,
                            const DeviceArray<float>& scales) {
    QuantizeRowsArguments<float, __nv_fp8_e4m3> a = {};
    a.x = from.data(), a.quantized = to.data(), a.row_scales = scales.data();
    a.rows = static_cast<int64_t>(scales.size()), a.columns = kK;
    ASSERT_EQ(QuantizeRows(a, device, nullptr), cudaSuccess);
  };
  emulator::TheSettings().compute_capability = 90, emulator::TheSettings().shared_bytes = device.shared_bytes;
  quantize(x, rows, row_scales), quantize(weight, columns, weight_scales);
  GemmArguments<Fp8Elements<__half>> a = {};
  a.x = rows.data(), a.weight = columns.data(), a.y = y.data(), a.m = kM, a.n = kN, a.k = kK;
  a.row_scales = row_scales.data(), a.weight_scales = weight_scales.data();
  double size = 0, rounding = 0, errors[2] = {};
  for (const bool promotes : {false, true}) {
    for (const GemmBlock& block : gemm_sm90::kOneTileBlocksFp8) {
      if (block.promotes != promotes || block.m != 64) continue;
      ASSERT_EQ(GemmSm90Elementwise({block}, a, device, nullptr), cudaSuccess) << emulator::TakeFault();
    }
    size = rounding = 0;
    for (int64_t i = 0; i < kM * kN; ++i) {
      double exact = 0, rounded = 0;
      for (int64_t k = 0; k < kK; ++k) {
        exact += static_cast<double>(x[i / kN * kK + k]) * weight[i % kN * kK + k];
        rounded += static_cast<double>(ToFloat(rows[i / kN * kK + k])) * ToFloat(columns[i % kN * kK + k]);
      }
      rounded *= static_cast<double>(row_scales[i / kN]) * weight_scales[i % kN];
      size += exact * exact, rounding += (rounded - exact) * (rounded - exact);
      errors[promotes] += std::pow(ToFloat(y[i]) - rounded, 2);
    }
  }
  const double of_rounding = std::sqrt(rounding / size), of_sums = std::sqrt(errors[0] / size),
               promoted = std::sqrt(errors[1] / size);
  std::printf("rounding to 8 bits %.2g, sums of 14 bits %.2g, promoted %.2g\n", of_rounding, of_sums, promoted);
  EXPECT_LT(promoted, of_sums / 3);
  EXPECT_LT(of_sums, of_rounding / 10);  // why no tile has to promote: kLongestUnpromotedK
}

// Sums of the largest integers, of a long k: all of 32 bits.
TEST(EmulatedInt8Gemm, LongestSums) {
  constexpr int64_t kK = kMaxInt8K / 16 * 16;
  DeviceArray<int8_t> x(kK), weight(2 * kK);
  DeviceArray<float> scales(3), y(2);
  std::fill(x.begin(), x.end(), static_cast<int8_t>(-128));
  std::fill(weight.begin(), weight.begin() + kK, static_cast<int8_t>(-128));
  std::fill(weight.begin() + kK, weight.end(), static_cast<int8_t>(127));
  std::fill(scales.begin(), scales.end(), 1.0f);
  GemmArguments<Int8Elements<float>> a = {};
  a.x = x.data(), a.weight = weight.data(), a.y = y.data(), a.row_scales = a.weight_scales = scales.data();
  a.m = 1, a.n = 2, a.k = kK;
  GemmTile tile;
  tile.block = gemm_mma::BlockOn(Math::kInt8, gemm_mma::kHalfTiles[5], kDevices[0].shared_bytes);
  emulator::TheSettings().compute_capability = kDevices[0].compute_capability;
  emulator::TheSettings().shared_bytes = kDevices[0].shared_bytes;
  ASSERT_EQ(GemmMmaInt8(GemmForm::kComplete, tile, a, kDevices[0], nullptr), cudaSuccess) << emulator::TakeFault();
  EXPECT_EQ(y[0], static_cast<float>(kK * 128 * 128));
  EXPECT_EQ(y[1], static_cast<float>(-kK * 128 * 127));
}

}  // namespace
}  // namespace bertfuse::kernels
