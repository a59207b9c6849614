// FusedAttentionVariant on the CPU: random variants against float64, and what the call's description does not check.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "call_builder.h"
#include "op_table.generated.h"

namespace bertfuse::test {
namespace {

using Op = FusedAttentionVariant;

struct Variant {
  int64_t batch = 1, sequence = 5, kv_heads = 1, shared = 2, head_size = 8, rotated = 2, bias_heads = 0, columns = 3;
  int64_t left = -1, right = -1, bias_left = 1, rows = 0, positions_left = 1;  // 0 rows: no vectors by distance
  bool neighbours = false, has_bias = true, masked = true, norm = false, alike = false;

  int64_t heads() const { return kv_heads * shared; }
  int64_t width() const { return (heads() + 2 * kv_heads) * head_size; }
};

Variant Draw(std::mt19937& random) {
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Variant v;
  v.batch = between(1, 3), v.sequence = between(0, 3) == 0 ? between(1, 300) : between(1, 60);
  v.kv_heads = between(1, 3), v.shared = between(1, 3), v.head_size = between(1, 40);
  v.rotated = between(0, v.head_size / 2), v.neighbours = between(0, 1) == 1;
  v.has_bias = between(0, 1) == 1, v.masked = between(0, 2) > 0, v.norm = between(0, 1) == 1;
  const int64_t sides[] = {-1, 0, 1, 5, 31, 32, 33, 100, INT64_MAX};
  v.left = sides[between(0, 8)], v.right = sides[between(0, 8)];
  if (between(0, 1) == 1) v.bias_heads = between(0, 1) == 1 ? 1 : v.heads();
  v.columns = between(1, 2 * v.sequence);
  v.bias_left = between(0, 5) == 0 ? INT64_MAX : between(0, v.columns);
  if (between(0, 1) == 1) v.rows = between(1, 2 * v.sequence);
  v.positions_left = between(0, 5) == 0 ? INT64_MAX : between(0, v.rows), v.alike = between(0, 2) == 0;
  return v;
}

CallBuilder Call(const Variant& v, std::mt19937& random) {
  CallBuilder call(Op::kName);
  const auto fill = [&](const char* name, std::initializer_list<int64_t> shape) {
    call.In(name, shape);
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    std::normal_distribution<float> normal;
    std::generate_n(call.data<float>(name), count, [&] { return normal(random); });
  };
  fill("qkv", {v.batch, v.sequence, v.width()});
  if (v.has_bias) fill("bias", {v.width()});
  if (v.rotated > 0) fill("cos", {v.sequence, v.rotated}), fill("sin", {v.sequence, v.rotated});
  if (v.norm) fill("q_gamma", {v.head_size}), fill("k_gamma", {v.head_size});
  if (v.bias_heads > 0) fill("distance_bias", {1, v.bias_heads, v.columns});
  if (v.rows > 0) fill("positions", {2, v.heads(), v.rows, v.head_size});
  if (v.masked) {
    call.In("mask", {v.batch, v.sequence}, BERTFUSE_INT64);
    int64_t* const mask = call.data<int64_t>("mask");
    const auto shown = [&](int64_t one_in) { return static_cast<int64_t>(random() % one_in == 0) * 3; };
    for (int64_t b = 0; b < v.batch; ++b) {
      const int64_t one_in = 1 + static_cast<int64_t>(random() % 3) * 6;  // all, one of seven or of thirteen
      std::generate_n(mask + b * v.sequence, v.sequence, [&] { return shown(one_in); });
    }
    if (random() % 3 == 0) std::fill_n(mask, v.sequence, 0);  // a sequence of padding
  }
  call.Int("num_heads", v.heads()).Int("kv_num_heads", v.kv_heads).Float("scale", 0.4f).Float("epsilon", 1e-3f);
  call.Int("window_left", v.left).Int("window_right", v.right).Int("bias_left", v.bias_left);
  call.Int("positions_left", v.positions_left).String("hidden_queries", v.alike ? "alike" : "as_others");
  call.String("pairs", v.neighbours ? "neighbours" : "halves");
  return call;
}

// A head of Q, K or V (by its number among all of a row) of one token.
std::vector<double> Head(CallBuilder& call, const Variant& v, int64_t token, int64_t head) {
  std::vector<double> x(v.head_size);
  double squares = 0;
  for (int64_t i = 0; i < v.head_size; ++i) {
    const int64_t column = head * v.head_size + i;
    x[i] = call.data<float>("qkv")[token * v.width() + column] + (v.has_bias ? call.data<float>("bias")[column] : 0.0);
    squares += x[i] * x[i];
  }
  if (head >= v.heads() + v.kv_heads) return x;
  const double root = std::sqrt(squares / static_cast<double>(v.head_size) + 1e-3f);
  for (int64_t i = 0; i < v.head_size && v.norm; ++i) {
    x[i] *= call.data<float>(head < v.heads() ? "q_gamma" : "k_gamma")[i] / root;
  }
  std::vector<double> y = x;
  for (int64_t i = 0; i < v.rotated; ++i) {
    const int64_t a = v.neighbours ? 2 * i : i, b = v.neighbours ? 2 * i + 1 : i + v.rotated;
    const int64_t at = token % v.sequence * v.rotated + i;
    const double cos = call.data<float>("cos")[at], sin = call.data<float>("sin")[at];
    y[a] = x[a] * cos - x[b] * sin, y[b] = x[b] * cos + x[a] * sin;
  }
  return y;
}

bool Sees(CallBuilder& call, const Variant& v, int64_t sequence, int64_t query, int64_t key) {
  if ((v.left >= 0 && query - key > v.left) || (v.right >= 0 && key - query > v.right)) return false;
  if (!v.masked) return true;
  const int64_t* const mask = call.data<int64_t>("mask") + sequence * v.sequence;
  return mask[key] != 0 && (!v.alike || mask[query] != 0);
}

// What vectors of that distance add to the product of a query and a key.
double ByPosition(CallBuilder& call, const Variant& v, int64_t head, int64_t distance, const std::vector<double>& q,
                  const std::vector<double>& k) {
  if (v.rows == 0) return 0;
  const int64_t row = std::clamp<int64_t>(distance + std::min(v.positions_left, int64_t{1} << 40), 0, v.rows - 1);
  const float* const for_q = call.data<float>("positions") + (head * v.rows + row) * v.head_size;
  const float* const for_k = for_q + v.heads() * v.rows * v.head_size;
  double sum = 0;
  for (int64_t i = 0; i < v.head_size; ++i) sum += q[i] * for_q[i] + k[i] * for_k[i];
  return sum;
}

double WorstError(CallBuilder& call, const Variant& v, const float* y) {
  double worst = 0;
  for (int64_t item = 0; item < v.batch * v.heads(); ++item) {
    const int64_t sequence = item / v.heads(), head = item % v.heads(), kv = head / v.shared;
    const int64_t first = sequence * v.sequence;
    std::vector<std::vector<double>> keys, values;
    for (int64_t key = 0; key < v.sequence; ++key) {
      keys.push_back(Head(call, v, first + key, v.heads() + kv));
      values.push_back(Head(call, v, first + key, v.heads() + v.kv_heads + kv));
    }
    for (int64_t query = 0; query < v.sequence; ++query) {
      const std::vector<double> q = Head(call, v, first + query, head);
      std::vector<double> score(v.sequence, -INFINITY), result(v.head_size);
      for (int64_t key = 0; key < v.sequence; ++key) {
        if (!Sees(call, v, sequence, query, key)) continue;
        score[key] = 0.4f * ByPosition(call, v, head, key - query, q, keys[key]);
        for (int64_t i = 0; i < v.head_size; ++i) score[key] += q[i] * keys[key][i] * 0.4f;
        if (v.bias_heads == 0) continue;
        const int64_t left = std::min(v.bias_left, int64_t{1} << 40);
        const int64_t column = std::clamp<int64_t>(key - query + left, 0, v.columns - 1);
        score[key] += call.data<float>("distance_bias")[(v.bias_heads == 1 ? 0 : head) * v.columns + column];
      }
      const double highest = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double& s : score) total += s = highest == -INFINITY ? 1 : std::exp(s - highest);
      for (int64_t key = 0; key < v.sequence; ++key) {
        for (int64_t i = 0; i < v.head_size; ++i) result[i] += score[key] / total * values[key][i];
      }
      for (int64_t i = 0; i < v.head_size; ++i) {
        const double found = y[((first + query) * v.heads() + head) * v.head_size + i];
        worst = std::max(worst, std::isnan(found) ? INFINITY : std::abs(found - result[i]) / (1 + std::abs(result[i])));
      }
    }
  }
  return worst;
}

TEST(AttentionVariant, RandomOnesAgreeWithFloat64) {
  const char* const given = std::getenv("BERTFUSE_TEST_SEED");
  const unsigned seed = given == nullptr ? std::random_device()() : static_cast<unsigned>(std::atoll(given));
  std::printf("BERTFUSE_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const Variant v = Draw(random);
    CallBuilder call = Call(v, random);
    const float* const y = call.Run();
    EXPECT_LE(WorstError(call, v, y), 2e-5) << v.batch << "x" << v.sequence << ", " << v.heads() << "/" << v.kv_heads
                                            << " heads of " << v.head_size << ", window " << v.left << " " << v.right
                                            << ", bias " << v.bias_heads << "x" << v.columns << " " << v.bias_left;
  }
}

template <class Change>
std::string Refusal(Change change) {
  std::mt19937 random(1);
  Variant v;
  v.bias_heads = 2;
  change(v);
  try {
    Call(v, random).Run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AttentionVariant, WhatDoesNotFitIsNamed) {
  EXPECT_EQ(Refusal([](Variant&) {}), "");
  EXPECT_EQ(Refusal([](Variant& v) { v.rotated = 5; }),
            "FusedAttentionVariant: input 'cos' has 5 columns, expected at most 4, of pairs in a head");
  EXPECT_EQ(Refusal([](Variant& v) { v.bias_heads = 3; }),
            "FusedAttentionVariant: input 'distance_bias' has 3 rows, expected 1 or num_heads = 2");
  EXPECT_EQ(Refusal([](Variant& v) { v.columns = 0; }),
            "FusedAttentionVariant: input 'distance_bias' has no column, expected one or more");
  CallBuilder call(Op::kName);
  call.In("qkv", {1, 2, 28}).Int("num_heads", 3).Int("kv_num_heads", 2).Float("scale", 1);
  try {
    call.Run();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "FusedAttentionVariant: attribute 'kv_num_heads' is 2, expected a divisor of num_heads = 3");
  }
}

TEST(AttentionVariant, SizesFollowFromHeads) {
  CallBuilder call(Op::kName);
  call.In("qkv", {2, 3, 80}).Int("num_heads", 6).Int("kv_num_heads", 2).Float("scale", 1);
  call.Build();
  EXPECT_EQ(call.output().shape[2], 48);
  CallBuilder odd(Op::kName);
  odd.In("qkv", {2, 3, 81}).Int("num_heads", 6).Int("kv_num_heads", 2).Float("scale", 1);
  try {
    odd.Build();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "FusedAttentionVariant: input 'qkv' axis 2 is 81, expected (num_heads+2*kv_num_heads)*D: a multiple "
                 "of 10");
  }
}

}  // namespace
}  // namespace bertfuse::test
