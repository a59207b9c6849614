// Random problems for attention on Hopper, whose inputs appear when the kernels before it end, and what their results
// should be, in float64.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_ATTENTION_PROBLEM_SM90_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_ATTENTION_PROBLEM_SM90_H_

#include <cmath>
#include <string>
#include <vector>

#include "emulator/late_array.h"
#include "emulator/product.h"
#include "kernels/attention.h"

namespace bertfuse::kernels {

template <class T>
class AttentionSm90Problem {
 public:
  struct Size {
    int64_t batch, sequence, heads, head_size;
  };

  AttentionSm90Problem(emulator::Random* random, const Size& size, bool packed)
      : columns_(size.heads * size.head_size),
        // In front of the first packed sequence and behind the last are rows that belong to none.
        first_row_(packed ? random->Between(0, 20) : 0),
        rows_(first_row_ + size.batch * size.sequence),
        qkv_(rows_ * 3 * columns_),
        bias_(3 * columns_),
        mask_(2 * rows_),
        offsets_(size.batch + 1),
        y_(rows_ * columns_) {
    AttentionArguments<T>& a = arguments;
    a.batch = size.batch, a.sequence = size.sequence, a.heads = size.heads, a.head_size = size.head_size;
    a.qkv = qkv_.array.data(), a.bias = bias_.array.data(), a.y = y_.data();
    a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_size));
    a.bias_is_constant = random->OneIn(2);
    qkv_.Fill(random, 1), bias_.Fill(random, 0.3);
    if (random->OneIn(4)) {  // no bias
      a.bias = nullptr;
      for (int64_t i = 0; i < 3 * columns_; ++i) bias_.values()[i] = FromFloat<T>(0);
    }
    DrawSequences(random, packed);
    if (random->OneIn(3)) MakeSteep();
    const size_t row = 3 * columns_;
    if (packed) {  // NaNs in the rows of nobody
      std::memset(static_cast<void*>(qkv_.values()), 0xff, first_row_ * row * sizeof(T));
      std::memset(static_cast<void*>(qkv_.values() + end_ * row), 0xff, (rows_ - end_) * row * sizeof(T));
    }
  }

  // As in GemmProblem.
  void Prepare() {
    if (arguments.bias_is_constant) bias_.Appear();
    emulator::TheSettings().dependencies_end = [this] {
      qkv_.Appear(), mask_.Appear(), bias_.Appear();
      early_ |= emulator::IsWritten(y_);
    };
  }
  bool wrote_early() const { return early_; }
  bool wrote_outside() const {
    bool wrote = false;
    for (int64_t row = 0; row < rows_; ++row) {
      if (row >= first_row_ && row < end_) continue;
      for (int64_t i = row * columns_; i < (row + 1) * columns_; ++i) wrote |= !std::isnan(ToFloat(y_[i]));
    }
    return wrote;
  }

  void Compare(emulator::Comparison* comparison) const {
    for (const Sequence& sequence : sequences_) {
      for (int64_t head = 0; head < arguments.heads; ++head) Compare(sequence, head, comparison);
    }
  }

  testing::Message Describe() const {
    testing::Message text;
    text << arguments.batch << " x " << arguments.sequence << ", " << arguments.heads << " heads of "
         << arguments.head_size << (is_steep_ ? ", steep" : "") << ", lengths";
    for (const Sequence& sequence : sequences_) text << " " << sequence.length;
    return text << (arguments.packed.count > 0  ? ", packed"
                    : arguments.mask == nullptr ? ""
                    : arguments.mask_is_int64   ? ", mask of int64"
                                                : ", mask of int32");
  }

  AttentionArguments<T> arguments = {};

 private:
  // The rows of one sequence, and which of its keys are seen.
  struct Sequence {
    int64_t first_row, length;
    std::vector<bool> seen;
  };

  void DrawSequences(emulator::Random* random, bool packed) {
    AttentionArguments<T>& a = arguments;
    const bool masked = !random->OneIn(4);
    a.mask_is_int64 = random->OneIn(2);
    offsets_[0] = static_cast<int32_t>(first_row_);
    for (int64_t s = 0; s < a.batch; ++s) {
      if (packed) {
        const int64_t length = random->OneIn(6) ? random->Between(0, 1) : random->Between(1, a.sequence);
        sequences_.push_back({offsets_[s], length, std::vector<bool>(length, true)});
        offsets_[s + 1] = static_cast<int32_t>(offsets_[s] + length);
        continue;
      }
      sequences_.push_back({s * a.sequence, a.sequence, std::vector<bool>(a.sequence, !masked)});
      if (masked) DrawMask(random, &sequences_.back().seen);
      for (int64_t key = 0; key < a.sequence; ++key) {
        // Any number but 0 shows a key.
        const bool seen = sequences_.back().seen[key];
        const int32_t word = seen ? static_cast<int32_t>(random->Between(1, 3)) : 0;
        const int64_t at = s * a.sequence + key;
        if (!a.mask_is_int64) {
          mask_.values()[at] = word;
        } else {
          const bool high = random->OneIn(4);
          mask_.values()[2 * at] = high ? 0 : word, mask_.values()[2 * at + 1] = high ? word : 0;
        }
      }
    }
    end_ = packed ? offsets_[a.batch] : rows_;
    if (packed) a.packed = {offsets_.data(), static_cast<int>(a.batch), static_cast<int>(rows_)};
    if (masked) a.mask = mask_.array.data();
    for (int64_t i = 0; packed && i < 2 * rows_; ++i) mask_.values()[i] = random->OneIn(2);  // not to be read
  }

  // Padding behind, in front, in the middle or everywhere, and holes.
  static void DrawMask(emulator::Random* random, std::vector<bool>* seen) {
    const int64_t count = static_cast<int64_t>(seen->size());
    const int64_t kind = random->Between(0, 4), from = random->Between(0, count), hole = random->Between(2, 20);
    for (int64_t key = 0; key < count; ++key) {
      (*seen)[key] = kind == 0   ? key < from
                     : kind == 1 ? key >= from
                     : kind == 2 ? !random->OneIn(hole)
                     : kind == 3 ? key < from && !random->OneIn(hole)
                                 : random->OneIn(hole);
    }
    if (random->OneIn(8)) seen->assign(count, false);
  }

  // Scores that grow from key to key, so that the maxima of earlier keys do not do for later ones. Then a rounded query
  // would show in the result: there is no bias to add.
  void MakeSteep() {
    is_steep_ = true;
    for (int64_t i = 0; i < columns_; ++i) bias_.values()[i] = FromFloat<T>(0);
    for (const Sequence& sequence : sequences_) {
      for (int64_t key = 0; key < sequence.length; ++key) {
        T* keys = qkv_.values() + (sequence.first_row + key) * 3 * columns_ + columns_;
        const float factor = 0.5f + 8.0f * static_cast<float>(key) / static_cast<float>(sequence.length);
        for (int64_t i = 0; i < columns_; ++i) keys[i] = FromFloat<T>(ToFloat(keys[i]) * factor);
      }
    }
  }

  // Rows of a sequence of one head's queries, keys or values, with their bias.
  std::vector<double> Part(const Sequence& sequence, int64_t head, int part) const {
    const int64_t size = arguments.head_size;
    std::vector<double> values(sequence.length * size);
    for (int64_t i = 0; i < sequence.length * size; ++i) {
      const int64_t column = part * columns_ + head * size + i % size;
      values[i] = qkv_[(sequence.first_row + i / size) * 3 * columns_ + column] + bias_[column];
    }
    return values;
  }

  void Compare(const Sequence& sequence, int64_t head, emulator::Comparison* comparison) const {
    const int64_t size = arguments.head_size, length = sequence.length;
    const std::vector<double> q = Part(sequence, head, 0), k = Part(sequence, head, 1), v = Part(sequence, head, 2);
    bool any = false;
    for (bool seen : sequence.seen) any |= seen;
    std::vector<double> weight(length * length, 0.0), result(length * size, 0.0), transposed(v.size());
    emulator::MultiplyReference(q.data(), k.data(), length, length, size, weight.data());
    for (int64_t query = 0; query < length; ++query) {
      double highest = -INFINITY, total = 0;
      double* const of_query = &weight[query * length];
      for (int64_t key = 0; key < length; ++key) {
        of_query[key] = !any ? 0 : sequence.seen[key] ? of_query[key] * arguments.scale : -INFINITY;
        highest = std::max(highest, of_query[key]);
      }
      for (int64_t key = 0; key < length; ++key) total += of_query[key] = std::exp(of_query[key] - highest);
      for (int64_t key = 0; key < length; ++key) of_query[key] /= total;
    }
    for (size_t i = 0; i < v.size(); ++i) transposed[i % size * length + i / size] = v[i];
    emulator::MultiplyReference(weight.data(), transposed.data(), length, size, length, result.data());
    for (int64_t i = 0; i < length * size; ++i) {
      comparison->Add(ToFloat(y_[(sequence.first_row + i / size) * columns_ + head * size + i % size]), result[i]);
    }
  }

  const int64_t columns_, first_row_, rows_;
  int64_t end_ = 0;  // behind the last row of a sequence
  emulator::LateArray<T> qkv_, bias_;
  emulator::LateArray<int32_t> mask_;
  emulator::DeviceArray<int32_t> offsets_;
  emulator::DeviceArray<T> y_;
  std::vector<Sequence> sequences_;
  bool is_steep_ = false, early_ = false;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_ATTENTION_PROBLEM_SM90_H_
