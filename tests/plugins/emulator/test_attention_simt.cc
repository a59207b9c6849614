// Attention for any shape and type, and what rotates heads before it, in the emulator: random variants against float64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "emulator/attention_problem.h"
#include "kernels/change_heads.h"

namespace bertfuse::kernels {
namespace {

using emulator::AttentionProblem;
using emulator::AttentionSizes;
using emulator::Masks;
using emulator::Random;

constexpr Device kDevice = {0, 80, 8, 99 << 10};

AttentionSizes DrawSizes(Random& random) {
  AttentionSizes sizes;
  sizes.head_size = random.OneIn(3) ? random.Between(1, 300) : random.Between(1, 70);
  sizes.kv_heads = random.Between(1, 3);
  sizes.heads = sizes.kv_heads * random.Between(1, 3);
  sizes.sequence = random.OneIn(3) ? random.Between(1, 150) : random.Between(1, 50);
  for (int64_t i = random.Between(1, 2); i > 0; --i) sizes.lengths.push_back(random.Between(0, sizes.sequence));
  sizes.masks = static_cast<Masks>(random.Between(0, 2));
  if (random.OneIn(2)) sizes.hole_one_in = random.Between(1, 9);
  sizes.has_bias = random.OneIn(2);
  constexpr int64_t kWindows[] = {-1, 0, 1, 5, 17, 31, 32, 64, int64_t{1} << 40};
  if (random.OneIn(2)) sizes.window_left = kWindows[random.Between(0, std::size(kWindows) - 1)];
  if (random.OneIn(2)) sizes.window_right = kWindows[random.Between(0, std::size(kWindows) - 1)];
  if (random.OneIn(2)) {
    sizes.bias_heads = random.OneIn(2) ? 1 : sizes.heads;
    sizes.bias_columns = random.Between(1, 2 * sizes.sequence);
    sizes.bias_left = random.Between(0, sizes.sequence);
  }
  sizes.packed = random.OneIn(2);
  sizes.gap_one_in = emulator::DrawGaps(random);
  if (random.OneIn(3)) {
    sizes.position_rows = random.Between(1, 2 * sizes.sequence);
    sizes.position_left = random.Between(0, sizes.position_rows);
  }
  sizes.hidden_alike = random.OneIn(3);
  return sizes;
}

template <class T>
void TestAttention(int count) {
  Random random(emulator::Seed());
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    const AttentionSizes sizes = DrawSizes(random);
    SCOPED_TRACE(sizes.Text());
    AttentionProblem<T> problem(sizes, random);
    emulator::TheSettings().seed = random.Seed();
    ASSERT_EQ(AttentionSimt(problem.arguments(), kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    const double error = problem.WorstError(emulator::kDtype<T>);
    EXPECT_LE(error, 1);
    worst = std::max(worst, error);
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", count, worst);
}

TEST(EmulatedSimtAttention, Float32) { TestAttention<float>(20); }
TEST(EmulatedSimtAttention, Float16) { TestAttention<__half>(15); }
TEST(EmulatedSimtAttention, Bfloat16) { TestAttention<__nv_bfloat16>(15); }

TEST(EmulatedSimtAttention, SmallWeightsBesideALargeOne) {
  Random random(emulator::Seed());
  AttentionSizes sizes;
  sizes.head_size = random.Between(3, 40);
  sizes.sequence = random.Between(700, 900);
  sizes.lengths = {sizes.sequence};
  AttentionProblem<float> problem(sizes, random);
  problem.MakeLopsided(random, -17.8, 6.0f);
  emulator::TheSettings().seed = random.Seed();
  ASSERT_EQ(AttentionSimt(problem.arguments(), kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
  EXPECT_LE(problem.WorstError("float32"), 1);
}

TEST(EmulatedSimtAttention, RefusesSoftCaps) {
  AttentionArguments<float> a = {};
  EXPECT_TRUE(AttentionSimtSupports(a));
  a.variant.soft_cap = 1;
  EXPECT_FALSE(AttentionSimtSupports(a));
}

// Rotation and norm of heads.
template <class T>
struct HeadsProblem {
  ChangeHeadsArguments<T> a = {};
  emulator::Array<T> qkv, bias, cos, sin, q_gamma, k_gamma, out;
  emulator::Array<int32_t> offsets, index, row_places, row_count;
  std::vector<int64_t> places;  // by row; -1 where it belongs to no sequence

  explicit HeadsProblem(Random& random) {
    a.sequence = a.places = random.Between(1, 9), a.rows = a.sequence * random.Between(1, 3);
    for (int64_t row = 0; row < a.rows; ++row) places.push_back(row % a.sequence);
    if (random.OneIn(2)) Pack(random);
    a.kv_heads = random.Between(1, 2), a.heads = a.kv_heads * random.Between(1, 3);
    a.head_size = random.OneIn(3) ? random.Between(1, 9) : random.Between(1, 100);
    a.rotated = random.Between(0, a.head_size / 2), a.neighbours = random.OneIn(2), a.epsilon = 1e-5f;
    a.gamma_offset = random.OneIn(2) ? 0.0f : 1.0f;
    if (random.OneIn(2)) a.head_size = 8 * random.Between(1, 32), a.rotated = 4 * random.Between(0, a.head_size / 8);
    const int64_t width = (a.heads + 2 * a.kv_heads) * a.head_size;
    const auto make = [&](size_t count) { return emulator::RandomArray<T>(random, std::max<size_t>(1, count), 1); };
    qkv = make(a.rows * width), bias = make(width), q_gamma = make(a.head_size), k_gamma = make(a.head_size);
    cos = make(a.places * a.rotated), sin = make(a.places * a.rotated);
    out = std::make_unique<emulator::DeviceArray<T>>(a.rows * width);
    a.qkv = qkv->data(), a.out = out->data();
    if (random.OneIn(2)) a.bias = bias->data();
    if (a.rotated > 0) a.cos = cos->data(), a.sin = sin->data();
    if (random.OneIn(2)) a.q_gamma = q_gamma->data(), a.k_gamma = k_gamma->data();
  }

  // As behind a product: in place, each row told its place, the number of rows read on the device. Rows from there on
  // stay as they are.
  void ChangeInPlace(Random& random) {
    if (a.packed.count > 0 || random.OneIn(2)) {
      row_places = std::make_unique<emulator::DeviceArray<int32_t>>(a.rows);
      row_count = std::make_unique<emulator::DeviceArray<int32_t>>(1);
      const int64_t count = random.Between(0, a.rows);
      (*row_count)[0] = static_cast<int32_t>(count);
      for (int64_t row = 0; row < a.rows; ++row) {
        places[row] = random.Between(0, std::max<int64_t>(a.places, 1) - 1);  // without places nothing is rotated
        (*row_places)[row] = static_cast<int32_t>(places[row] + random.Between(0, 3) * a.places);
        if (row >= count) places[row] = -1;
      }
      a.row_places = row_places->data(), a.row_count = row_count->data(), a.expected = random.Between(0, a.rows);
    }
    a.bias = a.q_gamma = a.k_gamma = nullptr, a.packed = {};
    std::copy(qkv->begin(), qkv->end(), out->begin());
    a.qkv = a.out;
  }

  // A few sequences, or so many that their offsets are looked through in steps, most of them then without a row.
  void Pack(Random& random) {
    const int64_t count = random.OneIn(4) ? random.Between(31, 1100) : random.Between(1, 6);
    offsets = std::make_unique<emulator::DeviceArray<int32_t>>(count + 1);
    const bool gaps = random.OneIn(2);
    places.clear(), (*offsets)[0] = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t length = count <= 6 ? random.Between(0, 9) : random.OneIn(20) ? random.Between(0, 3) : 0;
      for (int64_t at = 0, place = 0; at < length; ++at, ++place) {
        places.push_back(place);
        if (gaps && random.OneIn(3)) place += random.Between(1, 9);
      }
      (*offsets)[i + 1] = static_cast<int32_t>(places.size());
    }
    places.insert(places.end(), random.Between(1, 4), -1);
    a.rows = static_cast<int64_t>(places.size()), a.sequence = a.rows;
    a.places = 1 + *std::max_element(places.begin(), places.end());
    index = std::make_unique<emulator::DeviceArray<int32_t>>(a.rows);
    int32_t before = 0;
    for (int64_t row = 0; row < a.rows; ++row) {  // sequences begin anywhere in theirs
      if (places[row] == 0) before += static_cast<int32_t>(random.Between(0, 99));
      (*index)[row] = before + static_cast<int32_t>(places[row]);
    }
    const bool given = gaps || random.OneIn(2);
    a.packed = {offsets->data(), static_cast<int>(count), static_cast<int>(a.rows), given ? index->data() : nullptr};
    a.expected = random.Between(0, a.rows);  // fewer than there are, as after a batch of other texts
  }

  std::vector<double> Expected(int64_t row, int64_t head) const {
    const int64_t at = head * a.head_size, width = (a.heads + 2 * a.kv_heads) * a.head_size;
    std::vector<double> x(a.head_size);
    double squares = 0;
    for (int64_t i = 0; i < a.head_size; ++i) {
      x[i] = ToFloat((*qkv)[row * width + at + i]) + (a.bias == nullptr ? 0.0 : ToFloat((*bias)[at + i]));
      squares += x[i] * x[i];
    }
    if (head >= a.heads + a.kv_heads) return x;
    const double root = std::sqrt(squares / static_cast<double>(a.head_size) + a.epsilon);
    for (int64_t i = 0; i < a.head_size && a.q_gamma != nullptr; ++i) {
      x[i] = x[i] / root * (ToFloat(head < a.heads ? (*q_gamma)[i] : (*k_gamma)[i]) + a.gamma_offset);
    }
    std::vector<double> y = x;
    for (int64_t i = 0; i < a.rotated && a.places > 0; ++i) {
      const int64_t first = a.neighbours ? 2 * i : i, second = a.neighbours ? 2 * i + 1 : i + a.rotated;
      const int64_t place = places[row] * a.rotated + i;
      const double c = ToFloat((*cos)[place]), s = ToFloat((*sin)[place]);
      y[first] = x[first] * c - x[second] * s, y[second] = x[second] * c + x[first] * s;
    }
    return y;
  }
};

template <class T>
void TestHeads(int count) {
  Random random(emulator::Seed());
  for (int i = 0; i < count; ++i) {
    HeadsProblem<T> problem(random);
    const bool in_place = random.OneIn(3);
    if (in_place) problem.ChangeInPlace(random);
    problem.a.keeps_values = !in_place && random.OneIn(3);
    const ChangeHeadsArguments<T>& a = problem.a;
    emulator::TheSettings().seed = random.Seed();
    ASSERT_EQ(ChangeHeads(a, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
    emulator::Comparison comparison(emulator::ToleranceOf("FusedAttentionVariant", emulator::kDtype<T>));
    const int64_t heads = a.heads + 2 * a.kv_heads;
    for (int64_t row = 0; row < a.rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        const bool kept = a.keeps_values && head >= a.heads + a.kv_heads;
        if (problem.places[row] < 0 || kept) {
          for (int64_t c = 0; c < a.head_size; ++c) {
            const int64_t at = (row * heads + head) * a.head_size + c;
            const float found = ToFloat((*problem.out)[at]);
            EXPECT_TRUE(in_place ? found == ToFloat((*problem.qkv)[at]) : std::isnan(found));
          }
          continue;
        }
        const std::vector<double> expected = problem.Expected(row, head);
        for (int64_t c = 0; c < a.head_size; ++c) {
          comparison.Add(ToFloat((*problem.out)[(row * heads + head) * a.head_size + c]), expected[c]);
        }
      }
    }
    EXPECT_LE(comparison.worst(), 1) << a.rows << " rows, " << a.heads << "/" << a.kv_heads << " heads of "
                                     << a.head_size << ", " << a.rotated << " pairs" << (a.neighbours ? " beside" : "");
  }
}

// Whatever offsets and places of tokens are, nothing out of bounds is read.
template <class T>
void TestBrokenOffsets(int count) {
  Random random(emulator::Seed());
  for (int i = 0; i < count; ++i) {
    HeadsProblem<T> problem(random);
    const ChangeHeadsArguments<T>& a = problem.a;
    if (a.packed.count == 0) continue;
    const auto rows = static_cast<int32_t>(a.rows);
    const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, rows + 1, rows + 70, 1 << 20};
    const auto spoil = [&](emulator::DeviceArray<int32_t>& numbers) {
      for (int32_t& number : numbers) number = random.OneIn(2) ? wrong[random.Between(0, 5)] : number;
    };
    spoil(*problem.offsets), spoil(*problem.index);
    emulator::TheSettings().seed = random.Seed();
    ASSERT_EQ(ChangeHeads(a, kDevice, nullptr), cudaSuccess) << emulator::TakeFault();
  }
}

TEST(EmulatedChangeHeads, BrokenOffsets) { TestBrokenOffsets<__half>(200); }
TEST(EmulatedChangeHeads, Float32) { TestHeads<float>(80); }
TEST(EmulatedChangeHeads, Float16) { TestHeads<__half>(60); }
TEST(EmulatedChangeHeads, Bfloat16) { TestHeads<__nv_bfloat16>(60); }

}  // namespace
}  // namespace bertfuse::kernels
