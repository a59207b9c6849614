// Attention in the emulator's tests: random problems of every variant, and what is right, in float64.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_ATTENTION_PROBLEM_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_ATTENTION_PROBLEM_H_

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "emulator/random_data.h"
#include "kernels/attention.h"

namespace emulator {

enum class Masks { kNone, kInt32, kInt64 };

// Sizes and kinds; data come from a seed.
struct AttentionSizes {
  int64_t heads = 1, kv_heads = 0, head_size = 64;
  std::vector<int64_t> lengths;  // of the sequences' tokens, which are hidden behind that where they are padded
  int64_t sequence = 0;          // of padded ones
  bool packed = false, has_bias = true;
  Masks masks = Masks::kNone;  // packed sequences' is not to be read
  int64_t hole_one_in = 0;     // one key of so many is hidden, too; 0: none
  // Behind one packed token of so many there is a gap; 0: behind none; below 0: there is no token_index.
  int64_t gap_one_in = -1;
  int64_t window_left = -1, window_right = -1;
  float soft_cap = 0;
  int64_t bias_heads = 0, bias_columns = 0, bias_left = 0;  // 0 heads: no bias by distance
  int64_t position_rows = 0, position_left = 0;             // 0 rows: no vectors by distance
  bool hidden_alike = false;
  int64_t table_places = 0;  // 0: Q and K are not rotated

  // Without what AttentionVariant has.
  void MakePlain() {
    kv_heads = bias_heads = 0, soft_cap = 0;
    window_left = window_right = -1;
  }
  std::string Text() const {
    std::string text = packed ? "packed" : "padded to " + std::to_string(sequence);
    for (int64_t length : lengths) text += " " + std::to_string(length);
    text += "; " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " + std::to_string(head_size);
    text += has_bias ? "" : "; no bias";
    if (masks != Masks::kNone) text += masks == Masks::kInt64 ? "; int64 mask" : "; int32 mask";
    if (hole_one_in > 0) text += " with holes 1/" + std::to_string(hole_one_in);
    if (packed && gap_one_in >= 0) text += "; gaps 1/" + std::to_string(gap_one_in);
    text += "; window " + std::to_string(window_left) + " " + std::to_string(window_right);
    if (soft_cap > 0) text += "; cap " + std::to_string(soft_cap);
    if (bias_heads > 0) {
      text += "; distances " + std::to_string(bias_heads) + "x" + std::to_string(bias_columns) + " left " +
              std::to_string(bias_left);
    }
    if (position_rows > 0) {
      text += "; positions " + std::to_string(position_rows) + " left " + std::to_string(position_left);
    }
    text += hidden_alike ? "; hidden queries alike" : "";
    if (table_places > 0) text += "; rotated by " + std::to_string(table_places) + " places";
    return text;
  }
};

inline int64_t DrawGaps(Random& random) {
  constexpr int64_t kOneIn[] = {-1, 0, 1, 2, 5, 40};
  return kOneIn[random.Between(0, std::size(kOneIn) - 1)];
}

// Sizes and a variant, with one of these head sizes.
template <size_t kCount>
AttentionSizes DrawSizes(const int64_t (&head_sizes)[kCount], Random& random) {
  AttentionSizes sizes;
  sizes.head_size = head_sizes[random.Between(0, kCount - 1)];
  sizes.kv_heads = random.Between(1, 2);
  sizes.heads = sizes.kv_heads * random.Between(1, 2);
  if (sizes.heads == sizes.kv_heads && random.OneIn(2)) sizes.kv_heads = 0;
  const int64_t longest = random.OneIn(3) ? random.Between(1, 300) : random.Between(1, 150);
  sizes.sequence = longest;
  sizes.packed = random.OneIn(2);
  sizes.gap_one_in = DrawGaps(random);
  for (int64_t i = random.Between(1, 3); i > 0; --i) {
    sizes.lengths.push_back(random.OneIn(5) ? random.Between(0, 1) : random.Between(0, longest));
  }
  sizes.masks = static_cast<Masks>(random.Between(0, 2));
  if (random.OneIn(2)) sizes.hole_one_in = random.Between(1, 9);
  sizes.has_bias = !random.OneIn(6);
  constexpr int64_t kWindows[] = {-1, 0, 1, 17, 63, 64, 100, int64_t{1} << 40};
  if (random.OneIn(2)) sizes.window_left = kWindows[random.Between(0, std::size(kWindows) - 1)];
  if (random.OneIn(2)) sizes.window_right = kWindows[random.Between(0, std::size(kWindows) - 1)];
  if (random.OneIn(3)) sizes.soft_cap = static_cast<float>(random.Between(1, 40));
  if (random.OneIn(3)) {
    sizes.bias_heads = random.OneIn(2) ? 1 : sizes.heads;
    sizes.bias_columns = random.Between(1, 2 * longest);
    sizes.bias_left = random.Between(0, longest);
  }
  return sizes;
}

// The same with vectors by distance in place of a soft cap.
template <size_t kCount>
AttentionSizes DrawPositions(const int64_t (&head_sizes)[kCount], Random& random) {
  AttentionSizes sizes = DrawSizes(head_sizes, random);
  sizes.soft_cap = 0;
  sizes.position_rows = random.OneIn(4) ? random.Between(1, 3) : random.Between(1, 2 * sizes.sequence);
  sizes.position_left = random.OneIn(3) ? random.Between(0, sizes.sequence) : sizes.position_rows / 2;
  sizes.hidden_alike = random.OneIn(2);
  return sizes;
}

template <class T>
using Array = std::unique_ptr<DeviceArray<T>>;

template <class T>
Array<T> RandomArray(Random& random, size_t count, double deviation) {
  auto array = std::make_unique<DeviceArray<T>>(count);
  random.Fill(*array, deviation);
  return array;
}

template <class T>
class AttentionProblem {
 public:
  AttentionProblem(const AttentionSizes& sizes, Random& random) : sizes_(sizes) {
    const int64_t count = static_cast<int64_t>(sizes.lengths.size()), kv_heads = KvHeads();
    const int64_t tokens = std::accumulate(sizes.lengths.begin(), sizes.lengths.end(), int64_t{0});
    const int64_t rows = sizes.packed ? tokens + random.Between(0, 40) : count * sizes.sequence;
    columns_ = (sizes.heads + 2 * kv_heads) * sizes.head_size;
    qkv_ = RandomArray<T>(random, rows * columns_, 1);
    bias_ = RandomArray<T>(random, columns_, 0.3);
    y_ = std::make_unique<DeviceArray<T>>(rows * sizes.heads * sizes.head_size);
    distance_bias_ = RandomArray<T>(random, std::max<int64_t>(1, sizes.bias_heads * sizes.bias_columns), 1);
    const int64_t vectors = 2 * sizes.heads * sizes.position_rows * sizes.head_size;
    positions_ = RandomArray<T>(random, std::max<int64_t>(1, vectors), 0.5);
    cos_ = RandomArray<T>(random, std::max<int64_t>(1, sizes.table_places * sizes.head_size / 2), 0.7);
    sin_ = RandomArray<T>(random, std::max<int64_t>(1, sizes.table_places * sizes.head_size / 2), 0.7);
    mask32_ = std::make_unique<DeviceArray<int32_t>>(rows);
    mask64_ = std::make_unique<DeviceArray<int64_t>>(rows);
    offsets_ = std::make_unique<DeviceArray<int32_t>>(count + 1);
    (*offsets_)[0] = 0;
    for (int64_t i = 0; i < count; ++i) {
      (*offsets_)[i + 1] = static_cast<int32_t>((*offsets_)[i] + sizes.lengths[i]);
      for (int64_t key = 0; !sizes.packed && key < sizes.sequence; ++key) {
        const bool hole = sizes.hole_one_in > 0 && random.OneIn(sizes.hole_one_in);
        const int64_t at = i * sizes.sequence + key, shown = key < sizes.lengths[i] && !hole ? random.Between(1, 3) : 0;
        (*mask64_)[at] = shown << 33 * (at % 2), (*mask32_)[at] = static_cast<int32_t>(-shown);
      }
    }
    DrawPlaces(random, rows);
    for (int64_t row = 0; sizes.packed && row < rows; ++row) (*mask64_)[row] = (*mask32_)[row] = random.OneIn(2);
    SetArguments(rows);
  }

  const bertfuse::kernels::AttentionArguments<T>& arguments() const { return a_; }
  bertfuse::kernels::AttentionArguments<T>& arguments() { return a_; }
  T Y(int64_t sequence, int64_t query, int64_t column) const {
    return (*y_)[(FirstRow(sequence) + query) * sizes_.heads * sizes_.head_size + column];
  }
  DeviceArray<T>& qkv() { return *qkv_; }
  DeviceArray<T>& bias() { return *bias_; }
  DeviceArray<T>& distance_bias() { return *distance_bias_; }
  DeviceArray<int32_t>& token_index() { return *index_; }
  int64_t columns() const { return columns_; }
  int64_t FirstRow(int64_t sequence) const {
    return sizes_.packed ? (*offsets_)[sequence] : sequence * sizes_.sequence;
  }

  // One key gets nearly all of the weight, each other one about e^score of it, less than a rounding; that key's V is 6
  // until its bias is added, the others' mean is `mean`: what sums lose shows. For one padded sequence of one head.
  void MakeLopsided(Random& random, double score, float mean) {
    using bertfuse::kernels::FromFloat, bertfuse::kernels::ToFloat;
    const int64_t size = sizes_.head_size, heavy = random.Between(0, 40);
    for (int64_t row = 0; row < sizes_.sequence; ++row) {
      T* const q = &(*qkv_)[row * columns_];
      for (int64_t i = 0; i < 2 * size; ++i) q[i] = FromFloat<T>(0.0f);
      q[0] = FromFloat<T>(1.0f);
      const double own = row == heavy ? 0.0 : score + 0.01 * static_cast<double>(random.Between(-20, 20));
      q[size] = FromFloat<T>(static_cast<float>(own / a_.scale));
      for (int64_t i = 2 * size; i < 3 * size; ++i) q[i] = FromFloat<T>(ToFloat(q[i]) + (row == heavy ? 6.0f : mean));
    }
    for (int64_t i = 0; i < 3 * size; ++i) (*bias_)[i] = FromFloat<T>(i < 2 * size ? 0.0f : -6.0f);
  }

  // Holds all results against float64, and sees that rows of no sequence were left alone.
  double WorstError(const char* dtype) const {
    Comparison comparison(ToleranceOf("FusedAttention", dtype));
    for (size_t i = 0; i < sizes_.lengths.size(); ++i) {
      for (int64_t head = 0; head < sizes_.heads; ++head) CompareHead(static_cast<int64_t>(i), head, &comparison);
    }
    const int64_t real = (*offsets_)[sizes_.lengths.size()];
    for (size_t at = real * sizes_.heads * sizes_.head_size; sizes_.packed && at < y_->size(); ++at) {
      uint16_t bits;
      std::memcpy(&bits, &(*y_)[at], sizeof(bits));
      if (bits != 0xffff) return INFINITY;
    }
    return comparison.worst();
  }

 private:
  int64_t KvHeads() const { return sizes_.kv_heads == 0 ? sizes_.heads : sizes_.kv_heads; }

  void DrawPlaces(Random& random, int64_t rows) {
    index_ = std::make_unique<DeviceArray<int32_t>>(std::max<int64_t>(1, rows));
    int64_t place = random.Between(0, 40);
    for (int64_t row = 0; row < rows; ++row, ++place) {
      (*index_)[row] = static_cast<int32_t>(place);
      if (sizes_.gap_one_in > 0 && random.OneIn(sizes_.gap_one_in)) {
        place += random.OneIn(5) ? random.Between(1, 200) : random.Between(1, 5);
      }
    }
  }

  // Where in its sequence a token is.
  int64_t Place(int64_t sequence, int64_t token) const {
    if (!sizes_.packed || sizes_.gap_one_in < 0) return token;
    return (*index_)[FirstRow(sequence) + token] - (*index_)[FirstRow(sequence)];
  }

  void SetArguments(int64_t rows) {
    a_ = {};
    a_.qkv = qkv_->data(), a_.y = y_->data(), a_.bias = sizes_.has_bias ? bias_->data() : nullptr;
    a_.heads = sizes_.heads, a_.head_size = sizes_.head_size;
    a_.scale = 1.0f / std::sqrt(static_cast<float>(sizes_.head_size));
    a_.batch = sizes_.packed ? 1 : static_cast<int64_t>(sizes_.lengths.size());
    a_.sequence = sizes_.packed ? rows : sizes_.sequence;
    if (sizes_.packed) {
      a_.packed = {offsets_->data(), static_cast<int>(sizes_.lengths.size()), static_cast<int>(rows),
                   sizes_.gap_one_in < 0 ? nullptr : index_->data()};
    }
    if (sizes_.masks == Masks::kInt64) {
      a_.mask = mask64_->data(), a_.mask_is_int64 = true;
    } else if (sizes_.masks == Masks::kInt32) {
      a_.mask = mask32_->data();
    }
    a_.variant.kv_heads = sizes_.kv_heads;
    a_.variant.window_left = sizes_.window_left, a_.variant.window_right = sizes_.window_right;
    a_.variant.soft_cap = sizes_.soft_cap;
    a_.variant.hidden_alike = sizes_.hidden_alike;
    if (sizes_.position_rows > 0) {
      a_.variant.positions = positions_->data();
      a_.variant.position_rows = sizes_.position_rows, a_.variant.position_left = sizes_.position_left;
    }
    if (sizes_.table_places > 0) {
      a_.variant.cos = cos_->data(), a_.variant.sin = sin_->data(), a_.variant.places = sizes_.table_places;
    }
    if (sizes_.bias_heads == 0) return;
    a_.variant.distance_bias = distance_bias_->data();
    a_.variant.bias_heads = sizes_.bias_heads, a_.variant.bias_columns = sizes_.bias_columns;
    a_.variant.bias_left = sizes_.bias_left;
  }

  double At(int64_t row, int64_t column) const {
    using bertfuse::kernels::ToFloat;
    const double bias = sizes_.has_bias ? ToFloat((*bias_)[column]) : 0.0;
    return ToFloat((*qkv_)[row * columns_ + column]) + bias;
  }

  // Of Q and K, whose `column` is the head's column `i`: rounded, as attention would read them.
  double Turned(int64_t sequence, int64_t token, int64_t column, int64_t i) const {
    using bertfuse::kernels::ToFloat;
    const int64_t row = FirstRow(sequence) + token, pairs = sizes_.head_size / 2;
    if (sizes_.table_places == 0) return At(row, column);
    const int64_t place = std::min(Place(sequence, token), sizes_.table_places - 1), at = place * pairs + i % pairs;
    const float cos = ToFloat((*cos_)[at]), sin = ToFloat((*sin_)[at]);
    const float x = static_cast<float>(At(row, column));
    const float other = static_cast<float>(At(row, i < pairs ? column + pairs : column - pairs));
    const float turned = i < pairs ? x * cos - other * sin : x * cos + other * sin;
    return ToFloat(bertfuse::kernels::FromFloat<T>(turned));
  }

  bool Sees(int64_t sequence, int64_t query, int64_t key) const {
    const int64_t distance = Place(sequence, key) - Place(sequence, query);
    if (sizes_.window_left >= 0 && distance < -sizes_.window_left) return false;
    if (sizes_.window_right >= 0 && distance > sizes_.window_right) return false;
    if (sizes_.packed || a_.mask == nullptr) return true;
    const int64_t first = sequence * sizes_.sequence;
    return (*mask32_)[first + key] != 0 && (!sizes_.hidden_alike || (*mask32_)[first + query] != 0);
  }

  double Logit(int64_t head, int64_t distance, double product) const {
    double x = product * a_.scale;
    if (sizes_.soft_cap > 0) x = sizes_.soft_cap * std::tanh(x / sizes_.soft_cap);
    if (sizes_.bias_heads > 0) {
      const int64_t column = std::clamp<int64_t>(distance + sizes_.bias_left, 0, sizes_.bias_columns - 1);
      x += bertfuse::kernels::ToFloat(
          (*distance_bias_)[(sizes_.bias_heads == 1 ? 0 : head) * sizes_.bias_columns + column]);
    }
    return x;
  }

  // What vectors by distance add to the product of a query and a key, in columns q and k of their rows.
  double ByPosition(int64_t head, int64_t query, int64_t key, int64_t distance, int64_t row, int64_t q,
                    int64_t k) const {
    using bertfuse::kernels::ToFloat;
    if (sizes_.position_rows == 0) return 0;
    const int64_t size = sizes_.head_size, rows = sizes_.position_rows;
    const int64_t at = std::clamp<int64_t>(distance + sizes_.position_left, 0, rows - 1);
    const int64_t for_q = (head * rows + at) * size, for_k = for_q + sizes_.heads * rows * size;
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += At(row + query, q + i) * ToFloat((*positions_)[for_q + i]);
      sum += At(row + key, k + i) * ToFloat((*positions_)[for_k + i]);
    }
    return sum;
  }

  void CompareHead(int64_t sequence, int64_t head, Comparison* comparison) const {
    const int64_t length = sizes_.packed ? sizes_.lengths[sequence] : sizes_.sequence, size = sizes_.head_size;
    const int64_t row = FirstRow(sequence), kv_head = head * KvHeads() / sizes_.heads;
    const int64_t q = head * size, k = (sizes_.heads + kv_head) * size, v = k + KvHeads() * size;
    std::vector<double> keys(length * size), values(length * size), weight(length), queries(size), result(size);
    for (int64_t i = 0; i < length * size; ++i) {
      keys[i] = Turned(sequence, i / size, k + i % size, i % size), values[i] = At(row + i / size, v + i % size);
    }
    for (int64_t query = 0; query < length; ++query) {
      double highest = -INFINITY, total = 0;
      for (int64_t i = 0; i < size; ++i) queries[i] = Turned(sequence, query, q + i, i);
      for (int64_t key = 0; key < length; ++key) {
        weight[key] = -INFINITY;
        if (!Sees(sequence, query, key)) continue;
        double product = 0;
        for (int64_t i = 0; i < size; ++i) product += queries[i] * keys[key * size + i];
        const int64_t distance = Place(sequence, key) - Place(sequence, query);
        product += ByPosition(head, query, key, distance, row, q, k);
        highest = std::max(highest, weight[key] = Logit(head, distance, product));
      }
      for (double& w : weight) total += w = highest == -INFINITY ? 1 : std::exp(w - highest);
      std::fill(result.begin(), result.end(), 0);
      for (int64_t key = 0; key < length; ++key) {
        for (int64_t i = 0; i < size && weight[key] > 0; ++i) result[i] += weight[key] / total * values[key * size + i];
      }
      for (int64_t i = 0; i < size; ++i) {
        comparison->Add(bertfuse::kernels::ToFloat(Y(sequence, query, head * size + i)), result[i]);
      }
    }
  }

  AttentionSizes sizes_;
  int64_t columns_;
  Array<T> qkv_, bias_, y_, distance_bias_, positions_, cos_, sin_;
  Array<int32_t> mask32_, offsets_, index_;
  Array<int64_t> mask64_;
  bertfuse::kernels::AttentionArguments<T> a_;
};

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_ATTENTION_PROBLEM_H_
