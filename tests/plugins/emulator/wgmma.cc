// Warpgroup products. A product reads its operands some time between the last warp's issuing it and its wait_group;
// a thread gets its results when it has waited itself, and its registers are NaNs until then.
#include <algorithm>
#include <cstring>

#include "emulator/hopper.h"
#include "emulator/product.h"
#include "emulator/state.h"

namespace emulator {
namespace {

constexpr int kThreads = 128;

// Where element i of thread t's accumulators is in the tile.
size_t PlaceOf(int t, int i, int columns) {
  const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
  return static_cast<size_t>(row) * columns + column;
}

// A matrix descriptor.
struct Descriptor {
  uint32_t start, leading, stride;  // bytes
  uint32_t span;                    // bytes that are swizzled over: 128, 64 or 32

  explicit Descriptor(uint64_t bits) {
    const auto field = [bits](int at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
    start = field(0), leading = field(16), stride = field(32);
    const int layout = static_cast<int>(bits >> 62);
    if (layout == 0) Fault("wgmma: a descriptor without swizzle, which is not modelled");
    span = 256u >> layout;
    if ((bits >> 49 & 7) != 0) Fault("wgmma: a descriptor with a base offset, which is not modelled");
    // The first of 8 rows, which the swizzle's pattern starts with.
    if (start % (8 * span) >= span) Fault("wgmma: a descriptor that starts within 8 rows");
  }
  uint32_t Swizzled(uint32_t address) const { return address ^ ((address >> 7 & (span / 16 - 1)) << 4); }
  // 16 bytes of a row of the matrix as it lies in memory (K-major), and of its k (MN-major).
  uint32_t OfRow(uint32_t row, uint32_t chunk) const {
    return Swizzled(start + row / 8 * stride + row % 8 * span + chunk * 16);
  }
  uint32_t OfK(uint32_t k, uint32_t chunk) const {
    return Swizzled(start + k / 8 * stride + k % 8 * span + chunk * 16 / span * leading + chunk * 16 % span);
  }
};

// a[64][k], from shared memory or from the warps' registers.
void ReadA(Block& block, const Product& product, int k, float* a) {
  constexpr const char* kName = "wgmma (first operand)";
  const Operand operand = product.shape.operand;
  const int per_chunk = k / 2;
  if (product.a_registers[0] == nullptr) {
    const Descriptor descriptor(product.a);
    for (int row = 0; row < kProductRows; ++row) {
      for (int chunk = 0; chunk < 2; ++chunk) {
        Widen(operand, SharedPointer(block, descriptor.OfRow(row, chunk), 16, 16, kName),
              a + row * k + chunk * per_chunk);
      }
    }
    return;
  }
  for (int row = 0; row < kProductRows; ++row) {
    for (int half = 0; half < 2; ++half) {
      uint32_t chunk[4];  // of the four threads that have the row
      for (int j = 0; j < 4; ++j) {
        const int thread = row / 16 * 32 + row % 8 * 4 + j;
        chunk[j] = product.a_registers[thread][half * 2 + row / 8 % 2];
      }
      Widen(operand, chunk, a + row * k + half * per_chunk);
    }
  }
}

// b[k][columns].
void ReadB(Block& block, const Product& product, int k, float* b) {
  constexpr const char* kName = "wgmma (second operand)";
  const int columns = product.shape.columns, per_chunk = k / 2;
  const Descriptor descriptor(product.b);
  if (product.shape.b_transposed) {
    for (int i = 0; i < k; ++i) {
      for (int chunk = 0; chunk < columns / 8; ++chunk) {
        const uint32_t address = descriptor.OfK(i, chunk);
        CheckFenced(block, address, 16, kName);
        Widen(product.shape.operand, SharedPointer(block, address, 16, 16, kName), b + i * columns + chunk * 8);
      }
    }
    return;
  }
  float values[16];
  for (int column = 0; column < columns; ++column) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      const uint32_t address = descriptor.OfRow(column, chunk);
      CheckFenced(block, address, 16, kName);
      Widen(product.shape.operand, SharedPointer(block, address, 16, 16, kName), values);
      for (int i = 0; i < per_chunk; ++i) b[(chunk * per_chunk + i) * columns + column] = values[i];
    }
  }
}

void FinishGroups(Warpgroup& group) {
  const auto unfinished = [&](int64_t number) {
    for (int64_t i = group.executed; i < group.first + static_cast<int64_t>(group.products.size()); ++i) {
      if (group.products[i - group.first].group <= number) return true;
    }
    return false;
  };
  bool any = false;
  while (!group.committed.empty() && group.committed.front() == kThreads && !unfinished(group.finished_groups)) {
    group.committed.pop_front();
    ++group.finished_groups;
    any = true;
  }
  while (group.first < group.executed) group.products.pop_front(), ++group.first;
  if (any) WakeAll(&group.waiting);
}

// The next product that all threads have issued.
void Execute(Block& block, Warpgroup& group) {
  const Product& product = group.products[group.executed - group.first];
  const Operand operand = product.shape.operand;
  const int k = operand == Operand::kE4m3 || operand == Operand::kInt8 ? 32 : 16, columns = product.shape.columns;
  static float a[kProductRows * kMaxProductK], b[kMaxProductK * kMaxProductColumns];
  ReadA(block, product, k, a);
  ReadB(block, product, k, b);
  if (!product.accumulate) std::fill(product.tile->values.begin(), product.tile->values.end(), 0.0f);
  const auto multiply = operand == Operand::kE4m3   ? MultiplyAddShort
                        : operand == Operand::kInt8 ? MultiplyAddIntegers
                                                    : MultiplyAdd;
  multiply(product.tile->values.data(), a, b, columns, k);
  ++group.executed;
  FinishGroups(group);
}

Warpgroup& OwnWarpgroup() {
  const Thread& thread = *The().current;
  if (thread.number / kThreads * kThreads + kThreads > The().count)
    Fault("wgmma by a warpgroup with fewer than 128 threads");
  return thread.block->warpgroups[thread.number / kThreads];
}

bool operator==(const ProductShape& x, const ProductShape& y) {
  return x.operand == y.operand && x.columns == y.columns && x.b_transposed == y.b_transposed;
}

}  // namespace

void Wgmma(const ProductShape& shape, float* d, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate) {
  Thread& thread = *The().current;
  Block& block = *thread.block;
  Warpgroup& group = OwnWarpgroup();
  const int t = static_cast<int>(thread.number % kThreads), count = shape.columns / 2;
  if (!thread.registers_fenced) Fault("wgmma without wgmma.fence since its registers were free to use");
  const auto own = std::find_if(thread.accumulators.begin(), thread.accumulators.end(),
                                [&](const AccumulatorRegisters& one) { return one.registers == d; });
  const bool under_way = own != thread.accumulators.end();

  const int64_t number = thread.products++;
  if (number - group.first == static_cast<int64_t>(group.products.size())) {
    Product product;
    product.shape = shape, product.a = a, product.b = b, product.accumulate = accumulate;
    product.group = thread.product_groups;
    product.tile = under_way ? own->tile : std::make_shared<AccumulatorTile>();
    if (!under_way) {
      product.tile->columns = shape.columns;
      product.tile->values.resize(size_t{kProductRows} * shape.columns);
    }
    group.products.push_back(product);
  }
  Product& product = group.products[number - group.first];
  if (!(product.shape == shape) || product.a != a || product.b != b || product.accumulate != accumulate ||
      product.group != thread.product_groups || product.tile->columns != shape.columns ||
      (under_way && own->tile != product.tile)) {
    Fault("wgmma differs between the threads of a warpgroup");
  }
  product.a_registers[t] = a_registers;
  if (under_way) {
    own->group = thread.product_groups;
  } else {
    for (int i = 0; i < count; ++i) product.tile->values[PlaceOf(t, i, shape.columns)] = d[i];
    std::memset(d, kPoison, count * sizeof(float));
    thread.accumulators.push_back({d, product.tile, thread.product_groups});
  }
  thread.has_uncommitted_products = true;
  if (++product.threads == kThreads) Begin(Async::kProduct, [&block, &group] { Execute(block, group); });
}

void FenceWgmma() { The().current->registers_fenced = true; }

void CommitWgmma() {
  Thread& thread = *The().current;
  Warpgroup& group = OwnWarpgroup();
  const int64_t number = thread.product_groups++;
  thread.has_uncommitted_products = false;
  while (static_cast<int64_t>(group.committed.size()) <= number - group.finished_groups) group.committed.push_back(0);
  if (++group.committed[number - group.finished_groups] == kThreads) FinishGroups(group);
}

void WaitWgmma(int pending) {
  Thread& thread = *The().current;
  Warpgroup& group = OwnWarpgroup();
  if (thread.has_uncommitted_products) Fault("wgmma.wait_group before the products were committed");
  const int64_t until = thread.product_groups - pending;
  while (group.finished_groups < until) {
    group.waiting.push_back(&thread);
    Wait("wgmma.wait_group");
  }
  thread.registers_fenced = false;
  const int t = static_cast<int>(thread.number % kThreads);
  auto& all = thread.accumulators;
  for (size_t i = all.size(); i-- > 0;) {
    if (all[i].group >= until) continue;
    const AccumulatorTile& tile = *all[i].tile;
    for (int e = 0; e < tile.columns / 2; ++e) {
      float& value = all[i].registers[e];
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      if (bits != 0xffffffffu) Fault("accumulators were written while a product was under way");
      value = tile.values[PlaceOf(t, e, tile.columns)];
    }
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace emulator
