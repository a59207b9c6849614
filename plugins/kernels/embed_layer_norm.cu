#include "kernels/after_packing.cuh"
#include "kernels/embed_layer_norm.h"
#include "kernels/row_norm.cuh"
#include "kernels/warp_row.cuh"

namespace bertfuse::kernels {
namespace {

// The table's row, or null where the id is outside it.
template <class T>
__device__ __forceinline__ const T* Row(const T* table, int64_t id, int64_t size, int64_t columns) {
  id += id < 0 ? size : 0;
  return id >= 0 && id < size ? table + id * columns : nullptr;
}

// One row of each table; null where an id is outside its table, and where the table is not given.
template <class T>
struct TableRows {
  const T *word, *position, *token_type;
  const int8_t* integers;  // of a quantised word table, and their scale
  float scale;
  bool inside;
};

// `placed`: there is a table of positions.
template <class T, class Index>
__device__ __forceinline__ TableRows<T> FindRows(const EmbedLayerNormArguments<T, Index>& a, int64_t at, bool placed) {
  if (a.token_index != nullptr) {
    at = a.token_index[at];
    if (at < 0 || at >= a.rows) return {};
  }
  TableRows<T> rows = {};
  const int64_t id = a.ids[at];
  if (a.word_integers == nullptr) {
    rows.word = Row(a.word_table, id, a.words, a.columns);
  } else {
    rows.integers = Row(a.word_integers, id, a.words, a.columns);
    if (rows.integers != nullptr) rows.scale = a.word_scales[id < 0 ? id + a.words : id];
  }
  if (placed) {
    const int64_t position = a.position_ids != nullptr ? static_cast<int64_t>(a.position_ids[at]) : at % a.sequence;
    rows.position = Row(a.position_table, position, a.positions, a.columns);
  }
  const bool typed = a.token_type_ids != nullptr;
  rows.token_type = typed ? Row(a.token_type_table, a.token_type_ids[at], a.token_types, a.columns) : nullptr;
  rows.inside = (rows.word != nullptr || rows.integers != nullptr) && (rows.position != nullptr || !placed) &&
                (rows.token_type != nullptr || !typed);
  return rows;
}

// 16-bit tables, a warp for each row. kTables is 1 for words alone; else token types may be absent, positions may not:
// where that is asked for each row, rows of up to 512 columns take 86 registers, not 80 (sm_90), and one block fewer
// fits.
template <class T, class Index, int kChunks, int kTables>
__global__ void __launch_bounds__(kWarpRowThreads, kChunks > 3 ? 3 : 4)
    EmbedLayerNormWarpKernel(EmbedLayerNormArguments<T, Index> a) {
  const int columns = static_cast<int>(a.columns);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  BeginFirst(a.packed);
  const int64_t count = RealRows(a.packed, a.rows);
  WarpRow<T, kChunks> rows[kTables], gamma, beta;
  gamma.Load(a.gamma, columns), beta.Load(a.beta, columns);
  const auto load = [&](int64_t at) {
    if (at >= count) return;
    const TableRows<T> from = FindRows(a, at, kTables > 1);
    if (!from.inside) {
      // One NaN makes the whole row NaN.
      rows[0].chunk[0].pairs[0] = PackPair<T>(__int_as_float(0x7fffffff), 0.0f);
      return;
    }
    rows[0].Load(from.word, columns);
    if constexpr (kTables > 1) {
      rows[1].Load(from.position, columns);
      if (from.token_type != nullptr) rows[2].Load(from.token_type, columns);
    }
  };
  int64_t at = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
#pragma unroll 1
  for (load(at); at < count; at += stride) {
    gamma.KeepPacked(), beta.KeepPacked();
    NormalizeSum<norms::LayerNorm>(
        rows, columns, a.epsilon, gamma, beta, a.y + at * columns, [&] { load(at + stride); }, [](auto&) {});
  }
}

template <class T, class Index, int kVector, int kChunks>
__global__ void __launch_bounds__(MaxRowThreads(kChunks), kChunks == 1 ? 3 : 1)  // else wide rows are spilled
    EmbedLayerNormKernel(EmbedLayerNormArguments<T, Index> a) {
  __shared__ float3 scratch[32];
  const int columns = static_cast<int>(a.columns);
  BeginFirst(a.packed);
  const int64_t count = RealRows(a.packed, a.rows);
  if (blockIdx.x >= count) return;
  RowVector<T, kVector, kChunks> gamma(a.gamma), beta(a.beta);
  gamma.Load(columns), beta.Load(columns);
#pragma unroll 1
  for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
    const TableRows<T> from = FindRows(a, at, a.position_table != nullptr);
    const T* const tables[3] = {from.word, from.position, from.token_type};
    RowSlice<kVector, kChunks> row;
    ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) row.value[chunk][i] = from.inside ? 0.0f : __int_as_float(0x7fffffff);
      if (!from.inside) return;
      if (from.integers != nullptr) {
        const auto loaded = *reinterpret_cast<const Pack<int8_t, kVector>*>(from.integers + column);
#pragma unroll
        for (int i = 0; i < kVector; ++i) row.value[chunk][i] = static_cast<float>(loaded.value[i]) * from.scale;
      }
#pragma unroll
      for (int table = 0; table < 3; ++table) {
        if (tables[table] == nullptr) continue;
        const auto loaded = *reinterpret_cast<const Pack<T, kVector>*>(tables[table] + column);
#pragma unroll
        for (int i = 0; i < kVector; ++i) row.value[chunk][i] += ToFloat(loaded.value[i]);
      }
    });
    NormalizeAndStore<norms::LayerNorm>(row, columns, gamma, beta, a.epsilon, a.y + at * a.columns, scratch);
    __syncthreads();
  }
}

template <class T, class Index, int kVector>
cudaError_t LaunchVector(const EmbedLayerNormArguments<T, Index>& a, const Device& device, cudaStream_t stream) {
  return LaunchRowBlocks<kVector>(a, device, stream, [&](const LaunchConfig& config, auto chunks) {
    return Launch(config, EmbedLayerNormKernel<T, Index, kVector, decltype(chunks)::value>, a);
  });
}

// Whether four elements can be read and written at a time.
template <class T, class Index>
bool IsVectorised(const EmbedLayerNormArguments<T, Index>& a) {
  const auto aligned = [](auto... data) { return (IsAligned(data, 4 * sizeof(T)) && ...); };
  return a.columns % 4 == 0 && IsAligned(a.word_integers, 4) &&
         aligned(a.word_table, a.token_type_table, a.position_table, a.gamma, a.beta, a.y);
}

}  // namespace

template <class T, class Index>
bool EmbedLayerNormSupports(const EmbedLayerNormArguments<T, Index>& a) {
  return a.columns <= MaxRowColumns(IsVectorised(a) ? 4 : 1);
}

template <class T, class Index>
cudaError_t EmbedLayerNorm(const EmbedLayerNormArguments<T, Index>& a, const Device& device, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  // (A warp's rows are 16-bit ones: integers go to the other kernel.)
  if constexpr (sizeof(T) == 2) {
    // A block for each row waits for one index after the other; with token_index on top a warp for each row is faster
    // from fewer rows on. Tried on an H200; no figures of these two limits were kept.
    const int64_t few = a.token_index == nullptr ? 2048 : 512;
    const bool words_alone = a.position_table == nullptr && a.token_type_table == nullptr;
    if (a.word_integers == nullptr && (a.position_table != nullptr || words_alone) &&
        (a.deterministic_rows || a.packed.LaunchRows(a.rows) >= few) &&
        WarpRowsFit(a.columns, a.word_table, a.token_type_table, a.position_table, a.gamma, a.beta, a.y)) {
      return WithWarpRowChunks(a.columns, [&](auto chunks) {
        constexpr int kChunks = decltype(chunks)::value;
        return LaunchWarpRows(words_alone ? EmbedLayerNormWarpKernel<T, Index, kChunks, 1>
                                          : EmbedLayerNormWarpKernel<T, Index, kChunks, 3>,
                              a, device, stream);
      });
    }
  }
  return IsVectorised(a) ? LaunchVector<T, Index, 4>(a, device, stream) : LaunchVector<T, Index, 1>(a, device, stream);
}

#define BERTFUSE_INSTANTIATE_WITH(TYPE, INDEX)                                       \
  template bool EmbedLayerNormSupports(const EmbedLayerNormArguments<TYPE, INDEX>&); \
  template cudaError_t EmbedLayerNorm(const EmbedLayerNormArguments<TYPE, INDEX>&, const Device&, cudaStream_t);
#define BERTFUSE_INSTANTIATE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  BERTFUSE_INSTANTIATE_WITH(TYPE, int32_t)                               \
  BERTFUSE_INSTANTIATE_WITH(TYPE, int64_t)
BERTFUSE_FLOAT_DTYPES(BERTFUSE_INSTANTIATE)

}  // namespace bertfuse::kernels
