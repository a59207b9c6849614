// Attention of Hopper in the emulator: every tile that is compiled for each head size, padded and packed.
#include <gtest/gtest.h>

#include "emulator/attention_problem_sm90.h"

namespace bertfuse::kernels {
namespace {

using attention_sm90::HasAttentionTile;
using attention_sm90::kAttentionTiles;
using emulator::Random;

template <class T>
void TestAttention(bool packed, int count_of_each) {
  Random random(emulator::Seed());
  double worst = 0;
  int count = 0;
  for (const AttentionTile& tile : kAttentionTiles) {
    for (int64_t head_size = 32; head_size <= 128; head_size *= 2) {
      if (!HasAttentionTile(tile, head_size, packed)) continue;
      for (int i = 0; i < count_of_each; ++i) {
        const int64_t longest = random.OneIn(3) ? 40 : random.OneIn(3) ? 300 : 150;
        const typename AttentionSm90Problem<T>::Size size = {random.Between(1, packed ? 40 : 3) * 40 / longest + 1,
                                                             random.Between(1, longest), random.Between(1, 3),
                                                             head_size};
        AttentionSm90Problem<T> problem(&random, size, packed);
        emulator::Settings& settings = emulator::TheSettings();
        settings.compute_capability = 90, settings.multiprocessors = static_cast<int>(random.Between(1, 3));
        settings.blocks_per_multiprocessor = tile.queries == 64 && head_size != 128 ? 2 : 1;
        settings.shared_bytes = 227 << 10, settings.seed = random.Seed();
        const Device device = {settings.multiprocessors, 90, settings.multiprocessors, settings.shared_bytes};
        SCOPED_TRACE(problem.Describe() << ", tile " << tile.queries << " x " << tile.keys << ", " << tile.pipelines
                                        << " pipelines");
        problem.Prepare();
        emulator::TakeSharedAccesses();
        const cudaError_t error = AttentionSm90(problem.arguments, tile, device, nullptr);
        settings.dependencies_end = nullptr;
        ASSERT_EQ(error, cudaSuccess) << emulator::TakeFault();
        EXPECT_EQ(emulator::TakeSharedAccesses().conflicts, 0);
        EXPECT_FALSE(problem.wrote_early()) << "results were written before the kernels before had ended";
        EXPECT_FALSE(problem.wrote_outside());
        emulator::Comparison comparison(emulator::ToleranceOf("FusedAttention", emulator::kDtype<T>));
        problem.Compare(&comparison);
        ASSERT_LE(comparison.worst(), 1);
        worst = std::max(worst, comparison.worst());
        ++count;
      }
    }
  }
  std::printf("%d problems, the worst error is %.2f of what is allowed\n", count, worst);
}

TEST(EmulatedAttentionSm90, PaddedFloat16) { TestAttention<__half>(false, 4); }
TEST(EmulatedAttentionSm90, PaddedBfloat16) { TestAttention<__nv_bfloat16>(false, 4); }
TEST(EmulatedAttentionSm90, PackedFloat16) { TestAttention<__half>(true, 4); }
TEST(EmulatedAttentionSm90, PackedBfloat16) { TestAttention<__nv_bfloat16>(true, 4); }

}  // namespace
}  // namespace bertfuse::kernels
