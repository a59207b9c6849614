// A product and the norm's kernel after it, as FusedGemmLayerNorm and FusedGemmResidualNorm run on GPUs without wgmma,
// in the emulator.
#include <gtest/gtest.h>

#include <vector>

#include "emulator/random_data.h"
#include "kernels/layer_norm.h"
#include "kernels/mma/gemm.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

constexpr Device kDevice = {0, 80, 4, 163 << 10};
constexpr float kEpsilon = 1e-5f;

// What is normalised is an output, too, and the rows are packed or not; of_both: the product has its RMSNorm before.
struct Norm {
  bool total, rms, biased, shifted, packed, of_both;
};

double MeanSquare(const std::vector<double>& row) {
  double sum = 0;
  for (double value : row) sum += value * value / static_cast<double>(row.size());
  return sum;
}

// y = Norm(x weight^T + bias + residual) by every kernel of LayerNorm that takes the form.
template <class T>
double Worst(GemmForm form, int splits, int64_t m, int64_t n, int64_t k, const Norm& of, Random& random) {
  DeviceArray<T> x(m * k), weight(n * k), bias(n), residual(m * n), gamma(n), beta(n), product_gamma(n);
  DeviceArray<int32_t> row_count(1);
  row_count[0] = static_cast<int32_t>(of.packed ? random.Between(0, m) : m);
  const int64_t rows = row_count[0];
  DeviceArray<float> partials(form == GemmForm::kPartialSums ? splits * m * n : 0);
  random.Fill(x, 1), random.Fill(weight, 1 / std::sqrt(static_cast<double>(k)));
  for (const auto* vector : {&bias, &residual, &beta}) random.Fill(*vector, 1);
  for (auto* factors : {&gamma, &product_gamma}) {  // near 1: a factor of 3 multiplies the product's rounding, too
    random.Fill(*factors, 0.2);
    for (T& factor : *factors) factor = FromFloat<T>(1 + ToFloat(factor));
  }
  GemmArguments<Elements<T>> a = {};
  a.x = x.data(), a.weight = weight.data(), a.float_partials = partials.data();
  a.m = m, a.n = n, a.k = k;
  GemmTile tile;
  tile.block = gemm_mma::BlockOn(gemm_mma::Math::kHalf, gemm_mma::kHalfTiles[5], kDevice.shared_bytes),
  tile.splits = splits;
  LayerNormArguments<T> norm = {};
  norm.gamma = gamma.data(), norm.beta = beta.data();
  if (!of.shifted) norm.beta = nullptr;
  if (of.of_both) norm.product_gamma = product_gamma.data();
  if (of.packed) norm.packed = a.packed = {row_count.data(), random.Between(1, m)};
  norm.norm = of.rms ? NormKind::kRmsNorm : NormKind::kLayerNorm;
  norm.rows = m, norm.columns = n, norm.epsilon = kEpsilon;
  norm.gamma_offset = random.OneIn(2) ? 0.0f : 0.5f;
  if (form == GemmForm::kPartialSums) norm.float_partials = partials.data(), norm.splits = splits;
  const int more = form == GemmForm::kRounded && n <= kMaxSplitColumns ? random.Between(0, kMaxMorePartials) : 0;
  norm.last_wave = {16, 1, static_cast<int>(random.Between(2, 4))};
  norm.partial_rows = more > 0 ? MaxRowsLeft(norm.last_wave, m) : 0;
  const int64_t unsplit = more > 0 ? RowsOfFullPanels(norm.last_wave, rows) : rows;
  DeviceArray<T> more_partials(more * norm.partial_rows * n);
  random.Fill(more_partials, 0.5);
  if (more > 0) norm.partials = more_partials.data(), norm.more_partials = more;
  const char* op = of.total ? "FusedGemmResidualNorm" : "FusedGemmLayerNorm";
  emulator::Comparison comparison(emulator::ToleranceOf(op, emulator::kDtype<T>));
  for (const LayerNormKernel kernel :
       {LayerNormKernel::kBlockPerRow, LayerNormKernel::kWarpPerRow, LayerNormKernel::kPersistentWarps,
        LayerNormKernel::kPersistentWarpsFewPartials}) {
    DeviceArray<T> y(m * n), total(of.total ? m * n : 0);
    a.y = norm.y = y.data();
    if (of.total) norm.total = total.data();
    const bool rounded = form == GemmForm::kRounded;
    if (rounded) norm.product = y.data();
    // The product left the sum where it is an output: nothing is added to it.
    const bool stored = of.total && !of.of_both && rounded && more == 0 && random.OneIn(3);
    norm.bias = of.biased && !stored ? bias.data() : nullptr;
    norm.residual = stored ? nullptr : residual.data();
    if (stored) norm.product = a.y = total.data();
    if (!LayerNormSupports(kernel, {n, sizeof(T), LayerNormVector(norm), rounded, more, false})) continue;
    emulator::TheSettings().seed = random.Seed();
    emulator::TheSettings().shared_bytes = kDevice.shared_bytes;
    EXPECT_EQ(GemmMma(form, tile, a, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    EXPECT_EQ(LayerNorm(kernel, norm, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    std::vector<double> row(n);
    for (int64_t i = 0; i < rows; ++i) {
      double mean = 0, variance = 0;
      for (int64_t j = 0; j < n; ++j) {
        row[j] = norm.bias != nullptr ? static_cast<double>(ToFloat(bias[j])) : 0.0;
        for (int64_t e = 0; e < k; ++e) row[j] += double{ToFloat(x[i * k + e])} * ToFloat(weight[j * k + e]);
        for (int part = 0; part < more && i >= unsplit; ++part) {
          row[j] += ToFloat(more_partials[(part * norm.partial_rows + i - unsplit) * n + j]);
        }
      }
      const double inverse = 1 / std::sqrt(MeanSquare(row) + kEpsilon);
      for (int64_t j = 0; j < n; ++j) {
        if (of.of_both) row[j] *= inverse * (ToFloat(product_gamma[j]) + norm.gamma_offset);
        if (!stored) row[j] += ToFloat(residual[i * n + j]);
        mean += of.rms ? 0 : row[j] / static_cast<double>(n);
        if (of.total) comparison.Add(ToFloat(total[i * n + j]), row[j]);
      }
      for (double value : row) variance += (value - mean) * (value - mean) / static_cast<double>(n);
      for (int64_t j = 0; j < n; ++j) {
        const double normal = (row[j] - mean) / std::sqrt(variance + kEpsilon);
        const double factor = ToFloat(gamma[j]) + (of.rms ? norm.gamma_offset : 0.0f);
        comparison.Add(ToFloat(y[i * n + j]), normal * factor + (of.shifted ? ToFloat(beta[j]) : 0.0f));
      }
    }
  }
  return comparison.worst();
}

template <class T>
void TestForms(bool total) {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < (total ? 12 : 4); ++i) {
    const bool rms = total && i % 3 != 0, shifted = !rms && (!total || random.OneIn(2));
    const Norm norm = {total, rms, !total || random.OneIn(2), shifted, random.OneIn(2), rms && i % 3 == 2};
    const int64_t m = random.Between(1, 90), n = random.Between(3, 40) * 8, k = random.Between(8, 30) * 8;
    SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k);
    const auto splits = static_cast<int>(random.Between(1, 2));
    for (const double share : {Worst<T>(GemmForm::kRounded, 1, m, n, k, norm, random),
                               Worst<T>(GemmForm::kPartialSums, splits, m, n, k, norm, random)}) {
      EXPECT_LE(share, 1);
      worst = std::max(worst, share);
    }
  }
  std::printf("the worst error is %.2f of what is allowed\n", worst);
}

TEST(EmulatedGemmLayerNorm, Float16) { TestForms<__half>(false); }
TEST(EmulatedGemmLayerNorm, Bfloat16) { TestForms<__nv_bfloat16>(false); }
TEST(EmulatedGemmResidualNorm, Float16) { TestForms<__half>(true); }
TEST(EmulatedGemmResidualNorm, Bfloat16) { TestForms<__nv_bfloat16>(true); }

}  // namespace
}  // namespace bertfuse::kernels
