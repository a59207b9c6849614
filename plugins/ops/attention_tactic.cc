#include "ops/attention_tactic.h"

#include <algorithm>

namespace bertfuse::cuda {
namespace {

using kernels::AttentionTile;
using kernels::CeilDiv;
using namespace kernels::attention_sm90;  // the tiles

static_assert(kFewQueries.keys == kLong.keys && kHeadSize128.keys == kLong.keys, "see IsDeterministicByRow()");
constexpr int64_t kShortKeys = 128;
// From so many tokens on mma's tiles of 128 keys take less time.
constexpr int64_t kLongForMoreKeys = 256;
// Mean length of packed sequences. On an H200, in us, 64x32 and 128x64 tiles: 32 passages of 142 tokens on average took
// 13.2 and 15.4, 32 of 188 took 20.5 and 18.9.
constexpr int64_t kFewKeysMean = 160;

// Each tile of queries rotates the keys that it sees: of longer sequences, without a window, too often. On an H100, 12
// heads of 64, in us by a launch for RoPE and inside: 1x128 5.9 and 4.7, 32x128 28.3 and 14.0, 8x512 40.3 and 36.8,
// 2x4096 307 and 450, with a window of 128 keys 65 and 43.
constexpr int64_t kLongestToRotate = 512;

// Few queries are spread over all multiprocessors, and padded ones take half as many steps where that takes no more
// keys: with 128 in place of 64, attention of 1x128 took 4.1 us and not 4.4 (bert-base on an H200), the model of 1x512
// 1% less, but 2x300, which is 5 steps of 64 and 3 of 128, 3% more. The limits of kFewQueries and kShort were found
// with bert-base (12 heads of 64), and no figures were kept: on another model, 'bertfuse tune' compares the tiles.
AttentionTile ChooseSm90(const AttentionProblem& problem) {
  const int64_t tiles = problem.batch * problem.heads * CeilDiv(problem.sequence, 128);
  if (tiles < problem.multiprocessors) {
    const bool even = CeilDiv(problem.sequence, kFewQueries.keys) % 2 == 0;
    // Blocks of 128 keys have more that a window does not show: with one of 128, 8x512 took 16.3 us on an H100, by
    // 64 13.1.
    const bool windowed = problem.window > 0 && problem.sequence > kShortKeys;
    return even && !windowed && !problem.packed && problem.head_size != 128 ? kFewQueries128 : kFewQueries;
  }
  if (problem.deterministic_rows) return problem.head_size == 128 ? kHeadSize128 : kLong;
  if (problem.head_size == 128) return problem.packed && problem.sequence <= 64 ? kFewQueries : kHeadSize128;
  if (problem.packed) return problem.sequence <= kFewKeysMean ? kFewKeys : kLong;
  // A variant's kernel of kShort took 10.1 us for 32x128 on an H100, that of kLong 9.0.
  return problem.sequence <= kShortKeys && !problem.variant ? kShort : kLong;
}

using kernels::attention_mma::TileShape;

bool Takes(const TileShape& shape, const AttentionProblem& problem) {
  return (shape.variants || !problem.variant) && Fits(shape, Narrow(shape), problem.shared_bytes);
}

// Whether the wide tiles are one and a half for each multiprocessor, or more. On an H200, in us by narrow and wide
// tiles of 128 keys: 8x256, which is 192 wide ones, 11.4 and 13.1; 4x384, 144, 13.8 and 16.0; but 256 of head size 128
// (32x128, 8 heads, tiles of 64 keys) 18.0 and 15.7.
bool FillsWide(const AttentionProblem& problem) {
  return 2 * problem.batch * problem.heads * CeilDiv(problem.sequence, 128) >= 3 * problem.multiprocessors;
}

// The row of mma's table that is chosen: the first where a row's bits count, or texts fit one tile. Float16 has others,
// too, which took an H200 these us (12 heads of 64) by tiles of 64x64, 64x128, 128x32 and 128x128: 1x128 4.7, 4.2, 6.8,
// 5.6; 8x128 7.2, 6.8, 8.3, 7.4; 32x128 16.4, 14.6, 13.8, 16.7; 32x256 39.0, 34.4, 34.4, 32.4; 32x384 73.5, 64.6, 66.3,
// 59.3; 16x512 62.7, 55.5, 57.5, 50.2. And 8 heads of 128 by 64x32, 128x32, 64x64 and 128x64: 32x128 20.2, 17.3, 18.0,
// 15.7; 16x512 90.9, 70.5, 75.0, 59.3.
TileShape ShapeOf(const AttentionProblem& problem) {
  const TileShape first = *kernels::attention_mma::FindTileShape(problem.math, problem.head_size);
  if (problem.deterministic_rows || problem.sequence <= Narrow(first).queries) return first;
  const bool more_keys = !FillsWide(problem) || problem.sequence >= kLongForMoreKeys || first.head_size > 64;
  const auto blocks = [&](const TileShape& shape) {
    return BlocksOn(shape, Narrow(shape).queries, problem.shared_bytes);
  };
  TileShape chosen = first;
  kernels::attention_mma::ForTileShapes(problem.math, problem.head_size, [&](const TileShape& shape) {
    const bool better = more_keys ? shape.keys > chosen.keys : shape.keys < chosen.keys;
    const bool overlap = blocks(shape) >= std::min(2, blocks(first));  // with 99 KiB one block of 64x64, head size 128
    if (better && overlap && Takes(shape, problem)) chosen = shape;
  });
  return chosen;
}

bool HasWide(const TileShape& shape, const AttentionProblem& problem) {
  return shape.HasWide() && !problem.positions && Fits(shape, Wide(shape), problem.shared_bytes);
}

// The sequence length from which on wide tiles take less time, where there are enough of them. On an H200, 12 heads, in
// us by narrow and wide tiles. Heads of 64: 32x128 14.6 and 16.7 in float16 (128 keys), 44.6 and 45.6 in float32, 30.8
// and 35.6 in TF32; 16x512 55.5 and 50.2, 283 and 260, 162 and 142. Heads of 32: 32x128 12.2 and 13.4, 31.3 and 30.9,
// 18.9 and 23.9; 32x256 31.1 and 28.3, 97.5 and 79.6, 48.1 and 55.8; 16x512 51.2 and 45.7, 179 and 147, 83 and 98.
int64_t LongForWide(kernels::attention_mma::Math math, const TileShape& shape) {
  using kernels::attention_mma::Math;
  if (shape.head_size == 32) return math == Math::kTf32 ? INT64_MAX : 256;
  const bool early = math == Math::kHalf && (shape.keys == 32 || shape.head_size == 128);
  return early ? Narrow(shape).queries + 1 : shape.keys > 64 ? 256 : 384;
}

// With 32 rows a warp keys and values are read from shared memory half as often, but there are half as many blocks:
// each multiprocessor must have tiles. Where two such blocks do not fit a multiprocessor (on 8.6, 8.9, 12.0 of head
// size 128, or of float32) the four warps of one cannot hide each other's waits: reasoned, and for 'bertfuse tune' to
// correct.
AttentionTile ChooseMma(const AttentionProblem& problem) {
  const TileShape shape = ShapeOf(problem);
  const AttentionTile wide = Wide(shape);
  const bool two_fit = BlocksOn(shape, wide.queries, problem.shared_bytes) >= 2;
  const bool suits = two_fit && FillsWide(problem) && problem.sequence >= LongForWide(problem.math, shape);
  return HasWide(shape, problem) && suits ? wide : Narrow(shape);
}

}  // namespace

std::vector<AttentionTactic> AttentionTactics(const AttentionProblem& problem) {
  std::vector<AttentionTactic> tactics;
  for (const kernels::BackendFacts& facts : kernels::kBackends) {
    if (!problem.backends.Has(facts.backend)) continue;
    if (facts.backend == Backend::kSimt) {
      tactics.push_back({facts.backend});
      continue;
    }
    if (facts.backend == Backend::kMma) {
      kernels::attention_mma::ForTileShapes(problem.math, problem.head_size, [&](const TileShape& shape) {
        if (!Takes(shape, problem)) return;
        tactics.push_back({Backend::kMma, Narrow(shape)});
        if (HasWide(shape, problem)) tactics.push_back({Backend::kMma, Wide(shape)});
      });
      continue;
    }
    for (const AttentionTile& tile : kAttentionTiles) {
      const bool suits = !(tile == kShort) || problem.packed || problem.sequence <= kShortKeys;
      if (!suits || !HasAttentionTile(tile, problem.head_size, problem.packed)) continue;
      tactics.push_back({Backend::kSm90, tile});
      if (problem.rotates) tactics.push_back({Backend::kSm90, tile, true});
    }
  }
  return tactics;
}

bool HasTactic(const AttentionProblem& problem, const AttentionTactic& tactic) {
  const std::vector<AttentionTactic> tactics = AttentionTactics(problem);
  return std::any_of(tactics.begin(), tactics.end(), [&](const AttentionTactic& own) {
    return own.backend == tactic.backend && own.tile == tactic.tile && own.rotates == tactic.rotates;
  });
}

AttentionTactic ChooseAttentionTactic(const AttentionProblem& problem) {
  // Hopper's kernels find new row maxima whenever one of a warp's 16 rows needs them, and that row may be padding.
  const bool same_rows = problem.packed || !problem.deterministic_rows;
  // On an H200 mma.sync took 18% to 55% more time for a window of 128 keys, heads of 64, and less for one of 32, heads
  // of 32. In between nothing was measured: the limit, a tile of keys, is a guess, and for 'bertfuse tune' to correct.
  const bool few_keys = problem.window > 0 && problem.window < kLong.keys;
  if (problem.backends.Has(Backend::kSm90) && same_rows && !few_keys) {
    const bool few = !problem.deterministic_rows && problem.sequence <= kLongestToRotate;  // in whatever batch, or not
    if (problem.rotates && (problem.window > 0 || few)) {
      AttentionProblem variant = problem;
      variant.variant = true;
      return {Backend::kSm90, ChooseSm90(variant), true};
    }
    return {Backend::kSm90, ChooseSm90(problem)};
  }
  if (problem.backends.Has(Backend::kMma)) return {Backend::kMma, ChooseMma(problem)};
  return {Backend::kSimt};
}

bool IsDeterministicByRow(const AttentionProblem& problem, const AttentionTactic& tactic) {
  const AttentionTactic chosen = ChooseAttentionTactic(problem);
  // Tiles with the same number of keys add up in the same order, whatever else differs.
  const int keys = chosen.backend == Backend::kSm90 ? kLong.keys : chosen.tile.keys;
  return tactic.backend == chosen.backend && tactic.tile.keys == keys && tactic.rotates == chosen.rotates;
}

std::string Describe(const AttentionTactic& tactic) {
  const std::string name = kernels::FactsOf(tactic.backend).name;
  if (tactic.tile.queries == 0) return name;
  const std::string tile = std::to_string(tactic.tile.queries) + "x" + std::to_string(tactic.tile.keys);
  const std::string pipelines = tactic.tile.pipelines > 1 ? " pipelines " + std::to_string(tactic.tile.pipelines) : "";
  return name + " " + tile + pipelines + (tactic.rotates ? ", rotates" : "");
}

}  // namespace bertfuse::cuda
