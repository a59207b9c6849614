// Which tokens of a padded batch are real, and rows on their way between the padded batch and the packed rows.
#ifndef BERTFUSE_KERNELS_PACKING_H_
#define BERTFUSE_KERNELS_PACKING_H_

#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// From mask [sequences, length], where 0 is padding. sequences * length is less than 2^31.
template <class Index>
struct PackTokensArguments {
  const Index* mask;
  int64_t sequences, length;
  int32_t* token_index;  // [sequences, length]: places of real tokens in order, then those of padding
  int32_t* cu_seqlens;   // [sequences + 1]
  int32_t* row_count;    // one
  // Gets (sequences * length) << 32 | *row_count, for the host to read some time later; may be null.
  uint64_t* hint;
};

// The kernels that come next begin when all of it is written.
template <class Index>
cudaError_t PackTokens(const PackTokensArguments<Index>& arguments, const Device& device, cudaStream_t stream);

// y[places], rows of row_bytes, from x[rows]: row i of the first *packed.row_count goes to place token_index[i], and
// places that the rest of token_index names get zeros. An index that is no place is skipped.
struct UnpackTokensArguments {
  const void* x;
  const int32_t* token_index;  // [places]
  void* y;
  int64_t rows, places, row_bytes;
  PackedRows packed;
};

cudaError_t UnpackTokens(const UnpackTokensArguments& arguments, const Device& device, cudaStream_t stream);

// y[sequences] = row cu_seqlens[i] of x[rows], zeros for a sequence without a row. Of offsets out of range the nearest
// row is taken.
struct FirstTokensArguments {
  const void* x;
  const int32_t* cu_seqlens;  // [sequences + 1]
  void* y;
  int64_t rows, sequences, row_bytes;
};

cudaError_t FirstTokens(const FirstTokensArguments& arguments, const Device& device, cudaStream_t stream);

// Of each token which sequence it is of and its place in it. Of offsets that do not ascend from 0 to `tokens`, and of
// sequences that are longer than `longest`, all that is sure is that sequence_ids are below `sequences` and
// position_ids below `longest`. There is at least one sequence, and `longest` is at least 1.
template <class Index>
struct RaggedPositionsArguments {
  const int32_t* cu_seqlens;  // [sequences + 1]
  Index* sequence_ids;        // [tokens]
  Index* position_ids;        // [tokens]
  int64_t tokens, sequences, longest;
};

template <class Index>
cudaError_t RaggedPositions(const RaggedPositionsArguments<Index>& arguments, const Device& device,
                            cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKING_H_
