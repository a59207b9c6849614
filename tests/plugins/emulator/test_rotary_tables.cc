// RoPE's cosines and sines in the emulator, of any number of places and pairs, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "emulator/late_array.h"
#include "emulator/random_data.h"
#include "kernels/rotary_tables.h"

namespace bertfuse::kernels {
namespace {

using emulator::DeviceArray;
using emulator::Random;

template <class T>
void TestTables() {
  Random random(emulator::Seed());
  double worst = 0;
  constexpr int kProblems = 16;
  for (int i = 0; i < kProblems; ++i) {
    const bool is_long = random.OneIn(8);
    const int64_t places = is_long ? 8192 : random.Between(1, 200);
    const int64_t pairs = is_long ? 2 : random.OneIn(2) ? 32 << random.Between(0, 2) : random.Between(1, 140);
    const Device device = {0, random.OneIn(2) ? 90 : 80, static_cast<int>(random.Between(1, 8)), 163 << 10};
    emulator::LateArray<float> frequencies(pairs);
    DeviceArray<T> cos(places * pairs), sin(places * pairs);
    RotaryTablesArguments<T> a = {};
    a.frequencies = frequencies.array.data(), a.cos = cos.data(), a.sin = sin.data();
    a.places = places, a.pairs = pairs, a.divides = random.OneIn(2), a.frequencies_are_constant = random.OneIn(2);
    a.scaling = random.OneIn(2) ? 1.0f : static_cast<float>(random.Between(-2000, 2000)) / 1000;
    const double base = std::exp(static_cast<double>(random.Between(1, 14)));
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double frequency = std::pow(base, -static_cast<double>(pair) / static_cast<double>(pairs));
      frequencies.values()[pair] = static_cast<float>(a.divides ? 1 / frequency : frequency);
    }
    SCOPED_TRACE(testing::Message() << places << " places, " << pairs << " pairs" << (a.divides ? ", divided" : ""));
    emulator::TheSettings().seed = random.Seed();
    emulator::TheSettings().compute_capability = device.compute_capability;
    emulator::TheSettings().shared_bytes = device.shared_bytes;
    const bool overlaps = device.compute_capability >= 90;
    bool wrote_early = false;
    if (a.frequencies_are_constant || !overlaps) frequencies.Appear();
    emulator::TheSettings().dependencies_end = [&] {
      wrote_early = emulator::IsWritten(cos) || emulator::IsWritten(sin);
      frequencies.Appear();
    };
    const cudaError_t error = RotaryTables(a, device, nullptr);
    emulator::TheSettings().dependencies_end = nullptr;
    ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
    EXPECT_FALSE(wrote_early) << "tables were written before the kernels before had ended";
    emulator::Comparison comparison(emulator::ToleranceOf("RotaryTables", emulator::kDtype<T>));
    for (int64_t at = 0; at < places * pairs; ++at) {
      const auto place = static_cast<float>(at / pairs);
      const float frequency = frequencies.values()[at % pairs];
      const double angle = a.divides ? place / frequency : place * frequency;
      comparison.Add(ToFloat(cos[at]), std::cos(angle) * a.scaling);
      comparison.Add(ToFloat(sin[at]), std::sin(angle) * a.scaling);
    }
    EXPECT_LE(comparison.worst(), 1);
    worst = std::max(worst, comparison.worst());
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", kProblems, worst);
}

TEST(EmulatedRotaryTables, Float32) { TestTables<float>(); }
TEST(EmulatedRotaryTables, Float16) { TestTables<__half>(); }
TEST(EmulatedRotaryTables, Bfloat16) { TestTables<__nv_bfloat16>(); }
TEST(EmulatedRotaryTables, NoPlaces) {
  constexpr Device kDevice = {0, 90, 1, 163 << 10};
  EXPECT_EQ(RotaryTables(RotaryTablesArguments<float>{}, kDevice, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace bertfuse::kernels
