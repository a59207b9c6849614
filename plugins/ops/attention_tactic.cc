#include "ops/attention_tactic.h"

namespace bertfuse::cuda {
namespace {

using kernels::AttentionSm90Tile;
using kernels::CeilDiv;
using namespace kernels::attention_sm90;  // the tiles

static_assert(kFewQueries.keys == kLong.keys && kHeadSize128.keys == kLong.keys, "see IsDeterministicByRow()");
constexpr int64_t kShortKeys = 128;
// Mean length of packed sequences. On an H200, in us, 64x32 and 128x64 tiles: 32 passages of 142 tokens on average took
// 13.2 and 15.4, 32 of 188 took 20.5 and 18.9.
constexpr int64_t kFewKeysMean = 160;

// Few queries are spread over all multiprocessors, and padded ones take half as many steps where that takes no more
// keys: with 128 in place of 64, attention of 1x128 took 4.1 us and not 4.4 (bert-base on an H200), the model of 1x512
// 1% less, but 2x300, which is 5 steps of 64 and 3 of 128, 3% more. The limits of kFewQueries and kShort were found
// with bert-base (12 heads of 64), and no figures were kept: on another model, 'bertfuse tune' compares the tiles.
AttentionSm90Tile ChooseSm90(const AttentionProblem& problem) {
  const int64_t tiles = problem.batch * problem.heads * CeilDiv(problem.sequence, 128);
  if (tiles < problem.multiprocessors) {
    const bool even = CeilDiv(problem.sequence, kFewQueries.keys) % 2 == 0;
    return even && !problem.packed && problem.head_size != 128 ? kFewQueries128 : kFewQueries;
  }
  if (problem.deterministic_rows) return problem.head_size == 128 ? kHeadSize128 : kLong;
  if (problem.head_size == 128) return problem.packed && problem.sequence <= 64 ? kFewQueries : kHeadSize128;
  if (problem.packed) return problem.sequence <= kFewKeysMean ? kFewKeys : kLong;
  return problem.sequence <= kShortKeys ? kShort : kLong;
}

}  // namespace

std::vector<AttentionTactic> AttentionTactics(const AttentionProblem& problem) {
  std::vector<AttentionTactic> tactics;
  if (problem.sm90) {
    for (const AttentionSm90Tile& tile : kAttentionTiles) {
      const bool suits = !(tile == kShort) || problem.packed || problem.sequence <= kShortKeys;
      if (suits && HasAttentionTile(tile, problem.head_size, problem.packed)) {
        tactics.push_back({AttentionPath::kSm90, tile});
      }
    }
  }
  if (problem.mma) tactics.push_back({AttentionPath::kMma});
  tactics.push_back({AttentionPath::kSimt});
  return tactics;
}

AttentionTactic ChooseAttentionTactic(const AttentionProblem& problem) {
  // Hopper's kernels find new row maxima whenever one of a warp's 16 rows needs them, and that row may be padding.
  if (problem.sm90 && (problem.packed || !problem.deterministic_rows)) {
    return {AttentionPath::kSm90, ChooseSm90(problem)};
  }
  return {problem.mma ? AttentionPath::kMma : AttentionPath::kSimt};
}

bool IsDeterministicByRow(const AttentionProblem& problem, const AttentionTactic& tactic) {
  const AttentionTactic chosen = ChooseAttentionTactic(problem);
  // Tiles with the same number of keys add up in the same order, whatever else differs.
  return tactic.path == chosen.path && (tactic.path != AttentionPath::kSm90 || tactic.tile.keys == kLong.keys);
}

std::string Describe(const AttentionTactic& tactic) {
  if (tactic.path != AttentionPath::kSm90) return tactic.path == AttentionPath::kMma ? "mma" : "simt";
  const std::string tile = std::to_string(tactic.tile.queries) + "x" + std::to_string(tactic.tile.keys);
  return "sm90 " + tile + (tactic.tile.pipelines > 1 ? " pipelines " + std::to_string(tactic.tile.pipelines) : "");
}

}  // namespace bertfuse::cuda
