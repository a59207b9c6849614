// The weight-stationary kernel whose rows end in LayerNorm and in 8 bits with a scale for each row, too: for hidden
// sizes of which a cluster's blocks hold the weight. y = LayerNorm(x weight^T + bias + residual), and what the next
// product reads of it. Three or four warpgroups take tiles of 64 rows in turn, so that all but one exchange rows'
// statistics and magnitudes with the cluster's other blocks, normalise and store while that one multiplies. It moves
// three fifths of the bytes that product and norm move: 16384 x 768 x 768 in fp8 take an H200 31.7 us in place of 39.5,
// 16384 x 1024 x 1024 44.9 in place of 57.6.
//
// Where the residual comes in 8 bits (of integers) and y is not to be stored in its own type, half of these bytes are
// left.
//
// A tile of 192 columns takes more than twice the 2,304 cycles that the tensor cores need. What it waits for is shared
// memory: beside wgmma's reads a load or a shuffle takes some 300 cycles (by ncu). A warp's load costs a cycle of its
// bandwidth for each 4 bytes of a thread, however few different ones there are; so the columns' vectors are read in
// their own types, without bank conflicts, and rows' sums need two shuffles one after the other, not four.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_

#include "kernels/norm.cuh"
#include "kernels/sm90/gemm/norm_vectors.cuh"
#include "kernels/sm90/gemm/stationary.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// As many warpgroups as there are registers for (of integers with 128 columns a thread spills ten).
template <class Elements, int kN, int kStages, bool kPacked>
using StationaryNormTile = StationaryTile<Elements, kN, kStages, kPacked, kN == 128 ? 4 : 3>;

template <class Elements, int kN, int kStages, bool kPacked, bool kRestoresResidual_>
struct StationaryNormConfig : StationaryNormTile<Elements, kN, kStages, kPacked> {
  using Base = StationaryNormTile<Elements, kN, kStages, kPacked>;
  using Epilogue = gemm_sm90::Epilogue<Scale, AddBias>;  // whose steps, and more, the consumer does itself
  static constexpr bool kRestoresResidual = kRestoresResidual_;
  using Residual = std::conditional_t<kRestoresResidual, int8_t, typename Elements::Y>;
  using Vectors = NormVectors<typename Elements::Y, kN, kRestoresResidual>;
  static constexpr bool kHasResidualWarp = true, kPrefetchesX = false;  // the residual's warp does, where there is one

  // The residual's rows in boxes of 32 columns, swizzled over the bytes of one: a warp's reads have no bank conflicts.
  static constexpr int kBoxColumns = 32, kBoxes = kN / kBoxColumns;
  static constexpr int kBoxPitch = kBoxColumns * static_cast<int>(sizeof(Residual)), kBoxBytes = 64 * kBoxPitch;
  static constexpr size_t kResidualOffset = Base::kWeightEnd;
  static constexpr size_t kVectorOffset = kResidualOffset + static_cast<size_t>(kBoxes) * kBoxBytes;
  // Of each warp's 16 rows: mean and squares in each other block of the cluster, and the greatest magnitude in them.
  static constexpr int kMostBlocks = kStages * kStageRowBytes / kN, kWarps = 4 * Base::kWarpgroups;
  static constexpr int kMostOthers = kMostBlocks - 1;
  static constexpr size_t kStatisticsOffset = kVectorOffset + Vectors::kBytes;
  static constexpr size_t kMagnitudesOffset = kStatisticsOffset + kWarps * kMostOthers * 16 * sizeof(float2);
  static constexpr size_t kBarrierOffset = kMagnitudesOffset + kWarps * 16 * sizeof(uint32_t);
  // Behind the pipeline's: that the residual's place is free, that each warpgroup's is there, and each warp's two.
  static constexpr size_t kBarriers = Base::kPipelineBarriers + 1 + Base::kWarpgroups + 2 * kWarps;
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kSharedBytes = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  static_assert(kSharedBytes <= 227 << 10);
  static size_t SharedBytes(int) { return kSharedBytes; }
};

template <class Config>
class StationaryNormBarriers {
 public:
  __device__ __forceinline__ explicit StationaryNormBarriers(const Pipeline<Config>& pipeline) : pipeline_(pipeline) {}
  __device__ __forceinline__ uint64_t* ResidualEmpty() const { return pipeline_.Full(Config::kPipelineBarriers); }
  // For each warpgroup one, though there is one place: a parity tells a tile from the one before, and a warpgroup may
  // come to wait several tiles early.
  __device__ __forceinline__ uint64_t* ResidualFull(int group) const { return ResidualEmpty() + 1 + group; }
  // What the cluster's other blocks send of the warp's rows has come.
  __device__ __forceinline__ uint64_t* Statistics() const { return OfWarps() + threadIdx.x / 32; }
  __device__ __forceinline__ uint64_t* Magnitudes() const { return OfWarps() + Config::kWarps + threadIdx.x / 32; }
  // Called by one thread.
  __device__ __forceinline__ void Init() const {
    InitBarrier(ResidualEmpty(), 4);  // a warpgroup's warps
    for (int group = 0; group < Config::kWarpgroups; ++group) InitBarrier(ResidualFull(group), 1);
    for (int i = 0; i < 2 * Config::kWarps; ++i) InitBarrier(OfWarps() + i, 1);
  }

 private:
  __device__ __forceinline__ uint64_t* OfWarps() const { return ResidualFull(Config::kWarpgroups); }

  const Pipeline<Config>& pipeline_;
};

// Beside the thread that loads the weight and x, one that loads the residual of each tile.
template <class Config>
class StationaryNormProducer : public StationaryProducer<Config> {
  using Base = StationaryProducer<Config>;
  using Base::p_, Base::pipeline_;

 public:
  __device__ __forceinline__ explicit StationaryNormProducer(const Pipeline<Config>& pipeline)
      : Base(pipeline), barriers_(pipeline) {}

  __device__ __forceinline__ void RunResidual() const {
    if (!p_.has_residual) return;
    PrefetchTensorMap(&p_.residual_map);
    WaitForDependencies();
    if (pipeline_.scheduler().HasTile(1)) Prefetch(pipeline_.scheduler().TileAt(1));
    for (int number = 0; pipeline_.scheduler().HasTile(number); ++number) {
      LoadResidual(pipeline_.scheduler().TileAt(number), number);
      if (pipeline_.scheduler().HasTile(number + 2)) Prefetch(pipeline_.scheduler().TileAt(number + 2));
    }
  }

 private:
  static constexpr int kResidualSleep = 20;  // ns

  // Into the L2 cache: there is but one place for residuals, and one tile's for x.
  __device__ __forceinline__ void Prefetch(const Tile& tile) const {
#pragma unroll 1
    for (int box = 0; box < Config::kBoxes; ++box) {
      TmaPrefetch2d(&p_.residual_map, tile.column + box * Config::kBoxColumns, tile.row);
    }
#pragma unroll 1
    for (int i = pipeline_.block().rank_n; i < p_.k_stages; i += p_.cluster_n) {
      TmaPrefetch2d(&p_.x_map, i * Config::kStageK, tile.row);
    }
  }

  __device__ __forceinline__ void LoadResidual(const Tile& tile, int number) const {
    WaitBarrierAsleep<kResidualSleep>(barriers_.ResidualEmpty(), (number & 1) ^ 1);
    uint64_t* const full = barriers_.ResidualFull(number % Config::kWarpgroups);
    ArriveExpectTx(full, Config::kBoxes * Config::kBoxBytes);
#pragma unroll 1
    for (int box = 0; box < Config::kBoxes; ++box) {
      TmaLoad2d(pipeline_.shared() + Config::kResidualOffset + box * Config::kBoxBytes, &p_.residual_map,
                tile.column + box * Config::kBoxColumns, tile.row, full);
    }
  }

  StationaryNormBarriers<Config> barriers_;
};

template <class Config>
class StationaryNormConsumer : StationaryConsumer<Config> {
  using Base = StationaryConsumer<Config>;
  using Loop = Mainloop<Config>;
  using State = typename Loop::State;
  using T = typename Config::Y;
  using Quantized = typename Config::X;
  using Norm = norms::LayerNorm;
  using Values = float[Config::kAccumulators];
  using Base::p_, Base::pipeline_;

 public:
  using Producer = StationaryNormProducer<Config>;
  __device__ __forceinline__ explicit StationaryNormConsumer(const Pipeline<Config>& pipeline)
      : Base(pipeline), barriers_(pipeline) {}

  // Called by one thread.
  __device__ __forceinline__ void InitBarriers() const {
    Base::InitBarriers();
    barriers_.Init();
  }

  __device__ __forceinline__ void Run(int group, State&) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    if (p_.cluster_n > 1 && threadIdx.x % 4 == 0) Magnitude(0) = Magnitude(1) = 0;
    Vectors().Store(p_, pipeline_.scheduler().TileAt(0).column);
    SyncNamed<128 * Config::kWarpgroups>(kVectorBarrier);
    Base::ForEachTile(group, [&](int number, const Tile& tile, auto& sums, const RowScales<Config>& row_scales) {
      WithFloats(sums[0], [&](Values& values) { Finish(values, group, number, tile, row_scales); });
    });
  }

 private:
  static constexpr int kVectorBarrier = 2 + 2 * Config::kWarpgroups;  // behind those of the main loops' order

  __device__ __forceinline__ void Finish(Values& values, int group, int number, const Tile& tile,
                                         const RowScales<Config>& row_scales) const {
    const PersistentRows<Config> rows(p_, tile, 0, 0, nullptr, row_scales, 0.0f);
    const uint32_t parity = number / Config::kWarpgroups & 1;
    if constexpr (Config::kRestoresResidual) {
      float scale[2];  // loaded before columns' vectors, behind which it is there
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scale[half] = rows.Row(half) < p_.m ? p_.quantized_residual.scales[rows.Row(half)] : 0.0f;
      }
      ScaleAndAddBias(values, row_scales);
      FenceRegisters(values);
      AddQuantizedResidual(values, scale, group, parity);
    } else {
      ScaleAndAddBias(values, row_scales);
      FenceRegisters(values);  // or all of that would come between waiting for the residual and freeing its place
      if (p_.has_residual) AddResidual(values, group, parity);
    }
    Normalize(values, parity);
    WaitForDependencies();  // an earlier kernel may still be reading what this overwrites
    StoreAndSmooth(values, rows);
    StoreQuantized(values, rows, tile, parity);
  }

  __device__ __forceinline__ void ScaleAndAddBias(Values& values, const RowScales<Config>& row_scales) const {
    const float row[2] = {row_scales.At(0, 0), row_scales.At(0, 1)};
    ForEachPair<ColumnVector::kScale, ColumnVector::kBias>(values, [&](int half, float* v, float2 scale, float2 bias) {
      v[0] = v[0] * row[half] * scale.x + bias.x, v[1] = v[1] * row[half] * scale.y + bias.y;
    });
  }

  // Calls body(which of the thread's two rows, its values of two adjacent columns, their elements of both vectors).
  template <ColumnVector kFirst, ColumnVector kSecond, class Body>
  __device__ __forceinline__ void ForEachPair(Values& values, Body&& body) const {
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      float2 first[4], second[4];
      Vectors().template Read<kFirst>(box, first);
      Vectors().template Read<kSecond>(box, second);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          body(half, &values[16 * box + 4 * t + 2 * half], first[t], second[t]);
        }
      }
    }
  }

  __device__ __forceinline__ void AddResidual(Values& values, int group, uint32_t parity) const {
    WaitBarrier(barriers_.ResidualFull(group), parity);
    const uint32_t at = SharedAddress(pipeline_.shared() + Config::kResidualOffset) +
                        Swizzled<Config::kBoxPitch>(FirstRow(), threadIdx.x % 4 * 16);
#pragma unroll
    for (int i = 0; i < Config::kBoxes; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[4];
        LoadShared(pairs, at + i * Config::kBoxBytes + half * 8 * Config::kBoxPitch);  // swizzled alike
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float2 pair = UnpackPair<T>(pairs[t]);
          float* const two = &values[16 * i + 4 * t + 2 * half];
          two[0] += pair.x, two[1] += pair.y;
        }
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(barriers_.ResidualEmpty());
  }

  // `scale`: of the residual's rows.
  __device__ __forceinline__ void AddQuantizedResidual(Values& values, const float (&scale)[2], int group,
                                                       uint32_t parity) const {
    WaitBarrier(barriers_.ResidualFull(group), parity);
    const uint32_t at = SharedAddress(pipeline_.shared() + Config::kResidualOffset) +
                        Swizzled<Config::kBoxPitch>(FirstRow(), threadIdx.x % 4 * 8);
#pragma unroll
    for (int i = 0; i < Config::kBoxes; ++i) {
      float2 factors[4];
      Vectors().template Read<ColumnVector::kRestore>(i, factors);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t words[2];
        LoadShared(words, at + i * Config::kBoxBytes + half * 8 * Config::kBoxPitch);  // swizzled alike
#pragma unroll
        for (int t = 0; t < 4; t += 2) {
          float numbers[4];
          FloatsOfIntegers(words[t / 2], numbers);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float* const two = &values[16 * i + 4 * (t + e) + 2 * half];
            two[0] = fmaf(numbers[2 * e], scale[half] * factors[t + e].x, two[0]);
            two[1] = fmaf(numbers[2 * e + 1], scale[half] * factors[t + e].y, two[1]);
          }
        }
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(barriers_.ResidualEmpty());
  }

  // LayerNorm of the thread's two rows, in two passes over registers, and Chan's sums over the four threads of a row
  // and the cluster's slices.
  __device__ __forceinline__ void Normalize(Values& values, uint32_t parity) const {
    float mean[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) mean[i / 2 % 2] += values[i];
#pragma unroll
    for (int half = 0; half < 2; ++half) mean[half] = Norm::Center(mean[half], Config::kN / 4);
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) {
      const float centered = values[i] - mean[i / 2 % 2];
      squares[i / 2 % 2] = fmaf(centered, centered, squares[i / 2 % 2]);
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float other_mean = __shfl_xor_sync(0xffffffffu, mean[half], lanes),
                    other_squares = __shfl_xor_sync(0xffffffffu, squares[half], lanes), away = other_mean - mean[half];
        mean[half] = 0.5f * (mean[half] + other_mean);
        squares[half] = fmaf(away * away, Config::kN / 8 * lanes, squares[half] + other_squares);
      }
    }
    if (p_.cluster_n > 1) {
      const float4 own = make_float4(mean[0], squares[0], mean[1], squares[1]);
      SendToOthers(barriers_.Statistics(), 8 * sizeof(own), [&](int to, uint32_t full) {
        const int rank = pipeline_.block().rank_n;
        StoreToDsmemAsync(DsmemAddress(Statistics() + (rank - (rank > to)) * 8, to), own, full);
      });
      WaitBarrier(barriers_.Statistics(), parity);
      Merge(own, Statistics(), &mean, &squares);
    }
    const float count = static_cast<float>(p_.cluster_n) * Config::kN;
    float scale[2], shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[half] = Norm::Scale(squares[half], count, p_.epsilon), shift[half] = -mean[half] * scale[half];
    }
    ForEachPair<ColumnVector::kGamma, ColumnVector::kBeta>(values, [&](int half, float* v, float2 gamma, float2 beta) {
      v[0] = Norm::Apply(fmaf(v[0], scale[half], shift[half]), gamma.x, beta.x);
      v[1] = Norm::Apply(fmaf(v[1], scale[half], shift[half]), gamma.y, beta.y);
    });
  }

  // Of equally long slices, by how far their means are from the first one's; in every block in the same order.
  __device__ __forceinline__ void Merge(const float4& own, const float4* others, float (*mean)[2],
                                        float (*squares)[2]) const {
    const int rank = pipeline_.block().rank_n;
    const float4 first = rank == 0 ? own : others[0];
    float sum[2] = {}, deviations[2] = {}, within[2] = {first.y, first.w};
#pragma unroll
    for (int i = 1; i < Config::kMostBlocks; ++i) {
      if (i >= p_.cluster_n) break;
      const float4 of = i == rank ? own : others[(i - (i > rank)) * 8];
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

  // Stores y, where it is to be, and makes the values what is to be rounded to 8 bits: y as it is rounded, times its
  // column's factor.
  __device__ __forceinline__ void StoreAndSmooth(Values& values, const PersistentRows<Config>& rows) const {
    T* const y = static_cast<T*>(p_.y) + static_cast<int64_t>(rows.Row(0)) * p_.n + rows.Column(0);
    const int rows_stored = Config::kRestoresResidual && p_.quantized.alone ? 0 : p_.m;
#pragma unroll
    for (int i = 0; i < Config::kBoxes; ++i) {
      float2 factors[4];
      Vectors().template Read<ColumnVector::kSmooth>(i, factors);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          float* const v = &values[16 * i + 4 * t + 2 * half];
          pairs[t] = PackPair<T>(v[0], v[1]);
          const float2 rounded = UnpackPair<T>(pairs[t]);
          v[0] = rounded.x * factors[t].x, v[1] = rounded.y * factors[t].y;
        }
        if (rows.Row(half) < rows_stored) {
          *reinterpret_cast<int4*>(y + half * 8 * static_cast<int64_t>(p_.n) + i * kPermutedRows) =
              make_int4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
      }
    }
  }

  // Rows in 8 bits over their own scales.
  __device__ __forceinline__ void StoreQuantized(const Values& values, const PersistentRows<Config>& rows,
                                                 const Tile& tile, uint32_t parity) const {
    constexpr float kMost = kLargestQuantized<Quantized>;
    float greatest[2] = {};
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) {
      greatest[i / 2 % 2] = GreaterMagnitude(greatest[i / 2 % 2], values[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      greatest[half] = GreaterMagnitude(greatest[half], __shfl_xor_sync(0xffffffffu, greatest[half], 1));
      greatest[half] = GreaterMagnitude(greatest[half], __shfl_xor_sync(0xffffffffu, greatest[half], 2));
    }
    if (p_.cluster_n > 1) {
      SendToOthers(barriers_.Magnitudes(), 8 * 2 * sizeof(uint32_t), [&](int to, uint32_t full) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          MaxInDsmemAsync(DsmemAddress(&Magnitude(half), to), __float_as_uint(greatest[half]), full);
        }
      });
      WaitBarrier(barriers_.Magnitudes(), parity);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        greatest[half] = GreaterMagnitude(greatest[half], __uint_as_float(Magnitude(half)));
      }
      __syncwarp();
      // The other blocks send the next ones when they have this warp's next statistics.
      if (threadIdx.x % 4 == 0) Magnitude(0) = Magnitude(1) = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.Row(half), column = rows.Column(0);
      if (tile.column == 0 && threadIdx.x % 4 == 0 && row < p_.m) {
        p_.quantized.scales[row] = ScaleOfRow(greatest[half], kMost);
      }
      const float inverse = kMost / fmaxf(greatest[half], kLeastMagnitude);
      Quantized* const to = static_cast<Quantized*>(p_.quantized.rows) + static_cast<int64_t>(row) * p_.n + column;
#pragma unroll
      for (int i = 0; i < Config::kBoxes; ++i) {
        float eight[8];
#pragma unroll
        for (int t = 0; t < 8; ++t) eight[t] = values[16 * i + t / 2 * 4 + 2 * half + t % 2] * inverse;
        // Integers: the product with the inverse and its rounding are one fma.
        const QuantizedPack<Quantized, 8> numbers = [&] {
          if constexpr (std::is_same_v<Quantized, int8_t>) return RoundedByOwnScale(eight);
          return Rounded<Quantized>(eight);
        }();
        if (row < p_.m) *reinterpret_cast<QuantizedPack<Quantized, 8>*>(to + i * kPermutedRows) = numbers;
      }
    }
  }

  // What the four threads of two rows have of them goes to every other block of the cluster: calls send(block, address
  // of its barrier). A warp sends each of them `bytes`. The places are free: the other blocks sent what this warp has
  // last waited for when they had read what lay there.
  template <class Send>
  __device__ __forceinline__ void SendToOthers(uint64_t* full, uint32_t bytes, Send&& send) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();  // another lane has made place
    if (lane == 0) ArriveExpectTx(full, (p_.cluster_n - 1) * bytes);
#pragma unroll
    for (int first = 0; first < Config::kMostBlocks; first += 4) {  // one block for each of the four
      const int to = first + lane % 4;
      if (to < p_.cluster_n && to != pipeline_.block().rank_n) send(to, DsmemAddress(full, to));
    }
  }
  // Of the thread's two rows, in the first other block; the next one's are 8 on.
  __device__ __forceinline__ float4* Statistics() const {
    return reinterpret_cast<float4*>(pipeline_.shared() + Config::kStatisticsOffset) +
           threadIdx.x / 32 * Config::kMostOthers * 8 + threadIdx.x % 32 / 4;
  }
  // Of one of the thread's two rows.
  __device__ __forceinline__ uint32_t& Magnitude(int half) const {
    return reinterpret_cast<uint32_t*>(
        pipeline_.shared() + Config::kMagnitudesOffset)[threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4];
  }

  __device__ __forceinline__ typename Config::Vectors Vectors() const {
    return typename Config::Vectors(pipeline_.shared() + Config::kVectorOffset);
  }

  StationaryNormBarriers<Config> barriers_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    StationaryNormKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, StationaryNormConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_
