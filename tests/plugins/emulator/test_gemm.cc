// Matrix products on tensor cores, in the emulator: every tile with random problems, against sums in float64.
#include <gtest/gtest.h>

#include <vector>

#include "emulator/gemm_problem.h"
#include "emulator/random_data.h"
#include "kernels/mma/gemm.h"
#include "kernels/ptx/async_copy.cuh"  // BERTFUSE_EMULATED_CAPABILITY: without it half of the tests would be none

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;
using gemm_mma::Math;
using gemm_mma::Tile;

#if BERTFUSE_EMULATED_CAPABILITY == 75
constexpr Device kDevices[] = {{0, 75, 5, 64 << 10}, {1, 75, 3, 64 << 10}};
#else
constexpr Device kDevices[] = {{0, 80, 5, 163 << 10}, {1, 120, 3, 99 << 10}};
#endif

// A random problem, its launch, and its comparison.
template <class T>
class Problem {
 public:
  Problem(const Tile& tile, Math math, Random& random)
      : random_(random),
        device_(DeviceFor(tile, math, random)),
        m_(random.Between(1, tile.m * 2)),
        n_(random.Between(1, tile.n * 2)),
        k_(random.Between(1, random.OneIn(3) ? 100 : 12) * (16 / static_cast<int>(sizeof(T)))),
        x_(m_ * k_),
        weight_(n_ * k_),
        bias_(n_, random.Between(0, 3)),
        y_(m_ * n_, random.Between(0, 3) / 2 * (16 / sizeof(T)) + random.Between(0, 3) / 3),
        row_count_(1) {
    if (random.OneIn(2)) n_ = n_ / 8 * 8 + 8 > 2 * tile.n ? tile.n : n_ / 8 * 8;
    if (n_ == 0) n_ = 8 <= static_cast<int64_t>(bias_.size()) ? 8 : 1;
    tile_.block = gemm_mma::BlockOn(math, tile, device_.shared_bytes, random.OneIn(2) ? 1 : INT_MAX);
    if (random.OneIn(2))
      tile_.block.stages = static_cast<int>(random.Between(gemm_mma::MinStages(tile), tile_.block.stages));
    random.Fill(x_, 1), random.Fill(weight_, 1 / std::sqrt(static_cast<double>(k_))), random.Fill(bias_, 0.5);
    for (int64_t left = random.OneIn(4) ? random.Between(1, 3) : 0; left > 0; --left) {
      x_[random.Between(0, m_ * k_ - 1)] = FromFloat<T>(random.OneIn(2) ? INFINITY : -INFINITY);
    }
    a_.x = x_.data(), a_.weight = weight_.data(), a_.y = y_.data();
    if (!random.OneIn(4)) a_.bias = bias_.data();
    a_.m = m_, a_.n = n_, a_.k = k_;
    a_.activation = static_cast<Activation>(random.Between(0, 2));
    a_.allow_tf32 = math == Math::kTf32;
    a_.weights_are_constant = random.OneIn(2), a_.last_rows_first = random.OneIn(2);
    form_ = random.OneIn(3) ? GemmForm::kPartialSums : random.OneIn(2) ? GemmForm::kRounded : GemmForm::kComplete;
    packed_ = random.OneIn(3);
    if (packed_) {
      row_count_[0] = static_cast<int32_t>(random.OneIn(5) ? random.Between(-2, m_ + 2) : random.Between(0, m_));
      a_.packed = {row_count_.data(), random.Between(0, m_)};
      if (random.OneIn(4)) {  // the first ones are another launch's
        a_.rows_before = random.Between(1, 1000);
        row_count_[0] = random.OneIn(8) ? INT32_MIN : static_cast<int32_t>(row_count_[0] + a_.rows_before);
      }
    }
    const int64_t stages = CeilDiv(k_ * static_cast<int64_t>(sizeof(T)), tile.row_bytes);
    tile_.splits =
        static_cast<int>(form_ == GemmForm::kPartialSums ? random.Between(1, std::min<int64_t>(stages, 5)) : 1);
    while ((tile_.splits - 1) * CeilDiv(stages, tile_.splits) >= stages) --tile_.splits;
  }

  // The worst error in parts of what is allowed.
  double Run(const emulator::Tolerance& tolerance) {
    SCOPED_TRACE(testing::Message() << m_ << " x " << n_ << " x " << k_ << " by " << tile_.block.m << " x "
                                    << tile_.block.n << ", " << tile_.block.stages
                                    << (tile_.block.long_stages ? " long stages, " : " stages, ") << tile_.splits
                                    << " splits, form " << static_cast<int>(form_) << ", activation "
                                    << static_cast<int>(a_.activation) << ", rows " << (packed_ ? row_count_[0] : -1)
                                    << " behind " << a_.rows_before);
    DeviceArray<float> partials(form_ == GemmForm::kPartialSums ? tile_.splits * m_ * n_ : 0, random_.Between(0, 1));
    a_.float_partials = partials.data();
    emulator::TheSettings().seed = random_.Seed();
    emulator::TheSettings().compute_capability = device_.compute_capability;
    emulator::TheSettings().shared_bytes = device_.shared_bytes;
    emulator::TheSettings().finds_races = random_.OneIn(2);
    emulator::TakeSharedAccesses();
    EXPECT_EQ(GemmMma(form_, tile_, a_, device_, nullptr), cudaSuccess) << emulator::TakeFault();
    emulator::TheSettings().finds_races = false;
    const emulator::SharedAccesses accesses = emulator::TakeSharedAccesses();
    EXPECT_EQ(accesses.conflicts, 0) << "of " << accesses.accesses << " accesses";
    emulator::Comparison comparison(tolerance);
    const int64_t rows = packed_ ? std::clamp<int64_t>(row_count_[0] - a_.rows_before, 0, m_) : m_;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < n_; ++column) Compare(row, column, partials, &comparison);
    }
    EXPECT_LE(comparison.worst(), 1);
    ExpectNothingBehind(rows, partials);
    return comparison.worst();
  }

 private:
  // Long stages of the largest tile do not fit every device.
  static Device DeviceFor(const Tile& tile, Math math, Random& random) {
    const Device& device = kDevices[random.Between(0, 1)];
    return gemm_mma::BlockOn(math, tile, device.shared_bytes).stages == 0 ? kDevices[0] : device;
  }

  void Compare(int64_t row, int64_t column, const DeviceArray<float>& partials, emulator::Comparison* comparison) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < k_; ++k) {
      const double product = static_cast<double>(ToFloat(x_[row * k_ + k])) * ToFloat(weight_[column * k_ + k]);
      sum += product, size += std::abs(product);
    }
    // Few products make no sum of variance 1, which the table is for; no activation is steeper than 1.2.
    const double bound = a_.allow_tf32 && std::isfinite(size) ? 1.2 * size / 1024 : 0;
    if (form_ == GemmForm::kPartialSums) {
      double found = 0;
      for (int split = 0; split < tile_.splits; ++split) found += partials[(split * m_ + row) * n_ + column];
      return comparison->Add(found, sum, bound);
    }
    const double biased = sum + (a_.bias == nullptr ? 0 : ToFloat(bias_[column]));
    comparison->Add(ToFloat(y_[row * n_ + column]), Activated(a_.activation, biased), bound);
  }

  // Rows behind the last one, and y where there are partial sums, are as they were: all bits set.
  void ExpectNothingBehind(int64_t rows, const DeviceArray<float>& partials) {
    const auto untouched = [](const auto* data, int64_t count) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(data);
      return std::all_of(bytes, bytes + count * sizeof(*data), [](unsigned char byte) { return byte == 0xff; });
    };
    const bool partial = form_ == GemmForm::kPartialSums;
    const int64_t first = partial ? 0 : rows * n_;
    EXPECT_TRUE(untouched(y_.data() + first, static_cast<int64_t>(y_.size()) - first));
    for (int split = 0; partial && split < tile_.splits; ++split) {
      EXPECT_TRUE(untouched(partials.data() + (split * m_ + rows) * n_, (m_ - rows) * n_));
    }
  }

  Random& random_;
  Device device_;
  int64_t m_, n_, k_;
  DeviceArray<T> x_, weight_, bias_, y_;
  DeviceArray<int32_t> row_count_;
  GemmTile tile_;
  GemmArguments<Elements<T>> a_ = {};
  GemmForm form_;
  bool packed_;
};

template <class T>
void TestTiles(Math math, const char* dtype, int count) {
  Random random(emulator::Seed());
  gemm_mma::ForTiles(math, [&](const Tile& tile) {
    const Device& device = kDevices[0];
    const bool runs = gemm_mma::RunsOn(device, tile.has_long_stages());
    if (!runs || gemm_mma::BlockOn(math, tile, device.shared_bytes).stages == 0) return;
    double worst = 0;
    for (int i = 0; i < count; ++i) {
      Problem<T> problem(tile, math, random);
      worst = std::max(worst, problem.Run(emulator::ToleranceOf("FusedGemmGelu", dtype)));
    }
    std::printf("%d x %d, stages of %d bytes: %d problems, the worst error is %.2f of what is allowed\n", tile.m,
                tile.n, tile.row_bytes, count, worst);
  });
}

TEST(EmulatedGemm, Float16) { TestTiles<__half>(Math::kHalf, "float16", 12); }
#if BERTFUSE_EMULATED_CAPABILITY >= 80
TEST(EmulatedGemm, Bfloat16) { TestTiles<__nv_bfloat16>(Math::kHalf, "bfloat16", 6); }
TEST(EmulatedGemm, Tf32) { TestTiles<float>(Math::kTf32, "tf32", 8); }
TEST(EmulatedGemm, ThreeTf32) { TestTiles<float>(Math::kThreeTf32, "float32", 8); }

// The error against float64 of three TF32 products and of float32 sums in order, for a long k.
TEST(EmulatedGemm, ThreeTf32IsAsExactAsFloat32) {
  Random random(emulator::Seed());
  constexpr int64_t kM = 16, kN = 32, kK = 3072;
  DeviceArray<float> x(kM * kK), weight(kN * kK), y(kM * kN);
  random.Fill(x, 1), random.Fill(weight, 1 / std::sqrt(static_cast<double>(kK)));
  double of_three = 0, of_one = 0, of_float = 0;
  for (const bool allow_tf32 : {false, true}) {
    GemmArguments<Elements<float>> a = {};
    a.x = x.data(), a.weight = weight.data(), a.y = y.data(), a.m = kM, a.n = kN, a.k = kK;
    a.allow_tf32 = allow_tf32;
    GemmTile tile;
    tile.block = gemm_mma::BlockOn(Math::kThreeTf32, {64, 64, 32, 32, 3}, kDevices[0].shared_bytes);
    emulator::TheSettings().shared_bytes = kDevices[0].shared_bytes;
    ASSERT_EQ(GemmMma(GemmForm::kComplete, tile, a, kDevices[0], nullptr), cudaSuccess) << emulator::TakeFault();
    for (int64_t row = 0; row < kM; ++row) {
      for (int64_t column = 0; column < kN; ++column) {
        double exact = 0;
        float plain = 0;
        for (int64_t k = 0; k < kK; ++k) {
          exact += static_cast<double>(x[row * kK + k]) * weight[column * kK + k];
          plain += x[row * kK + k] * weight[column * kK + k];
        }
        double& worst = allow_tf32 ? of_one : of_three;
        worst = std::max(worst, std::abs(y[row * kN + column] - exact));
        of_float = std::max(of_float, std::abs(plain - exact));
      }
    }
  }
  std::printf("largest errors at k = %d: 3xTF32 %.2g, float32 in order %.2g, TF32 %.2g\n", static_cast<int>(kK),
              of_three, of_float, of_one);
  EXPECT_LT(of_three, 2 * of_float);
  EXPECT_GT(of_one, 10 * of_float);
}
#endif

}  // namespace
}  // namespace bertfuse::kernels
