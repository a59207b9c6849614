// How many packed rows the host expects, and what kernels and host work out from a number of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "kernels/last_wave.h"
#include "ops/row_hints.h"

namespace bertfuse::cuda {
namespace {

class RowHintsTest : public testing::Test {
 protected:
  std::vector<uint64_t> slots = std::vector<uint64_t>(RowHints::kSlots, 0);
  RowHints hints = RowHints(slots.data());
};

TEST_F(RowHintsTest, NothingIsKnownAtFirst) {
  EXPECT_EQ(hints.Expected(4096), 4096);
  EXPECT_EQ(RowHints(nullptr).Expected(4096), 4096);
  EXPECT_EQ(RowHints(nullptr).Slot(4096), nullptr);
}

TEST_F(RowHintsTest, TheLastCountIsExpected) {
  *hints.Slot(4096) = RowHints::Encode(4096, 1683);
  EXPECT_EQ(hints.Expected(4096), 1683);
  *hints.Slot(4096) = RowHints::Encode(4096, 17);
  EXPECT_EQ(hints.Expected(4096), 17);
}

TEST_F(RowHintsTest, IsAtLeastOneRowAndAtMostTheCapacity) {
  *hints.Slot(4096) = RowHints::Encode(4096, 0);
  EXPECT_EQ(hints.Expected(4096), 1);
  *hints.Slot(4096) = RowHints::Encode(4096, -5);
  EXPECT_EQ(hints.Expected(4096), 4096);
}

TEST_F(RowHintsTest, AnotherCapacitysCountIsNoAnswer) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const int64_t capacity = random() % INT32_MAX + 1;
    volatile uint64_t* slot = hints.Slot(capacity);
    ASSERT_GE(slot, slots.data());
    ASSERT_LT(slot, slots.data() + slots.size());
    const int64_t count = random() % capacity + 1;
    *slot = RowHints::Encode(capacity, count);
    ASSERT_EQ(hints.Expected(capacity), count) << capacity;
    const int64_t other = random() % INT32_MAX + 1;
    if (other != capacity && hints.Slot(other) == slot) {
      EXPECT_EQ(hints.Expected(other), other) << capacity;
    }
  }
}

TEST_F(RowHintsTest, BatchesOfUsualSizesShareNoSlot) {
  std::set<int64_t> capacities;
  std::set<const volatile uint64_t*> taken;
  for (int batch : {1, 2, 4, 8, 16, 32, 64, 128}) {
    for (int length : {16, 32, 48, 64, 96, 128, 192, 256, 384, 512}) {
      capacities.insert(batch * length), taken.insert(hints.Slot(batch * length));
    }
  }
  EXPECT_EQ(taken.size(), capacities.size());
}

TEST_F(RowHintsTest, CapacitiesThatNoBatchHas) {
  for (int64_t capacity : {int64_t{0}, int64_t{-1}, int64_t{INT32_MAX} + 1}) {
    EXPECT_EQ(hints.Slot(capacity), nullptr);
    EXPECT_EQ(hints.Expected(capacity), capacity);
  }
}

TEST(RoundedRows, EightBetweenPowersOfTwo) {
  EXPECT_EQ(RoundedRows(1), 1);
  EXPECT_EQ(RoundedRows(15), 15);
  EXPECT_EQ(RoundedRows(17), 18);
  EXPECT_EQ(RoundedRows(4096), 4096);
  EXPECT_EQ(RoundedRows(2844), 3072);
  EXPECT_EQ(RoundedRows(2844, 32), 2880);
  EXPECT_EQ(RoundedRows(63, 32), 63);
  std::mt19937 random(2);
  for (int i = 0; i < 10000; ++i) {
    const int64_t rows = random() % 1000000 + 1, rounded = RoundedRows(rows);
    EXPECT_GE(rounded, rows);
    EXPECT_LE(rounded, rows + rows / 8 + 1);
    EXPECT_EQ(RoundedRows(rounded), rounded) << rows;
  }
}

// What the kernels work out in 32 bits is what the host does in 64, and workspace for MaxRowsLeft() is enough.
TEST(LastWave, WhatIsLeftOfAnyNumberOfRowsFits) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const kernels::LastWave wave = {static_cast<int>(128 << random() % 2), static_cast<int>(random() % 40 + 1),
                                    static_cast<int>(random() % 140 + 1)};
    const int64_t capacity = random() % 40000 + 1, rows = random() % (capacity + 1);
    const int64_t panels = Panels(wave, rows), full = FullPanels(wave, panels);
    ASSERT_EQ(full, FullPanels(wave, static_cast<int>(panels)));
    ASSERT_EQ(panels, Panels(wave, static_cast<int>(rows)));
    ASSERT_EQ(panels, (rows + wave.panel_rows - 1) / wave.panel_rows);
    ASSERT_LE(full, panels);
    // Full panels are full waves' tiles, and one more panel would not be.
    const int64_t whole_waves = panels * wave.tiles_per_panel / wave.clusters * wave.clusters;
    ASSERT_LE(full * wave.tiles_per_panel, whole_waves);
    ASSERT_GT((full + 1) * wave.tiles_per_panel, whole_waves);
    ASSERT_EQ(RowsOfFullPanels(wave, rows), std::min<int64_t>(full * wave.panel_rows, rows));
    // Every row that is written to partial sums, those beyond the last row in its tile among them.
    const int64_t written = std::min((panels - full) * wave.panel_rows, capacity);
    ASSERT_LE(written, MaxRowsLeft(wave, capacity)) << wave.panel_rows << " " << wave.tiles_per_panel << " "
                                                    << wave.clusters << " rows " << rows << " of " << capacity;
  }
}

}  // namespace
}  // namespace bertfuse::cuda
