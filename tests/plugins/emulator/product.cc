#include "emulator/product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace emulator {
namespace {

template <class T, class Bits>
const float* MakeTable() {
  static const std::vector<float> table = [] {
    std::vector<float> values(size_t{1} << 8 * sizeof(Bits));
    for (size_t i = 0; i < values.size(); ++i) {
      const Bits bits = static_cast<Bits>(i);
      T element;
      std::memcpy(static_cast<void*>(&element), &bits, sizeof(bits));
      values[i] = static_cast<float>(element);
    }
    return values;
  }();
  return table.data();
}

template <class T, class Bits>
void WidenBy(const void* bytes, float* values) {
  static const float* const table = MakeTable<T, Bits>();
  Bits elements[16 / sizeof(Bits)];
  std::memcpy(elements, bytes, 16);
  for (Bits element : elements) *values++ = table[element];
}

}  // namespace

void Widen(Operand operand, const void* bytes, float* values) {
  switch (operand) {
    case Operand::kHalf:
      return WidenBy<__half, uint16_t>(bytes, values);
    case Operand::kBfloat16:
      return WidenBy<__nv_bfloat16, uint16_t>(bytes, values);
    case Operand::kE4m3:
      return WidenBy<__nv_fp8_e4m3, uint8_t>(bytes, values);
    case Operand::kInt8:
      for (int i = 0; i < 16; ++i) values[i] = static_cast<const int8_t*>(bytes)[i];
  }
}

void MultiplyAdd(float* tile, const float* a, const float* b, int columns, int k) {
  for (int row = 0; row < kProductRows; ++row) {
    float* __restrict sums = tile + row * columns;
    for (int i = 0; i < k; ++i) {
      const float x = a[row * k + i];
      const float* __restrict of_b = b + i * columns;
      for (int column = 0; column < columns; ++column) sums[column] += x * of_b[column];
    }
  }
}

void MultiplyAddShort(float* tile, const float* a, const float* b, int columns, int k) {
  for (int row = 0; row < kProductRows; ++row) {
    float* __restrict sums = tile + row * columns;
    float largest[kMaxProductColumns], unit[kMaxProductColumns], scale[kMaxProductColumns];
    int32_t total[kMaxProductColumns];
    bool finite = true;
    for (int column = 0; column < columns; ++column) largest[column] = std::fabs(sums[column]);
    for (int i = 0; i < k; ++i) {
      const float x = a[row * k + i];
      const float* __restrict of_b = b + i * columns;
      for (int column = 0; column < columns; ++column) {
        const float product = std::fabs(x * of_b[column]);
        finite &= product - product == 0;
        largest[column] = product > largest[column] ? product : largest[column];
      }
    }
    for (int column = 0; column < columns; ++column) {
      int exponent = 0;
      finite &= sums[column] - sums[column] == 0;
      std::frexp(largest[column], &exponent);
      unit[column] = std::ldexp(1.0f, exponent - 14), scale[column] = std::ldexp(1.0f, 14 - exponent);
      total[column] = 0;
    }
    if (!finite) {
      for (int i = 0; i < k; ++i) {
        for (int column = 0; column < columns; ++column) sums[column] += a[row * k + i] * b[i * columns + column];
      }
      continue;
    }
    for (int column = 0; column < columns; ++column) total[column] = static_cast<int32_t>(sums[column] * scale[column]);
    for (int i = 0; i < k; ++i) {
      const float x = a[row * k + i];
      const float* __restrict of_b = b + i * columns;
      for (int column = 0; column < columns; ++column) {
        total[column] += static_cast<int32_t>(x * of_b[column] * scale[column]);
      }
    }
    for (int column = 0; column < columns; ++column) sums[column] = static_cast<float>(total[column]) * unit[column];
  }
}

void MultiplyAddIntegers(float* tile, const float* a, const float* b, int columns, int k) {
  for (int row = 0; row < kProductRows; ++row) {
    int32_t total[kMaxProductColumns];
    std::memcpy(total, tile + row * columns, columns * sizeof(int32_t));
    for (int i = 0; i < k; ++i) {
      const auto x = static_cast<int32_t>(a[row * k + i]);
      for (int column = 0; column < columns; ++column)
        total[column] += x * static_cast<int32_t>(b[i * columns + column]);
    }
    std::memcpy(tile + row * columns, total, columns * sizeof(int32_t));
  }
}

void MultiplyReference(const double* x, const double* weight, int64_t rows, int64_t columns, int64_t k,
                       double* product) {
  std::vector<double> transposed(k * columns);
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t i = 0; i < k; ++i) transposed[i * columns + column] = weight[column * k + i];
  }
  for (int64_t row = 0; row < rows; ++row) {
    double* __restrict sums = product + row * columns;
    for (int64_t i = 0; i < k; ++i) {
      const double value = x[row * k + i];
      const double* __restrict of_k = transposed.data() + i * columns;
      for (int64_t column = 0; column < columns; ++column) sums[column] += value * of_k[column];
    }
  }
}

}  // namespace emulator
