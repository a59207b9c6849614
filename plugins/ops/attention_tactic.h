// Choosing how to compute attention; launching it is ops/fused_attention.cc.
#ifndef BERTFUSE_OPS_ATTENTION_TACTIC_H_
#define BERTFUSE_OPS_ATTENTION_TACTIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/mma/attention.h"

namespace bertfuse::cuda {

using kernels::Backend;

struct AttentionTactic {
  Backend backend;
  kernels::AttentionTile tile = {};  // of a backend that does not choose it itself
  bool rotates = false;              // Q and K, which otherwise a launch before attention does
};

// What a choice may depend on. For packed sequences `batch` is their number and `sequence` their expected mean length:
// only the device knows the lengths.
struct AttentionProblem {
  int64_t batch, sequence, heads, head_size;
  kernels::BackendSet backends;  // those that run on the device and take dtype, head size and alignment
  int multiprocessors;
  bool packed = false;
  bool deterministic_rows = false;  // tiles that give a sequence the same bits in any batch
  int shared_bytes = 227 << 10;     // most dynamic shared memory of one block
  bool variant = false;             // not AttentionVariant::IsPlain(): only some of Hopper's tiles are chosen
  bool positions = false;           // vectors by distance: of mma's tiles the narrow ones are compiled
  bool rotates = false;             // Q and K may be rotated by Hopper's attention
  int64_t window = 0;               // keys that a query may see, 0: those of its sequence
  kernels::attention_mma::Math math = kernels::attention_mma::Math::kHalf;  // of mma's tiles
};

// Every tactic that computes the problem, in an order that does not change from call to call.
std::vector<AttentionTactic> AttentionTactics(const AttentionProblem& problem);

// Whether a tactic that was found for the same sizes is one of the problem's: variants do not have all.
bool HasTactic(const AttentionProblem& problem, const AttentionTactic& tactic);

// The one to use unless a measurement on the user's device says otherwise.
AttentionTactic ChooseAttentionTactic(const AttentionProblem& problem);

// Whether a sequence's bits are those that ChooseAttentionTactic() gives it in every other batch.
bool IsDeterministicByRow(const AttentionProblem& problem, const AttentionTactic& tactic);

// "sm90 128x64 pipelines 2", "mma 64x64": queries and keys of a tile. Different tactics of one problem have different
// names.
std::string Describe(const AttentionTactic& tactic);

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_ATTENTION_TACTIC_H_
