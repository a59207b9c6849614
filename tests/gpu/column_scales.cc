// Products of 16-bit operands with a scale for each column, on the GPU: every persistent block of Hopper against sums
// in float64 of random elements, and the times with and without scales. No op has such a scale: the kernels' own
// arguments are used.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/sm90/gemm.h"

namespace bertfuse::kernels {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T Rounded(float x) {
  if constexpr (std::is_same_v<T, __half>) return __float2half(x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16(x);
  if constexpr (std::is_same_v<T, float>) return x;
}
float Wide(float x) { return x; }
float Wide(__half x) { return __half2float(x); }
float Wide(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
struct Array {
  std::vector<T> host;
  T* device = nullptr;
  Array(std::mt19937* random, int64_t count, double deviation) : host(count) {
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    for (T& value : host) value = Rounded<T>(normal(*random));
    Check(cudaMalloc(reinterpret_cast<void**>(&device), count * sizeof(T)), "cudaMalloc");
    Check(cudaMemcpy(device, host.data(), count * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Array() { cudaFree(device); }
  double operator[](int64_t i) const { return Wide(host[i]); }
};

double Gelu(double x) { return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5))); }

template <class Launch>
double Microseconds(Launch&& launch) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  float best = INFINITY;
  for (int i = 0; i < 20; ++i) {
    cudaEventRecord(begin);
    for (int j = 0; j < 10; ++j) Check(launch(), "launch");
    cudaEventRecord(end);
    Check(cudaEventSynchronize(end), "run");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::min(best, ms);
  }
  return best * 100;
}

// Returns the largest error over what is allowed: half a last bit of y, and of its operands' sums.
template <class T>
double Test(std::mt19937* random, const GemmBlock& block, int cluster_m, const Device& device, int64_t m, int64_t n,
            int64_t k) {
  const char* const type = std::is_same_v<T, __half> ? "float16" : "bfloat16";
  Array<T> x(random, m * k, 1), weight(random, n * k, 1 / std::sqrt(k)), bias(random, n, 0.5), scale(random, n, 1);
  Array<float> float_scale(random, n, 1);
  Array<T> y(random, m * n, 0);
  double worst_of_all = 0;
  for (int kind = 0; kind < 3; ++kind) {  // float32, of y's type, and with GELU
    GemmArguments<Elements<T>> a = {};
    a.x = x.device, a.weight = weight.device, a.bias = bias.device, a.y = y.device, a.m = m, a.n = n, a.k = k;
    if (kind == 0) a.weight_scales = float_scale.device;
    if (kind > 0) a.column_scales = scale.device;
    if (kind == 2) a.activation = Activation::kGeluErf;
    const GemmTile tile = {block, cluster_m};
    const auto launch = [&] { return GemmSm90Elementwise(tile, a, device, nullptr); };
    Check(cudaMemset(y.device, 0xff, m * n * sizeof(T)), "cudaMemset");
    Check(launch(), "launch");
    Check(cudaMemcpy(y.host.data(), y.device, m * n * sizeof(T), cudaMemcpyDeviceToHost), "run");
    double worst = 0;
    const double last_bit = std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8;
    for (int i = 0; i < 4000; ++i) {
      const int64_t row = i % 7 == 0 ? m - 1 : (*random)() % m, column = i % 5 == 0 ? n - 1 - i % 32 : (*random)() % n;
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += x[row * k + j] * weight[column * k + j];
      sum = sum * (kind == 0 ? float_scale[column] : scale[column]) + bias[column];
      const double expected = kind == 2 ? Gelu(sum) : sum, error = std::abs(y[row * n + column] - expected);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error / (1.1 * last_bit * std::abs(expected) + 2e-5));
    }
    const double scaled = Microseconds(launch);
    a.column_scales = nullptr, a.weight_scales = nullptr;
    std::printf(
        "%s %lldx%lldx%lld, %dx%d cluster %dx1, %s: worst error %.2f of what is allowed; %.1f us, unscaled %.1f\n",
        type, static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), block.m, block.n,
        cluster_m,
        kind == 0   ? "scales of float32"
        : kind == 1 ? "scales of its type"
                    : "scales, GELU",
        worst, scaled, Microseconds(launch));
    worst_of_all = std::max(worst_of_all, worst);
  }
  return worst_of_all;
}

}  // namespace
}  // namespace bertfuse::kernels

int main() {
  using namespace bertfuse::kernels;
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const Device* const device = GetDevice(0);
  if (device == nullptr || device->compute_capability != 90) {
    std::printf("no GPU of compute capability 9.0\n");
    return 1;
  }
  double worst = 0;
  for (const GemmBlock& block : gemm_sm90::kPersistentBlocks) {
    for (int cluster : {1, 2}) {
      worst = std::max(worst, Test<__half>(&random, block, cluster, *device, 8192, 3072, 768));
      worst = std::max(worst, Test<__nv_bfloat16>(&random, block, cluster, *device, 3001, 1056, 712));
    }
  }
  std::printf("%s: the worst error is %.2f of what is allowed\n", worst <= 1 ? "passed" : "FAILED", worst);
  return worst <= 1 ? 0 : 1;
}
