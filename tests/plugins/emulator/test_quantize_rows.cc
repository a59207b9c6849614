// Results in 8 bits by one scale, in the emulator: what GELU's products and attention are compared with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "emulator/random_data.h"
#include "emulator/rounded_rows.h"
#include "kernels/quantize_rows.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

// A number times `factor`; of integers plus `zero`, where NaN becomes the least of them.
template <class X>
double Expected(float y, float factor, int zero) {
  const float scaled = y * factor;
  if (!kIsInteger<X>) return Rounded<X>(scaled, 0);
  return std::isnan(scaled) ? -128 : std::clamp(std::nearbyint(static_cast<double>(scaled)) + zero, -128.0, 127.0);
}

template <class T, class X>
void TestByInverse() {
  Random random(emulator::Seed());
  const Device device = {0, 90, 4, 227 << 10};
  emulator::TheSettings().compute_capability = 90, emulator::TheSettings().shared_bytes = device.shared_bytes;
  for (const int64_t multiple : {8, 8, 4, 4, 1, 1}) {  // how many elements are read at a time, and short rows and long
    for (const int64_t most : {100, 6000}) {
      const int64_t rows = random.Between(1, 9), columns = random.Between(1, most / multiple) * multiple;
      DeviceArray<T> y(rows * columns);
      DeviceArray<X> found(rows * columns);
      DeviceArray<float> smooth(columns), scale(1), scales(rows);
      DeviceArray<int8_t> zero(1);
      random.Fill(y, 1), random.Fill(smooth, 1);
      const float odd[] = {NAN, INFINITY, -INFINITY, 6e4f, 1e-7f, 0};
      for (float value : odd) y[random.Between(0, rows * columns - 1)] = FromFloat<T>(value);
      scale[0] = static_cast<float>(random.Between(1, 100)) * 1e-3f;
      zero[0] = static_cast<int8_t>(random.Between(-128, 127));
      const float* const factors = random.OneIn(3) ? nullptr : smooth.data();
      QuantizeRowsArguments<T, X> a = {y.data(), factors, scale.data(), found.data(), scales.data(),
                                       rows,     columns, {},           true};
      if (kIsInteger<X> && random.OneIn(2)) a.zero = zero.data();
      ASSERT_EQ(QuantizeRows(a, device, nullptr), cudaSuccess) << emulator::TakeFault();
      const float inverse = 1.0f / scale[0];
      for (int64_t i = 0; i < rows * columns; ++i) {
        const float factor = factors == nullptr ? inverse : factors[i % columns] * inverse;
        const double wanted = Expected<X>(ToFloat(y[i]), factor, a.zero == nullptr ? 0 : *a.zero);
        const float is = ToFloat(found[i]);
        ASSERT_TRUE(is == wanted || (std::isnan(is) && std::isnan(wanted)))
            << rows << " x " << columns << ", " << i << ": " << is << ", expected " << wanted << " of " << ToFloat(y[i])
            << " times " << factor;
      }
      for (const float each : scales) ASSERT_EQ(each, scale[0]);
    }
  }
}

TEST(EmulatedQuantizeRows, ByInverseInt8) {
  TestByInverse<__half, int8_t>();
  TestByInverse<__nv_bfloat16, int8_t>();
  TestByInverse<float, int8_t>();
}
TEST(EmulatedQuantizeRows, ByInverseFp8) {
  TestByInverse<__half, __nv_fp8_e4m3>();
  TestByInverse<__nv_bfloat16, __nv_fp8_e4m3>();
  TestByInverse<float, __nv_fp8_e4m3>();
}

}  // namespace
}  // namespace bertfuse::kernels
