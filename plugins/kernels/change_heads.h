#ifndef BERTFUSE_KERNELS_CHANGE_HEADS_H_
#define BERTFUSE_KERNELS_CHANGE_HEADS_H_

#include "kernels/attention.h"
#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// out[rows, (heads + 2 kv_heads) * head_size] = qkv + bias, of which each head of Q and of K is divided by its root
// mean square and scaled by a gamma, and then rotated by the angles of its token's place: what attention with RoPE
// reads. Rows are whole sequences, one after the other: of one length, or where `packed` has sequences (see
// attention.h) of those that cu_seqlens says. `out` may be qkv itself where there is neither bias nor gamma. There,
// and with `keeps_values`, V's columns of `out` are not written. Rows of no sequence never are, and whatever the
// offsets are, nothing outside of the tables is read.
template <class T>
struct ChangeHeadsArguments {
  const T* qkv;
  const T* bias;  // may be null
  const T* cos;   // [places, rotated], as sin is; null: nothing is rotated
  const T* sin;
  const T* q_gamma;  // [head_size]; null: nothing is normalised
  const T* k_gamma;
  T* out;
  int64_t rows, sequence, places, heads, kv_heads, head_size;
  int64_t rotated;     // pairs of columns, at most half of a head
  bool neighbours;     // columns 2i and 2i + 1 are a pair, not i and i + rotated
  float epsilon;       // added to the mean square
  float gamma_offset;  // added to gammas
  PackedSequences packed;
  int64_t expected;  // of the rows, where they are packed, as in PackedRows
  // Given: a number of each row that modulo `places` is its row of the tables, whatever sequence it is of, and where
  // rows are packed as in PackedRows, how many there are. Numbers below 0 read the first row.
  const int32_t* row_places = nullptr;
  const int32_t* row_count = nullptr;
  bool keeps_values = false;  // nothing is written in V's place
};

// cudaErrorInvalidValue where there are too many heads for a grid.
template <class T>
cudaError_t ChangeHeads(const ChangeHeadsArguments<T>& arguments, const Device& device, cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_CHANGE_HEADS_H_
