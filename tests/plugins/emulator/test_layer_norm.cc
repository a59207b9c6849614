// A product and the LayerNorm kernel after it, as FusedGemmLayerNorm runs on GPUs without wgmma, in the emulator.
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

// y = LayerNorm(x weight^T + bias + residual) by every kernel of LayerNorm that takes the form.
template <class T>
double Worst(GemmForm form, int splits, int64_t m, int64_t n, int64_t k, Random& random) {
  DeviceArray<T> x(m * k), weight(n * k), bias(n), residual(m * n), gamma(n), beta(n), y(m * n);
  DeviceArray<float> partials(form == GemmForm::kPartialSums ? splits * m * n : 0);
  random.Fill(x, 1), random.Fill(weight, 1 / std::sqrt(static_cast<double>(k)));
  for (const auto* vector : {&bias, &residual, &gamma, &beta}) random.Fill(*vector, 1);
  GemmArguments<Elements<T>> a = {};
  a.x = x.data(), a.weight = weight.data(), a.y = y.data(), a.float_partials = partials.data();
  a.m = m, a.n = n, a.k = k;
  GemmTile tile;
  tile.block = gemm_mma::BlockOn(gemm_mma::Math::kHalf, gemm_mma::kHalfTiles[5], kDevice.shared_bytes),
  tile.splits = splits;
  LayerNormArguments<T> norm = {};
  norm.bias = bias.data(), norm.residual = residual.data(), norm.gamma = gamma.data(), norm.beta = beta.data();
  norm.y = y.data(), norm.rows = m, norm.columns = n, norm.epsilon = kEpsilon;
  if (form == GemmForm::kPartialSums) norm.float_partials = partials.data(), norm.splits = splits;
  if (form == GemmForm::kRounded) norm.product = y.data(), norm.last_wave = {64, 1, 1};
  emulator::Comparison comparison(emulator::ToleranceOf("FusedGemmLayerNorm", emulator::kDtype<T>));
  for (const LayerNormKernel kernel :
       {LayerNormKernel::kBlockPerRow, LayerNormKernel::kWarpPerRow, LayerNormKernel::kPersistentWarps}) {
    const bool rounded = form == GemmForm::kRounded;
    if (!LayerNormSupports(kernel, {n, sizeof(T), LayerNormVector(norm), rounded, 0, false})) continue;
    emulator::TheSettings().seed = random.Seed();
    emulator::TheSettings().shared_bytes = kDevice.shared_bytes;
    EXPECT_EQ(GemmMma(form, tile, a, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    EXPECT_EQ(LayerNorm(kernel, norm, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    std::vector<double> row(n);
    for (int64_t i = 0; i < m; ++i) {
      double mean = 0, variance = 0;
      for (int64_t j = 0; j < n; ++j) {
        row[j] = static_cast<double>(ToFloat(bias[j])) + ToFloat(residual[i * n + j]);
        for (int64_t e = 0; e < k; ++e) row[j] += double{ToFloat(x[i * k + e])} * ToFloat(weight[j * k + e]);
        mean += row[j] / static_cast<double>(n);
      }
      for (double value : row) variance += (value - mean) * (value - mean) / static_cast<double>(n);
      for (int64_t j = 0; j < n; ++j) {
        const double normal = (row[j] - mean) / std::sqrt(variance + kEpsilon);
        comparison.Add(ToFloat(y[i * n + j]), normal * ToFloat(gamma[j]) + ToFloat(beta[j]));
      }
    }
  }
  return comparison.worst();
}

template <class T>
void TestForms() {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t m = random.Between(1, 90), n = random.Between(3, 40) * 8, k = random.Between(8, 30) * 8;
    SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k);
    const auto splits = static_cast<int>(random.Between(1, 2));
    for (const double share : {Worst<T>(GemmForm::kRounded, 1, m, n, k, random),
                               Worst<T>(GemmForm::kPartialSums, splits, m, n, k, random)}) {
      EXPECT_LE(share, 1);
      worst = std::max(worst, share);
    }
  }
  std::printf("4 problems, the worst error is %.2f of what is allowed\n", worst);
}

TEST(EmulatedGemmLayerNorm, Float16) { TestForms<__half>(); }
TEST(EmulatedGemmLayerNorm, Bfloat16) { TestForms<__nv_bfloat16>(); }

}  // namespace
}  // namespace bertfuse::kernels
