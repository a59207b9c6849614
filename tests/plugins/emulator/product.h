// The arithmetic of warpgroup products, in a file that is compiled for speed.
#ifndef BERTFUSE_TESTS_PLUGINS_EMULATOR_PRODUCT_H_
#define BERTFUSE_TESTS_PLUGINS_EMULATOR_PRODUCT_H_

#include <cstdint>

#include "emulator/machine.h"

namespace emulator {

constexpr int kProductRows = 64, kProductKBytes = 32, kMaxProductK = 32, kMaxProductColumns = 256;

// 16 bytes of elements as float32.
void Widen(Operand operand, const void* bytes, float* values);

// tile[64][columns] += a[64][k] * b[k][columns], one k after the other.
void MultiplyAdd(float* tile, const float* a, const float* b, int columns, int k);

// The same of 8-bit floats, as Hopper's tensor cores were found to do it (DeepSeek-V3's technical report, 3.3.2): what
// is added is cut off 13 bits behind the largest one's first. So a sum keeps 14 bits from one k of 32 to the next.
void MultiplyAddShort(float* tile, const float* a, const float* b, int columns, int k);

// The same of integers, whose sums are in int32.
void MultiplyAddIntegers(float* tile, const float* a, const float* b, int columns, int k);

// product[rows][columns] = x[rows][k] * weight[columns][k] transposed: what tests compare with.
void MultiplyReference(const double* x, const double* weight, int64_t rows, int64_t columns, int64_t k,
                       double* product);

}  // namespace emulator
#endif  // BERTFUSE_TESTS_PLUGINS_EMULATOR_PRODUCT_H_
