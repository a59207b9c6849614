// Hopper's attention that is causal but for a prefix of keys, on the GPU: every tile, padded and packed, against
// float64 for random queries, and the times beside causal attention and attention without a window.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"

namespace bertfuse::kernels {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

float Wide(__half x) { return __half2float(x); }
float Wide(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
T Rounded(float x) {
  if constexpr (std::is_same_v<T, __half>) return __float2half(x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16(x);
}

template <class T>
struct Array {
  std::vector<T> host;
  T* device = nullptr;
  explicit Array(std::vector<T> values) : host(std::move(values)) {
    Check(cudaMalloc(reinterpret_cast<void**>(&device), host.size() * sizeof(T)), "cudaMalloc");
    Check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Array() { cudaFree(device); }
};

template <class T>
std::vector<T> RandomValues(std::mt19937* random, int64_t count, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<T> values(count);
  for (T& value : values) value = Rounded<T>(normal(*random));
  return values;
}

template <class Launch>
double Microseconds(Launch&& launch) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  float best = std::numeric_limits<float>::infinity();
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

// Returns the largest error over what is allowed.
template <class T>
double Test(std::mt19937* random, const AttentionTile& tile, bool packed, int64_t head_size, int64_t batch,
            int64_t sequence, int64_t heads, int64_t prefix, const Device& device) {
  const int64_t hidden = heads * head_size, rows = batch * sequence;
  Array<T> qkv(RandomValues<T>(random, rows * 3 * hidden, 1)), bias(RandomValues<T>(random, 3 * hidden, 0.3f));
  Array<T> y(std::vector<T>(rows * hidden));
  std::vector<int32_t> starts(batch + 1);
  for (int64_t i = 0; i <= batch; ++i) starts[i] = static_cast<int32_t>(i * sequence);
  Array<int32_t> offsets(starts);
  AttentionArguments<T> a = {};
  a.qkv = qkv.device, a.bias = bias.device, a.y = y.device;
  a.batch = packed ? 1 : batch, a.sequence = packed ? rows : sequence, a.heads = heads, a.head_size = head_size;
  a.scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  if (packed) a.packed = {offsets.device, static_cast<int>(batch), static_cast<int>(rows)};
  a.variant.window_right = 0, a.variant.prefix = prefix;
  const auto launch = [&] { return AttentionSm90(a, tile, device, nullptr); };
  Check(cudaMemset(y.device, 0xff, rows * hidden * sizeof(T)), "cudaMemset");
  Check(launch(), "launch");
  Check(cudaMemcpy(y.host.data(), y.device, rows * hidden * sizeof(T), cudaMemcpyDeviceToHost), "run");
  double worst = 0;
  const double last_bit = std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8;
  for (int i = 0; i < 200; ++i) {
    const int64_t text = (*random)() % batch, head = (*random)() % heads;
    const int64_t query = i % 4 == 0   ? std::clamp<int64_t>(prefix - 2 + i / 4 % 4, 0, sequence - 1)
                          : i % 4 == 1 ? sequence - 1 - i % 64
                                       : (*random)() % sequence;
    const auto at = [&](int64_t row, int64_t part, int64_t column) {
      const int64_t own = part * hidden + head * head_size + column;
      return double{Wide(qkv.host[(text * sequence + row) * 3 * hidden + own])} + Wide(bias.host[own]);
    };
    std::vector<double> weight(std::min(sequence, std::max(query + 1, prefix))), out(head_size);
    double highest = -std::numeric_limits<double>::infinity(), total = 0;
    for (size_t key = 0; key < weight.size(); ++key) {
      for (int64_t j = 0; j < head_size; ++j) weight[key] += at(query, 0, j) * at(key, 1, j) * a.scale;
      highest = std::max(highest, weight[key]);
    }
    for (double& w : weight) total += w = std::exp(w - highest);
    for (size_t key = 0; key < weight.size(); ++key) {
      for (int64_t j = 0; j < head_size; ++j) out[j] += weight[key] / total * at(key, 2, j);
    }
    for (int64_t j = 0; j < head_size; ++j) {
      const double error = std::abs(Wide(y.host[(text * sequence + query) * hidden + head * head_size + j]) - out[j]);
      // Queries with their bias and weights are rounded, too.
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity()
                                : std::max(worst, error / (last_bit * (4 + 2 * std::abs(out[j]))));
    }
  }
  const double with_prefix = Microseconds(launch);
  a.variant.prefix = 0;
  const double causal = Microseconds(launch);
  a.variant.window_right = -1;
  std::printf(
      "%s %lldx%lld, %lld heads of %lld%s, %dx%d: prefix of %lld: worst error %.2f of what is allowed; %.1f us, "
      "causal %.1f, without a window %.1f\n",
      std::is_same_v<T, __half> ? "float16" : "bfloat16", static_cast<long long>(batch),
      static_cast<long long>(sequence), static_cast<long long>(heads), static_cast<long long>(head_size),
      packed ? ", packed" : "", tile.queries, tile.keys, static_cast<long long>(prefix), worst, with_prefix, causal,
      Microseconds(launch));
  return worst;
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
  // One key more or less shows where queries see few.
  constexpr int64_t kPrefixes[] = {13, 64, 65, 5, 130, 700};
  double worst = 0;
  int tests = 0;
  for (const AttentionTile& tile : attention_sm90::kAttentionTiles) {
    for (bool packed : {false, true}) {
      for (int64_t head_size : {32, 64, 128}) {
        if (!attention_sm90::HasAttentionTile(tile, head_size, packed)) continue;
        const int64_t prefix = kPrefixes[tests++ % std::size(kPrefixes)];
        worst = std::max(worst, Test<__half>(&random, tile, packed, head_size, 4, 2048, 12, prefix, *device));
        worst =
            std::max(worst, Test<__nv_bfloat16>(&random, tile, packed, head_size, 3, 333, 5, prefix % 333, *device));
      }
    }
  }
  std::printf("%s: the worst error is %.2f of what is allowed\n", worst <= 1 ? "passed" : "FAILED", worst);
  return worst <= 1 ? 0 : 1;
}
