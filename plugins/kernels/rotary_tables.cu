#include "kernels/dependent_launch.cuh"
#include "kernels/elements.cuh"
#include "kernels/rotary_tables.h"

namespace bertfuse::kernels {
namespace {

constexpr int kPairs = 32, kPlaces = 8;  // of a block at a time

// A warp takes a place. Angles of the first 32 pairs are worked out while the kernel before this one ends: what it may
// still be doing is reading memory that these tables are given.
template <class T>
__global__ void __launch_bounds__(kPairs* kPlaces) RotaryTablesKernel(RotaryTablesArguments<T> a) {
  LaunchDependents();
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kPlaces + threadIdx.y;
  if (!a.frequencies_are_constant) WaitForDependencies();
  if (place >= a.places) return;
#pragma unroll 1
  for (int64_t pair = threadIdx.x; pair < a.pairs; pair += kPairs) {
    const float at = static_cast<float>(place), frequency = a.frequencies[pair];
    // A product of its own, not part of what reduces the angle to one turn; and sines that do that for large angles.
    const float angle = a.divides ? __fdiv_rn(at, frequency) : __fmul_rn(at, frequency);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    WaitForDependencies();
    a.cos[place * a.pairs + pair] = FromFloat<T>(cosine * a.scaling);
    a.sin[place * a.pairs + pair] = FromFloat<T>(sine * a.scaling);
  }
}

}  // namespace

template <class T>
cudaError_t RotaryTables(const RotaryTablesArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.places == 0 || a.pairs == 0) return cudaSuccess;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(CeilDiv(a.places, kPlaces)));
  config.block = dim3(kPairs, kPlaces);
  config.stream = stream;
  config.device = &device;
  return Launch(config, RotaryTablesKernel<T>, a);
}

#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  template cudaError_t RotaryTables(const RotaryTablesArguments<TYPE>&, const Device&, cudaStream_t);
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
