#include "emulator/product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

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
