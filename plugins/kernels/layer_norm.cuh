// LayerNorm's kernels (layer_norm.h), for a norm that the including file chooses.
#ifndef BERTFUSE_KERNELS_LAYER_NORM_CUH_
#define BERTFUSE_KERNELS_LAYER_NORM_CUH_

#include "kernels/activation.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/layer_norm.h"
#include "kernels/packed_rows.cuh"
#include "kernels/prefetch.cuh"
#include "kernels/row_norm.cuh"
#include "kernels/warp_row.cuh"

namespace bertfuse::kernels {
namespace {

// The product in T, or zeros where it is null: where split-K's float32 partial sums are to be added up.
template <class T, int kVector>
__device__ __forceinline__ void LoadProduct(const T* product, int64_t at, float (&value)[kVector]) {
  const auto loaded = LoadIf<kVector>(product != nullptr, product + at);
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] = ToFloat(loaded.value[i]);
}

// Wider rows have no registers to spare.
constexpr bool SupportsPartials(int vector, int chunks) { return vector == 4 && chunks <= 2; }
static_assert(kMaxSplitColumns == 4 * 2 * MaxRowThreads(2));
static_assert(kMaxWarpColumns == kMaxWarpRowColumns && kMaxWarpColumns == 8 * 128);  // of both kernels

// What is to be added to the product of a row: `count` partial sums, `stride` elements from one to the next.
template <class T>
struct Partials {
  const T* first;  // not to be read where count is 0
  int64_t stride;
  int count;
};

template <class T>
__device__ __forceinline__ Partials<T> PartialsOf(const LayerNormArguments<T>& a, int64_t row, int64_t unsplit_rows) {
  const int64_t split_row = row - unsplit_rows;
  return {a.partials + split_row * a.columns, a.partial_rows * a.columns, split_row < 0 ? 0 : a.more_partials};
}

// Elements of a row's residual, as they lie in memory, and as floats.
template <class Norm, class T, int kVector>
class Residual {
  using Stored = std::conditional_t<Norm::kRestoresResidual, int8_t, T>;

 public:
  // Of row `at`, from `column` on; zeros where the row does not exist, or there is no residual.
  __device__ __forceinline__ void Load(const LayerNormArguments<T>& a, bool exists, int64_t at, int column) {
    const Stored* const rows = Rows(a);
    stored_ = LoadIf<kVector>(exists && rows != nullptr, rows + at * a.columns + column);
  }
  // `scale`: RowScale() of the row; `factors`: of the columns, zeros where there are none.
  __device__ __forceinline__ void AddTo(float (&value)[kVector], const LayerNormArguments<T>& a, float scale,
                                        const Pack<float, kVector>& factors) const {
    if constexpr (Norm::kRestoresResidual) {
      const bool has_factors = a.quantized_residual.factor != nullptr;
      float numbers[kVector];
      FloatsOfIntegers(stored_, numbers);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        value[i] = fmaf(numbers[i], has_factors ? scale * factors.value[i] : scale, value[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] += ToFloat(stored_.value[i]);
    }
  }
  __device__ __forceinline__ static float RowScale(const LayerNormArguments<T>& a, bool exists, int64_t at) {
    if constexpr (Norm::kRestoresResidual) return exists ? a.quantized_residual.scales[at] : 0.0f;
    return 1.0f;
  }

 private:
  __device__ __forceinline__ static const Stored* Rows(const LayerNormArguments<T>& a) {
    if constexpr (Norm::kRestoresResidual) {
      return a.quantized_residual.rows;
    } else {
      return a.residual;
    }
  }
  Pack<Stored, kVector> stored_;
};

// How many rows there are, and how many of them are not split.
template <class Index>
struct RowCounts {
  Index rows, unsplit;
  template <class T>
  __device__ __forceinline__ explicit RowCounts(const LayerNormArguments<T>& a)
      : rows(static_cast<Index>(a.rows)), unsplit(static_cast<Index>(a.unsplit_rows)) {
    if (a.packed.row_count != nullptr) {
      const int real = static_cast<int>(RealRows(a.packed, a.rows));
      rows = real;
      if (a.more_partials > 0) unsplit = RowsOfFullPanels(a.last_wave, real);
    }
  }
};

// Stores what is normalised, where it is an output, too.
template <class Norm, class T, int kVector>
__device__ __forceinline__ void StoreTotal(const LayerNormArguments<T>& a, int64_t at, const float (&value)[kVector]) {
  if constexpr (Norm::kStoresTotal) {
    if (a.total == a.product) return;
    Pack<T, kVector> out;
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.value[i] = FromFloat<T>(value[i]);
    *reinterpret_cast<Pack<T, kVector>*>(a.total + at) = out;
  }
}

// Whether there is a beta to read: where the norm may be without one, the launch says so.
template <class Norm, class T>
__device__ __forceinline__ bool HasBeta(const LayerNormArguments<T>& a) {
  return Norm::kAddsBeta && (!Norm::kBetaIsOptional || a.beta != nullptr);
}

// Calls visit(row, true) for each row of a block, once the kernels before this one have ended. `warm_up`: calls
// visit(row, false), for a row that does not exist, while they still run, so that the code has been fetched when the
// data are there. There may be more packed rows than the grid was sized for.
template <class Visit>
__device__ __forceinline__ void ForEachRow(int64_t rows, bool warm_up, Visit&& visit) {
#pragma unroll 1
  for (int64_t row = static_cast<int64_t>(blockIdx.x) - (warm_up ? gridDim.x : 0); row < rows; row += gridDim.x) {
    const bool exists = row >= 0;
    if (exists) WaitForDependencies();
    visit(row, exists);
    __syncthreads();
  }
}

// value += min(count, kMax) vectors, `stride` elements from one to the next. All loads are in flight at once: one
// after the other, each would take a round trip to the L2 cache.
template <int kMax, class T, int kVector>
__device__ __forceinline__ void AddAll(const T* first, int64_t stride, int count, float (&value)[kVector]) {
  Pack<T, kVector> more[kMax];
#pragma unroll
  for (int i = 0; i < kMax; ++i) more[i] = LoadIf<kVector>(i < count, first + i * stride);
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) value[j] += ToFloat(more[i].value[j]);
  }
}

// A block for each row. kHalfProduct: adds up a product in T and its partial sums, otherwise split-K's partial sums in
// float32. Few rows want all loads in flight at once, many rows many blocks on a multiprocessor.
template <class Norm, class T, int kVector, int kChunks, bool kHalfProduct>
__global__ void __launch_bounds__(MaxRowThreads(kChunks),
                                  kChunks > 1                                                             ? 1
                                  : kHalfProduct && !Norm::kNormalizesProduct && !Norm::kRestoresResidual ? 3
                                                                                                          : 2)
    LayerNormBlockKernel(LayerNormArguments<T> a) {
  __shared__ float3 scratch[Norm::kQuantizes || Norm::kNormalizesProduct ? 64 : 32];
  const int64_t split_stride = a.rows * a.columns;
  const int columns = static_cast<int>(a.columns);
  LaunchDependents();
  const RowCounts<int> counts(a);
  if (static_cast<int>(blockIdx.x) >= counts.rows) return LeaveEarly(blockIdx.x == 0);
  if (!a.vectors_are_constant) WaitForDependencies();
  RowVector<T, kVector, kChunks> bias(a.bias), gamma(a.gamma), beta(a.beta), product_gamma(a.product_gamma);
  bias.Load(columns), gamma.Load(columns), beta.Load(columns);
  if constexpr (Norm::kNormalizesProduct) product_gamma.Load(columns);
  RowVector<float, kVector, kChunks> smooth(a.quantized.smooth);
  if constexpr (Norm::kQuantizes) smooth.Load(columns);
  RowVector<float, kVector, kChunks> residual_factor(a.quantized_residual.factor);
  if constexpr (Norm::kRestoresResidual) residual_factor.Load(columns);
  PrefetchByGrid(a.next);
  const bool warm_up = a.vectors_are_constant && blockIdx.x < a.warm_up_blocks;
  ForEachRow(counts.rows, warm_up, [&](int64_t at, bool exists) {
    const int64_t offset = at * a.columns;
    const Partials<T> partials = PartialsOf(a, at, counts.unsplit);
    RowSlice<kVector, kChunks> row;
    RowVector<T, kVector, kChunks> later(exists && a.residual != nullptr ? a.residual + offset : nullptr);
    if constexpr (Norm::kNormalizesProduct) later.Load(columns);
    using Residual = Residual<Norm, T, kVector>;
    const float residual_scale = Residual::RowScale(a, exists, at);
    ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
      float (&value)[kVector] = row.value[chunk];
      Residual residual;
      if constexpr (!Norm::kNormalizesProduct) residual.Load(a, exists, at, column);
      if constexpr (kHalfProduct) {
        LoadProduct(exists ? a.product : nullptr, offset + column, value);
        if constexpr (SupportsPartials(kVector, kChunks)) {
          AddAll<kMaxMorePartials>(partials.first + column, partials.stride, partials.count, value);
        }
      } else {
        constexpr int kAtOnce = kChunks == 1 ? 8 : 4;
        const float* source = a.float_partials + offset + column;
#pragma unroll
        for (int i = 0; i < kVector; ++i) value[i] = 0.0f;
#pragma unroll 1
        for (int split = 0; split < a.splits; split += kAtOnce, source += kAtOnce * split_stride) {
          AddAll<kAtOnce>(source, split_stride, exists ? a.splits - split : 0, value);
        }
      }
      const auto add = bias.Chunk(chunk, column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        value[i] += ToFloat(add.value[i]);
        Activations::Exact<1>(&value[i], a.activation);  // kVector at once would take more registers than there are
      }
      if constexpr (!Norm::kNormalizesProduct) {
        residual.AddTo(value, a, residual_scale, residual_factor.Chunk(chunk, column));
      }
      if (!Norm::kNormalizesProduct && exists) StoreTotal<Norm>(a, offset + column, value);
    });
    if constexpr (Norm::kNormalizesProduct) {
      const float inverse = InverseRootOfRow(row, columns, a.epsilon, scratch + 32);
      ForEachChunk<kVector, kChunks>(columns, [&](int chunk, int column) {
        const auto scale = product_gamma.Chunk(chunk, column), residual = later.Chunk(chunk, column);
        float (&value)[kVector] = row.value[chunk];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float factor = ToFloat(scale.value[i]) + a.gamma_offset;
          value[i] = norms::NormalizedProduct(value[i], inverse, factor) + ToFloat(residual.value[i]);
        }
        if (exists) StoreTotal<Norm>(a, offset + column, value);
      });
    }
    NormalizeAndStore<Norm>(row, columns, gamma, beta, a.epsilon, exists ? a.y + offset : nullptr, scratch,
                            a.gamma_offset, a.quantized, at, smooth);
  });
}

// A warp for each row of up to 128 * kChunks columns, without partial sums in T: no barrier, all of a row's loads in
// flight at once.
template <class Norm, class T, int kChunks>
__device__ __forceinline__ void NormalizeWithWarp(const LayerNormArguments<T>& a, int64_t at) {
  constexpr int kVector = 4;
  const int lane = threadIdx.x % 32, columns = static_cast<int>(a.columns);
  const int64_t offset = at * a.columns, split_stride = a.rows * a.columns;
  float value[kChunks][kVector] = {};
  const auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = (chunk * 32 + lane) * kVector;
      if (column < columns) visit(value[chunk], column);
    }
  };
  for_each([&](float (&v)[kVector], int column) { LoadProduct(a.product, offset + column, v); });
#pragma unroll 2
  for (int split = 0; split < a.splits; ++split) {
    for_each([&](float (&v)[kVector], int column) {
      const auto loaded =
          *reinterpret_cast<const Pack<float, kVector>*>(a.float_partials + split * split_stride + offset + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) v[i] += loaded.value[i];
    });
  }
  float sum = 0.0f, product_squares = 0.0f;
  using Residual = Residual<Norm, T, kVector>;
  const float residual_scale = Residual::RowScale(a, true, at);
  const auto add_residual = [&](float (&v)[kVector], const Residual& residual, int column) {
    const float* const factor = a.quantized_residual.factor;
    residual.AddTo(v, a, residual_scale,
                   LoadIf<kVector>(Norm::kRestoresResidual && factor != nullptr, factor + column));
#pragma unroll
    for (float element : v) sum += element;
    StoreTotal<Norm>(a, offset + column, v);
  };
  for_each([&](float (&v)[kVector], int column) {
    const auto bias = LoadIf<kVector>(a.bias != nullptr, a.bias + column);
    Residual residual;
    if constexpr (!Norm::kNormalizesProduct) residual.Load(a, true, at, column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) v[i] += ToFloat(bias.value[i]);
    Activations::Exact<kVector>(v, a.activation);
    if constexpr (Norm::kNormalizesProduct) {
#pragma unroll
      for (float element : v) product_squares += element * element;
    } else {
      add_residual(v, residual, column);
    }
  });
  if constexpr (Norm::kNormalizesProduct) {
    const float inverse = norms::InverseRoot(WarpSum(product_squares), columns, a.epsilon);
    for_each([&](float (&v)[kVector], int column) {
      const auto scale = *reinterpret_cast<const Pack<T, kVector>*>(a.product_gamma + column);
      Residual residual;
      residual.Load(a, true, at, column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[i] = norms::NormalizedProduct(v[i], inverse, ToFloat(scale.value[i]) + a.gamma_offset);
      }
      add_residual(v, residual, column);
    });
  }
  const float mean = Norm::Center(WarpSum(sum), columns);
  float squares = 0.0f;
  for_each([&](float (&v)[kVector], int) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += (v[i] - mean) * (v[i] - mean);
  });
  const float inverse = Norm::Scale(WarpSum(squares), columns, a.epsilon);
  float greatest = 0.0f;
  const GivenScale given(Norm::kQuantizes ? a.quantized : QuantizedResult());
  for_each([&](float (&v)[kVector], int column) {
    const auto gamma = *reinterpret_cast<const Pack<T, kVector>*>(a.gamma + column);
    Pack<T, kVector> beta = {}, out;
    if (HasBeta<Norm>(a)) beta = *reinterpret_cast<const Pack<T, kVector>*>(a.beta + column);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float factor = Norm::Gamma(ToFloat(gamma.value[i]), a.gamma_offset);
      out.value[i] = FromFloat<T>(Norm::Apply((v[i] - mean) * inverse, factor, ToFloat(beta.value[i])));
    }
    if (norms::StoresY<Norm>(a.quantized)) *reinterpret_cast<Pack<T, kVector>*>(a.y + offset + column) = out;
    if constexpr (Norm::kQuantizes) {
      const bool smooths = a.quantized.smooth != nullptr;
      const auto factors = LoadIf<kVector>(smooths, a.quantized.smooth + column);
      greatest = Smoothed(out, smooths, factors, given.Inverse(), greatest, v);
    }
  });
  if constexpr (Norm::kQuantizes) {
    const QuantizedRow quantized(a.quantized, GreatestOfWarp(greatest), given);
    quantized.Store(offset + lane * kVector, 32 * kVector, columns - lane * kVector, value);
    if (lane == 0) a.quantized.scales[at] = quantized.scale();
  }
}

template <class Norm, class T, int kChunks>
__global__ void __launch_bounds__(256) LayerNormWarpKernel(LayerNormArguments<T> a) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  LaunchDependents();
  WaitForDependencies();
  const int64_t rows = RealRows(a.packed, a.rows);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  for (int64_t at = first; at < rows; at += stride) NormalizeWithWarp<Norm, T, kChunks>(a, at);
}

// A product in T and its partial sums, without an activation: persistent, a warp for each row. Of the next row product
// and kPartials partial sums are loaded ahead; kOthers: any others when it is that row's turn.
template <class Norm, class T, int kChunks, int kPartials, bool kOthers>
__global__ void __launch_bounds__(kWarpRowThreads,
                                  (kPartials > 2                  ? 2
                                   : kChunks > 3 || kPartials > 1 ? 3
                                                                  : 4) -
                                      (kPartials > 0 && (Norm::kNormalizesProduct || Norm::kQuantizes)))
    LayerNormPersistentKernel(LayerNormArguments<T> a) {
  const int columns = static_cast<int>(a.columns);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  LaunchDependents();
  const RowCounts<int64_t> counts(a);
  if (!a.vectors_are_constant) WaitForDependencies();
  // Added up together are the product and the residual; a residual that comes later, or in 8 bits, is none of these
  // rows. Few products have left their bias to be added: it is not converted for nothing.
  constexpr int kAdded = Norm::kRestoresResidual ? 1 : 2;
  WarpRow<T, kChunks> rows[kAdded + kPartials], bias, gamma, beta, later, product_gamma;
  WarpRow<T, kChunks>&product = rows[0], &residual = Norm::kNormalizesProduct ? later : rows[kAdded - 1];
  IntegerWarpRow<kChunks> restored;
  if (a.bias != nullptr) bias.Load(a.bias, columns);
  gamma.Load(a.gamma, columns);
  if (HasBeta<Norm>(a)) beta.Load(a.beta, columns);
  if constexpr (Norm::kNormalizesProduct) product_gamma.Load(a.product_gamma, columns);
  const ColumnFactors<kChunks, Norm::kQuantizes> smooth(a.quantized, columns);
  const SharedVector<kChunks, kResidualFactor, Norm::kRestoresResidual> residual_factor(a.quantized_residual.factor,
                                                                                        1.0f, columns);
  int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const auto load_residual = [&](int64_t row) {
    if (row >= counts.rows) return;
    if constexpr (Norm::kRestoresResidual) {
      restored.LoadOnce(a.quantized_residual, row, columns);
    } else {
      if (a.residual != nullptr) residual.LoadOnce(a.residual + row * columns, columns);
    }
  };
  if (a.residual_is_complete) load_residual(row);
  WaitForDependencies();
  const auto load = [&](int64_t row) {
    if (row >= counts.rows) return;
    product.Load(a.product + row * columns, columns);
    if constexpr (kPartials > 0) {
      const Partials<T> partials = PartialsOf(a, row, counts.unsplit);
#pragma unroll
      for (int i = 0; i < kPartials; ++i)
        rows[kAdded + i].Load(partials.first + i * partials.stride, i < partials.count ? columns : 0);
    }
  };
  load(row);
  if (!a.residual_is_complete) load_residual(row);
  PrefetchByGrid(a.next);
#pragma unroll 1
  for (; row < counts.rows; row += stride) {
    bias.KeepPacked(), gamma.KeepPacked(), beta.KeepPacked();
    if constexpr (Norm::kNormalizesProduct) product_gamma.KeepPacked();
    const auto add_others = [&](auto& value) {
      if (a.bias != nullptr) bias.AddTo(value);
      if constexpr (kOthers) {
        const Partials<T> partials = PartialsOf(a, row, counts.unsplit);
        constexpr int kFree = kAdded + 1;
        for (int first = kPartials; first < partials.count; first += kFree) {
#pragma unroll
          for (int i = 0; i < kFree; ++i) {
            rows[i].Load(partials.first + (first + i) * partials.stride, first + i < partials.count ? columns : 0);
          }
#pragma unroll
          for (int i = 0; i < kFree; ++i) rows[i].AddTo(value);
        }
        if (kAdded > 1 && (Norm::kNormalizesProduct || a.residual == nullptr)) rows[1] = {};
      }
      if constexpr (Norm::kRestoresResidual) restored.AddTo(value, residual_factor);
      if constexpr (Norm::kNormalizesProduct) {
        NormalizeProduct(value, columns, a.epsilon, product_gamma, a.gamma_offset);
        residual.AddTo(value);
      }
      if constexpr (Norm::kStoresTotal) {
        if (a.total != a.product) WarpRow<T, kChunks>::Store(value, a.total + row * columns, columns);
      }
    };
    NormalizeSum<Norm>(
        rows, columns, a.epsilon, gamma, beta, a.y + row * columns,
        [&] { load(row + stride), load_residual(row + stride); }, add_others, a.gamma_offset, a.quantized, row, smooth);
  }
}

template <class Norm, class T>
cudaError_t LaunchWarp(const LayerNormArguments<T>& a, const Device& device, cudaStream_t stream) {
  const int warps = 8;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(CeilDiv(a.packed.LaunchRows(a.rows), warps)));
  config.block = dim3(32 * warps);
  config.stream = stream;
  config.device = &device;
  if (a.columns <= 384) return Launch(config, LayerNormWarpKernel<Norm, T, 3>, a);
  if (a.columns <= 768) return Launch(config, LayerNormWarpKernel<Norm, T, 6>, a);
  return Launch(config, LayerNormWarpKernel<Norm, T, 8>, a);
}

template <class Norm, class T, int kVector>
cudaError_t LaunchVector(LayerNormArguments<T> a, const Device& device, cudaStream_t stream) {
  a.warm_up_blocks = static_cast<unsigned>(device.multiprocessors);
  return LaunchRowBlocks<kVector>(a, device, stream, [&](const LaunchConfig& config, auto chunks) {
    constexpr int kChunks = decltype(chunks)::value;
    if (a.product == nullptr) {
      return Launch(config, LayerNormBlockKernel<Norm, T, kVector, kChunks, false>, a);
    } else if constexpr (sizeof(T) == 2 && kVector == 4) {
      return Launch(config, LayerNormBlockKernel<Norm, T, kVector, kChunks, true>, a);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

// Norms with further outputs are of few models, and have a kernel for any number of partial sums.
template <class Norm, class T>
cudaError_t LaunchPersistent(const LayerNormArguments<T>& a, bool few_partials, const Device& device,
                             cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    return WithWarpRowChunks(a.columns, [&](auto chunks) {
      constexpr int kChunks = decltype(chunks)::value;
      auto kernel = a.more_partials == 0 ? LayerNormPersistentKernel<Norm, T, kChunks, 0, false>
                                         : LayerNormPersistentKernel<Norm, T, kChunks, 1, true>;
      if constexpr (std::is_same_v<Norm, norms::LayerNorm>) {
        kernel = a.more_partials == 1                   ? LayerNormPersistentKernel<Norm, T, kChunks, 1, false>
                 : few_partials || a.more_partials == 0 ? kernel
                 : a.more_partials == 2 ? LayerNormPersistentKernel<Norm, T, kChunks, 2, false>
                                        : LayerNormPersistentKernel<Norm, T, kChunks, kMaxMorePartials, false>;
      }
      return LaunchWarpRows(kernel, a, device, stream);
    });
  }
  return cudaErrorInvalidConfiguration;
}

template <class Norm, class T>
cudaError_t LaunchNorm(LayerNormKernel kernel, const LayerNormArguments<T>& given, const Device& device,
                       cudaStream_t stream) {
  LayerNormArguments<T> a = given;
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  const LayerNormProblem problem = {a.columns,          sizeof(T),
                                    LayerNormVector(a), a.product != nullptr,
                                    a.more_partials,    a.activation != Activation::kNone};
  if (!LayerNormSupports(kernel, problem) || !Activations::Has(a.activation)) return cudaErrorInvalidConfiguration;
  if (a.more_partials > 0) a.unsplit_rows = RowsOfFullPanels(a.last_wave, a.rows);
  switch (kernel) {
    case LayerNormKernel::kPersistentWarps:
    case LayerNormKernel::kPersistentWarpsFewPartials:
      return LaunchPersistent<Norm>(a, kernel == LayerNormKernel::kPersistentWarpsFewPartials, device, stream);
    case LayerNormKernel::kWarpPerRow:
      return LaunchWarp<Norm>(a, device, stream);
    case LayerNormKernel::kBlockPerRow:
      return problem.vector == 1 ? LaunchVector<Norm, T, 1>(a, device, stream)
                                 : LaunchVector<Norm, T, 4>(a, device, stream);
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace
}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAYER_NORM_CUH_
