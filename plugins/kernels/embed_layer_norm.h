#ifndef BERTFUSE_KERNELS_EMBED_LAYER_NORM_H_
#define BERTFUSE_KERNELS_EMBED_LAYER_NORM_H_

#include "kernels/launch.h"
#include "kernels/packed_rows.h"

namespace bertfuse::kernels {

// y[batch, sequence, columns] = LayerNorm(word[ids] + token_type[token_type_ids] + position[position_ids]).
// Token types, positions and their ids may be null; with a table of positions but no ids they run from 0. A negative id
// counts from the table's end, as in ONNX Gather; an id outside its table makes that row NaN, since the host can't look
// at it. With token_index row i is of token token_index[i] of batch * sequence; one outside of them makes the row NaN,
// too.
template <class T, class Index>
struct EmbedLayerNormArguments {
  const Index* ids;
  const Index* token_type_ids;
  const Index* position_ids;
  const int32_t* token_index;  // may be null
  const T* word_table;
  const int8_t* word_integers;  // in place of word_table: row i is word_scales[i] times integers
  const float* word_scales;
  const T* token_type_table;
  const T* position_table;
  const T* gamma;
  const T* beta;
  T* y;
  int64_t rows, sequence, columns;
  int64_t words, token_types, positions;
  float epsilon;
  PackedRows packed;  // of the rows; nothing is written from *row_count on
  // Choose the kernel regardless of the number of rows, so that a row's bits are the same in any batch.
  bool deterministic_rows;
};

// Whether rows are narrow enough.
template <class T, class Index>
bool EmbedLayerNormSupports(const EmbedLayerNormArguments<T, Index>& arguments);

// Rows that are too wide give cudaErrorInvalidValue.
template <class T, class Index>
cudaError_t EmbedLayerNorm(const EmbedLayerNormArguments<T, Index>& arguments, const Device& device,
                           cudaStream_t stream);

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_EMBED_LAYER_NORM_H_
