// The end of products whose rows a cluster's blocks normalise together: bias, residual, LayerNorm; of 8-bit operands
// scales, too, and rows in 8 bits over their own scales. A warpgroup has 64 rows of its block's columns in its
// accumulators. Of each row the blocks exchange mean and squares, then the greatest magnitude: each warp its own 16
// rows', by bulk copies to the other blocks' shared memory.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_CLUSTER_NORM_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_CLUSTER_NORM_CUH_

#include <type_traits>

#include "kernels/norm.cuh"
#include "kernels/sm90/gemm/persistent.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// The vectors of a block's columns, in shared memory: 8 adjacent columns' side by side, as a thread reads them. Those
// of the next 8 (48, 112 or 144 bytes on) are in other banks.
struct alignas(16) HalfNormColumns {
  uint4 bias, gamma, beta;  // in y's type
};
struct alignas(16) Fp8NormColumns : HalfNormColumns {
  float4 scale[2], smooth[2];
};
struct alignas(16) IntegerNormColumns : Fp8NormColumns {
  int4 compensation[2];
};
template <class Elements>
using NormColumns = std::conditional_t<std::is_same_v<typename Elements::X, int8_t>, IntegerNormColumns,
                                       std::conditional_t<kIsQuantized<Elements>, Fp8NormColumns, HalfNormColumns>>;

// A pair of 8 columns.
template <class T>
__device__ __forceinline__ float2 PairOf(const uint4& eight, int pair) {
  return UnpackPair<T>(pair == 0 ? eight.x : pair == 1 ? eight.y : pair == 2 ? eight.z : eight.w);
}
__device__ __forceinline__ float2 PairOf(const float4 (&eight)[2], int pair) {
  const float4& four = eight[pair / 2];
  return pair % 2 == 0 ? make_float2(four.x, four.y) : make_float2(four.z, four.w);
}
__device__ __forceinline__ int2 PairOf(const int4 (&eight)[2], int pair) {
  const int4& four = eight[pair / 2];
  return pair % 2 == 0 ? int2{four.x, four.y} : int2{four.z, four.w};
}

// Its shared memory, from kFrom on, of blocks of kN columns in clusters of at most kMostBlocks.
template <class Elements, int kN, int kWarps_, int kMostBlocks_, size_t kFrom>
struct ClusterNormLayout {
  static constexpr int kWarps = kWarps_, kMostBlocks = kMostBlocks_;
  static constexpr size_t kColumnsOffset = kFrom;
  // Of each warp's 16 rows and each block of the cluster: a row's mean and squares; and its greatest magnitude, or
  // where there is none, mean and squares in every second tile. A block that sends a row's statistics thereby says that
  // it has read what it was sent before: the place for the same of the next tile is not free yet.
  static constexpr size_t kRows = static_cast<size_t>(kWarps) * kMostBlocks * 16;
  static constexpr size_t kStatisticsOffset = kColumnsOffset + kN / 8 * sizeof(NormColumns<Elements>);
  static constexpr size_t kSecondOffset = kStatisticsOffset + kRows * sizeof(float2);
  static constexpr size_t kEnd = kSecondOffset + kRows * (kIsQuantized<Elements> ? sizeof(float) : sizeof(float2));
  static constexpr int kBarriers = 2 * kWarps;
};

// What a thread adds to its two rows, 8 adjacent columns of every 32, from global memory: loaded before the products,
// it arrives beside them.
template <class Config>
struct ResidualRows {
  using T = typename Config::Y;
  __device__ __forceinline__ ResidualRows(const Parameters& p, const Tile& tile) {
    WaitForDependencies();
    const int row = tile.row + FirstRow(), column = tile.column + static_cast<int>(threadIdx.x) % 4 * 8;
    const T* const from = static_cast<const T*>(p.residual) + static_cast<int64_t>(row) * p.n + column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = p.has_residual && row + 8 * half < p.m;
#pragma unroll
      for (int i = 0; i < Config::kN / kPermutedRows; ++i) {
        const T* const at = from + half * 8 * static_cast<int64_t>(p.n) + i * kPermutedRows;
        const int4 words = inside ? __ldcs(reinterpret_cast<const int4*>(at)) : int4{};
        eight[half][i] = reinterpret_cast<const uint4&>(words);
      }
    }
  }
  uint4 eight[2][Config::kN / kPermutedRows];
};

// Config::NormLayout is a ClusterNormLayout; the barriers begin with number Config::kNormBarriers.
template <class Config>
class ClusterNorm {
  using T = typename Config::Y;
  using Quantized = typename Config::X;
  using Layout = typename Config::NormLayout;
  using Norm = norms::LayerNorm;
  using Accumulator = typename Config::Accumulator;
  using Values = float[Config::kAccumulators];
  static constexpr bool kQuantizes = kIsQuantized<Config>;

 public:
  __device__ __forceinline__ explicit ClusterNorm(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline) {}

  // Called by one thread.
  __device__ __forceinline__ void InitBarriers() const {
    for (int i = 0; i < Layout::kBarriers; ++i) InitBarrier(Barriers() + i, 1);
  }

  // By one warpgroup.
  __device__ __forceinline__ void StoreColumns(int first) const {
#pragma unroll
    for (int i = threadIdx.x; i < Config::kN; i += 128) {
      NormColumns<Config>* const to = Columns() + i / 8;
      const auto at = [&](const void* data) {
        return data == nullptr ? FromFloat<T>(0.0f) : static_cast<const T*>(data)[first + i];
      };
      reinterpret_cast<T*>(&to->bias)[i % 8] = at(p_.bias);
      reinterpret_cast<T*>(&to->gamma)[i % 8] = at(p_.gamma);
      reinterpret_cast<T*>(&to->beta)[i % 8] = at(p_.beta);
      if constexpr (kQuantizes) {
        const float* const smooth = p_.quantized.smooth;
        reinterpret_cast<float*>(to->scale)[i % 8] = p_.weight_scales[first + i];
        reinterpret_cast<float*>(to->smooth)[i % 8] = smooth == nullptr ? 1.0f : smooth[first + i];
      }
      if constexpr (std::is_same_v<Accumulator, int32_t>) {
        const int32_t* const compensation = p_.x_compensation;
        reinterpret_cast<int32_t*>(to->compensation)[i % 8] = compensation == nullptr ? 0 : compensation[first + i];
      }
    }
  }

  // `turn`: how many tiles the warpgroup has finished. `residual` gives the thread's 8 columns i of its upper or lower
  // row; done() is called when all have been added.
  template <class Residual, class Done>
  __device__ __forceinline__ void Finish(const Accumulator (&products)[Config::kAccumulators], const Tile& tile,
                                         const RowScales<Config>& row_scales, int turn, Residual&& residual,
                                         Done&& done) const {
    Values values;
    float sum[2][2] = {}, scale[2], shift[2], greatest[2][2] = {};
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      Complete(products, values, sum, i, row_scales, residual(i, 0), residual(i, 1));
    }
    done();
    Statistics(values, sum, turn, &scale, &shift);
    WaitForDependencies();  // an earlier kernel may still be reading what this overwrites
    const bool inside[2] = {Row(tile, 0) < p_.m, Row(tile, 1) < p_.m};
    T* const y = static_cast<T*>(p_.y) + static_cast<int64_t>(Row(tile, 0)) * p_.n + Column(tile);
    T* const rows[2] = {y, y + 8 * static_cast<int64_t>(p_.n)};
#pragma unroll
    for (int i = 0; i < kEights; ++i) StoreNormalized(values, greatest, i, rows, inside, scale, shift);
    if constexpr (kQuantizes) StoreQuantized(values, greatest, tile, turn);
  }

 private:
  static constexpr int kEights = Config::kN / kPermutedRows;  // of adjacent columns, that a thread has of a row

  // Product, scales, bias and residual of 8 columns of both rows.
  __device__ __forceinline__ void Complete(const Accumulator (&products)[Config::kAccumulators], Values& values,
                                           float (&sum)[2][2], int i, const RowScales<Config>& row_scales,
                                           const uint4& residual, const uint4& residual_below) const {
    const NormColumns<Config>& columns = Columns()[i * 4 + threadIdx.x % 4];
    const auto scaled = Scaled(columns);
    const uint4 biases = columns.bias;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 bias = PairOf<T>(biases, t);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 add = PairOf<T>(half == 0 ? residual : residual_below, t);
        const int at = 16 * i + 4 * t + 2 * half;
        const float2 product = scaled(products[at], products[at + 1], t, row_scales, half, bias);
        values[at] = product.x + add.x, values[at + 1] = product.y + add.y;
        sum[half][0] += values[at], sum[half][1] += values[at + 1];
      }
    }
  }

  // What gives a pair of products, scaled, with the bias.
  __device__ __forceinline__ static auto Scaled(const HalfNormColumns&) {
    return [](float x, float y, int, const RowScales<Config>&, int, float2 bias) {
      return make_float2(x + bias.x, y + bias.y);
    };
  }
  __device__ __forceinline__ static auto Scaled(const Fp8NormColumns& columns) {
    return [first = columns.scale[0], second = columns.scale[1]](float x, float y, int pair,
                                                                 const RowScales<Config>& rows, int half, float2 bias) {
      const float4 scales[2] = {first, second};
      const float2 scale = PairOf(scales, pair);
      return make_float2(fmaf(x * rows.At(0, half), scale.x, bias.x), fmaf(y * rows.At(0, half), scale.y, bias.y));
    };
  }
  __device__ __forceinline__ static auto Scaled(const IntegerNormColumns& columns) {
    const Fp8NormColumns& of_floats = columns;
    return [scaled = Scaled(of_floats), first = columns.compensation[0], second = columns.compensation[1]](
               int32_t x, int32_t y, int pair, const RowScales<Config>& rows, int half, float2 bias) {
      const int4 compensations[2] = {first, second};
      const int2 off = PairOf(compensations, pair);
      return scaled(static_cast<float>(x - off.x), static_cast<float>(y - off.y), pair, rows, half, bias);
    };
  }

  // Over the four threads of a row.
  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Of the thread's two rows, in two passes over registers, and Chan's sum over the cluster's slices.
  __device__ __forceinline__ void Statistics(const Values& values, const float (&sum)[2][2], int turn,
                                             float (*scale)[2], float (*shift)[2]) const {
    float mean[2], squares[2], parts[2][2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) mean[half] = Norm::Center(QuadSum(sum[half][0] + sum[half][1]), Config::kN);
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) {
      const float centered = values[i] - mean[i / 2 % 2];
      float& part = parts[i / 2 % 2][i % 2];
      part = fmaf(centered, centered, part);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) squares[half] = QuadSum(parts[half][0] + parts[half][1]);
    if (p_.cluster_n > 1) {
      const bool second = !kQuantizes && turn % 2 == 1;
      const size_t offset = second ? Layout::kSecondOffset : Layout::kStatisticsOffset;
      uint64_t* const full = second ? SecondBarrier() : FirstBarrier();
      Send(offset, full, make_float4(mean[0], squares[0], mean[1], squares[1]));
      WaitBarrier(full, (kQuantizes ? turn : turn / 2) & 1);
      Merge(Received<float4>(offset), &mean, &squares);
    }
    const float count = static_cast<float>(p_.cluster_n) * Config::kN;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      (*scale)[half] = Norm::Scale(squares[half], count, p_.epsilon), (*shift)[half] = -mean[half] * (*scale)[half];
    }
  }

  // Of equally long slices, by how far their means are from the first one's.
  __device__ __forceinline__ void Merge(const float4* slice, float (*mean)[2], float (*squares)[2]) const {
    const float4 first = slice[0];
    float sum[2] = {}, deviations[2] = {}, within[2] = {first.y, first.w};
#pragma unroll
    for (int i = 1; i < Layout::kMostBlocks; ++i) {
      if (i >= p_.cluster_n) break;
      const float4 of = slice[i * 8];
      const float away[2] = {of.x - first.x, of.z - first.z};
      sum[0] += away[0], sum[1] += away[1], within[0] += of.y, within[1] += of.w;
      deviations[0] = fmaf(away[0], away[0], deviations[0]), deviations[1] = fmaf(away[1], away[1], deviations[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = Norm::Center(sum[half], static_cast<float>(p_.cluster_n));
      (*mean)[half] = (half == 0 ? first.x : first.z) + shift;
      (*squares)[half] = fmaf(fmaf(-shift, sum[half], deviations[half]), Config::kN, within[half]);
    }
  }

  // Normalises 8 columns of both rows and stores them. Of 8 bits makes the values what is to be rounded to them: y as
  // it is rounded, times its column's factor.
  __device__ __forceinline__ void StoreNormalized(Values& values, float (&greatest)[2][2], int i, T* const (&rows)[2],
                                                  const bool (&inside)[2], const float (&scale)[2],
                                                  const float (&shift)[2]) const {
    const NormColumns<Config>& columns = Columns()[i * 4 + threadIdx.x % 4];
    const uint4 gammas = columns.gamma, betas = columns.beta;
    [[maybe_unused]] float4 factors[2];
    if constexpr (kQuantizes) factors[0] = columns.smooth[0], factors[1] = columns.smooth[1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float2 gamma = PairOf<T>(gammas, t), beta = PairOf<T>(betas, t);
        float* const v = &values[16 * i + 4 * t + 2 * half];
        pairs[t] = PackPair<T>(Norm::Apply(fmaf(v[0], scale[half], shift[half]), gamma.x, beta.x),
                               Norm::Apply(fmaf(v[1], scale[half], shift[half]), gamma.y, beta.y));
        if constexpr (kQuantizes) {
          const float2 rounded = UnpackPair<T>(pairs[t]), factor = PairOf(factors, t);
          v[0] = rounded.x * factor.x, v[1] = rounded.y * factor.y;
          greatest[half][0] = GreaterMagnitude(greatest[half][0], v[0]);
          greatest[half][1] = GreaterMagnitude(greatest[half][1], v[1]);
        }
      }
      if (inside[half]) {
        *reinterpret_cast<int4*>(rows[half] + i * kPermutedRows) = make_int4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }

  // Rows in 8 bits over their own scales.
  __device__ __forceinline__ void StoreQuantized(const Values& values, const float (&greatest_of)[2][2],
                                                 const Tile& tile, int turn) const {
    constexpr float kMost = kLargestQuantized<Quantized>;
    float greatest[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      greatest[half] = GreaterMagnitude(greatest_of[half][0], greatest_of[half][1]);
      greatest[half] = GreaterMagnitude(greatest[half], __shfl_xor_sync(0xffffffffu, greatest[half], 1));
      greatest[half] = GreaterMagnitude(greatest[half], __shfl_xor_sync(0xffffffffu, greatest[half], 2));
    }
    if (p_.cluster_n > 1) {
      Send(Layout::kSecondOffset, SecondBarrier(), make_float2(greatest[0], greatest[1]));
      WaitBarrier(SecondBarrier(), turn & 1);
      const float2* const slice = Received<float2>(Layout::kSecondOffset);
#pragma unroll
      for (int i = 0; i < Layout::kMostBlocks; ++i) {
        if (i >= p_.cluster_n) break;
        const float2 of = slice[i * 8];
        greatest[0] = GreaterMagnitude(greatest[0], of.x), greatest[1] = GreaterMagnitude(greatest[1], of.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(tile, half), column = Column(tile);
      if (tile.column == 0 && threadIdx.x % 4 == 0 && row < p_.m) {
        p_.quantized.scales[row] = ScaleOfRow(greatest[half], kMost);
      }
      const float inverse = kMost / fmaxf(greatest[half], kLeastMagnitude);
      Quantized* const to = static_cast<Quantized*>(p_.quantized.rows) + static_cast<int64_t>(row) * p_.n + column;
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float eight[8];
#pragma unroll
        for (int t = 0; t < 8; ++t) eight[t] = values[16 * i + t / 2 * 4 + 2 * half + t % 2] * inverse;
        const QuantizedPack<Quantized, 8> numbers = [&] {
          if constexpr (std::is_same_v<Quantized, int8_t>) return RoundedByOwnScale(eight);
          return Rounded<Quantized>(eight);
        }();
        if (row < p_.m) *reinterpret_cast<QuantizedPack<Quantized, 8>*>(to + i * kPermutedRows) = numbers;
      }
    }
  }

  // Sends what the four threads of two rows have of them to every other block of the cluster, a warp's 16 rows at once.
  // The places are free: the other blocks sent what this warp has last waited for when they had read what lay there.
  template <class Value>
  __device__ __forceinline__ void Send(size_t offset, uint64_t* full, const Value& value) const {
    const int rank = pipeline_.block().rank_n, lane = threadIdx.x % 32;
    Value* const own = Received<Value>(offset) + rank * 8;
    if (lane == 0) ArriveExpectTx(full, (p_.cluster_n - 1) * 8 * sizeof(Value));
    if (lane % 4 == 0) *own = value;
    FenceAsyncProxy();
    __syncwarp();
    if (lane < p_.cluster_n && lane != rank) {
      Value* const slice = own - lane / 4;
      CopyToDsmem(DsmemAddress(slice, lane), slice, 8 * sizeof(Value), DsmemAddress(full, lane));
    }
  }
  // Of the thread's two rows: the first block's; the next one's is 8 on.
  template <class Value>
  __device__ __forceinline__ Value* Received(size_t offset) const {
    return reinterpret_cast<Value*>(pipeline_.shared() + offset) + threadIdx.x / 32 * Layout::kMostBlocks * 8 +
           threadIdx.x % 32 / 4;
  }

  __device__ __forceinline__ NormColumns<Config>* Columns() const {
    return reinterpret_cast<NormColumns<Config>*>(pipeline_.shared() + Layout::kColumnsOffset);
  }
  // A thread's two rows, and the first column of its 8 of every 32 (the weight's rows are permuted).
  __device__ __forceinline__ static int Row(const Tile& tile, int half) { return tile.row + FirstRow() + 8 * half; }
  __device__ __forceinline__ static int Column(const Tile& tile) {
    return tile.column + static_cast<int>(threadIdx.x) % 4 * 8;
  }

  __device__ __forceinline__ uint64_t* Barriers() const { return pipeline_.Full(Config::kNormBarriers); }
  // What the cluster's other blocks send of the warp's rows has come.
  __device__ __forceinline__ uint64_t* FirstBarrier() const { return Barriers() + threadIdx.x / 32; }
  __device__ __forceinline__ uint64_t* SecondBarrier() const { return FirstBarrier() + Layout::kWarps; }

  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_CLUSTER_NORM_CUH_
