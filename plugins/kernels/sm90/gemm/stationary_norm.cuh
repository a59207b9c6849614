// The weight-stationary kernel whose rows end in LayerNorm and in 8 bits with a scale for each row, too: for hidden
// sizes of which a cluster's blocks hold the weight. y = LayerNorm(x weight^T + bias + residual), and what the next
// product reads of it. Three warpgroups take tiles of 64 rows in turn, so that two exchange rows' statistics and
// magnitudes with the cluster's other blocks, normalise and store while one multiplies. It moves three fifths of the
// bytes that product and norm move: 16384 x 768 x 768 in fp8 take an H200 33.3 us in place of 41.6.
//
// A tile takes about 5,000 cycles, its products 2,900. Shared memory is busy in two thirds of them: wgmma reads 1,540
// cycles' worth, the epilogue's vectors and residual are 1,080 (by ncu), and what TMA writes is 580.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_STATIONARY_NORM_CUH_

#include "kernels/norm.cuh"
#include "kernels/sm90/gemm/stationary.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// What the epilogue reads of the columns beside scales and bias. (It is the consumer's code, not steps of Epilogue.)
struct NormVectors : EpilogueStep<ColumnVector::kGamma, ColumnVector::kBeta> {};
struct SmoothVector : EpilogueStep<ColumnVector::kSmooth> {};

template <class Elements, int kN, int kStages, int kWeightStages_, bool kPacked>
struct StationaryNormConfig : StationaryTile<Elements, kN, kStages, kWeightStages_, kPacked> {
  using Epilogue = gemm_sm90::Epilogue<Scale, AddBias, NormVectors, SmoothVector>;
  using Base = StationaryTile<Elements, kN, kStages, kWeightStages_, kPacked>;
  static constexpr bool kHasResidualWarp = true;

  // The residual's rows in boxes of 32 columns, swizzled over their 64 bytes.
  static constexpr int kBoxColumns = 32, kBoxes = kN / kBoxColumns, kBoxBytes = 64 * kBoxColumns * 2;
  static constexpr size_t kResidualOffset = Base::kWeightEnd;
  static constexpr size_t kVectorOffset = kResidualOffset + static_cast<size_t>(kBoxes) * kBoxBytes;
  static constexpr size_t kVectorFloats = static_cast<size_t>(Epilogue::Vectors::kCount) * kN;
  // Of each warp's 16 rows and each block of the cluster: a row's mean and squares, and its greatest magnitude.
  static constexpr int kMostBlocks = kMostStationaryNorm / kN, kWarps = 4 * Base::kWarpgroups;
  static constexpr size_t kStatisticsOffset = kVectorOffset + kVectorFloats * sizeof(float);
  static constexpr size_t kMagnitudesOffset = kStatisticsOffset + kWarps * kMostBlocks * 16 * sizeof(float2);
  static constexpr size_t kBarrierOffset = kMagnitudesOffset + kWarps * kMostBlocks * 16 * sizeof(float);
  // Behind the ring's: the weight's stages, that the residual's place is free, that each warpgroup's is there, and each
  // warp's two.
  static constexpr size_t kBarriers = 2 * kStages + kWeightStages_ + 1 + Base::kWarpgroups + 2 * kWarps;
  static constexpr size_t kCountsOffset = kBarrierOffset + (kBarriers * 8 + 15) / 16 * 16;
  static constexpr size_t kSharedBytes = (kCountsOffset + Base::kCountsBytes + 127) / 128 * 128;
  static_assert(kSharedBytes <= 227 << 10);
  static size_t SharedBytes(int) { return kSharedBytes; }
};

template <class Config>
class StationaryNormBarriers {
 public:
  __device__ __forceinline__ explicit StationaryNormBarriers(const Pipeline<Config>& pipeline) : pipeline_(pipeline) {}
  __device__ __forceinline__ uint64_t* ResidualEmpty() const {
    return pipeline_.Empty(Config::kStages) + Config::kWeightStages;
  }
  // For each warpgroup one, though there is one place: a parity tells a tile from the one before, and a warpgroup may
  // come to wait two tiles early.
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
  static constexpr int kResidualSleep = 100;  // ns

  // Into L2: there is but one place for residuals, and x's ring is shorter than a tile.
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

  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    if (group == 0) VectorsOfTile<Config>(p_, pipeline_.scheduler().TileAt(0)).Store(Vectors(), 1.0f);
    SyncNamed<128 * Config::kWarpgroups>(kVectorBarrier);
    Base::ForEachTile(group, state, [&](int number, const Tile& tile, auto& sums, const RowScales<Config>& row_scales) {
      WithFloats(sums[0], [&](Values& values) { Finish(values, group, number, tile, row_scales); });
    });
  }

 private:
  static constexpr int kVectorBarrier = 8;  // behind those of the main loops' order

  __device__ __forceinline__ void Finish(Values& values, int group, int number, const Tile& tile,
                                         const RowScales<Config>& row_scales) const {
    const PersistentRows<Config> rows(p_, tile, 0, 0, Vectors(), row_scales, 0.0f);
    Scale::Apply(values, rows);
    AddBias::Apply(values, rows);
    const uint32_t parity = number / Config::kWarpgroups & 1;
    if (p_.has_residual) AddResidual(values, group, parity);
    Normalize(values, rows, parity);
    WaitForDependencies();  // an earlier kernel may still be reading what this overwrites
    StoreAndSmooth(values, rows);
    StoreQuantized(values, rows, tile, parity);
  }

  __device__ __forceinline__ void AddResidual(Values& values, int group, uint32_t parity) const {
    WaitBarrier(barriers_.ResidualFull(group), parity);
    const uint32_t at = SharedAddress(pipeline_.shared() + Config::kResidualOffset) +
                        Swizzled<Config::kBoxColumns * sizeof(T)>(FirstRow(), threadIdx.x % 4 * 16);
#pragma unroll
    for (int i = 0; i < Config::kBoxes; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[4];
        LoadShared(pairs, at + i * Config::kBoxBytes + half * 8 * Config::kBoxColumns * sizeof(T));  // swizzled alike
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

  // Over the four threads of a row.
  __device__ __forceinline__ static float QuadSum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // LayerNorm of the thread's two rows, in two passes over registers, and Chan's sum over the cluster's slices.
  __device__ __forceinline__ void Normalize(Values& values, const PersistentRows<Config>& rows, uint32_t parity) const {
    float mean[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) mean[i / 2 % 2] += values[i];
#pragma unroll
    for (int half = 0; half < 2; ++half) mean[half] = Norm::Center(QuadSum(mean[half]), Config::kN);
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) {
      const float centered = values[i] - mean[i / 2 % 2];
      squares[i / 2 % 2] = fmaf(centered, centered, squares[i / 2 % 2]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) squares[half] = QuadSum(squares[half]);
    if (p_.cluster_n > 1) {
      Send(Config::kStatisticsOffset, barriers_.Statistics(), make_float4(mean[0], squares[0], mean[1], squares[1]));
      WaitBarrier(barriers_.Statistics(), parity);
      Merge(Received<float4>(Config::kStatisticsOffset), &mean, &squares);
    }
    const float count = static_cast<float>(p_.cluster_n) * Config::kN;
    float scale[2], shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[half] = Norm::Scale(squares[half], count, p_.epsilon), shift[half] = -mean[half] * scale[half];
    }
#pragma unroll
    for (int j = 0; j < Config::kAccumulators / 4; ++j) {
      const auto [gamma, beta] = rows.template Vectors<NormVectors>(j).vector;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const v = &values[4 * j + 2 * half];
        v[0] = Norm::Apply(fmaf(v[0], scale[half], shift[half]), gamma.x, beta.x);
        v[1] = Norm::Apply(fmaf(v[1], scale[half], shift[half]), gamma.y, beta.y);
      }
    }
  }

  // Of equally long slices, by how far their means are from the first one's.
  __device__ __forceinline__ void Merge(const float4* slice, float (*mean)[2], float (*squares)[2]) const {
    const float4 first = slice[0];
    float sum[2] = {}, deviations[2] = {}, within[2] = {first.y, first.w};
#pragma unroll
    for (int i = 1; i < Config::kMostBlocks; ++i) {
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

  // Stores y, and makes the values what is to be rounded to 8 bits: y as it is rounded, times its column's factor.
  __device__ __forceinline__ void StoreAndSmooth(Values& values, const PersistentRows<Config>& rows) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.Row(half), column = rows.Column(0);
      T* const y = static_cast<T*>(p_.y) + static_cast<int64_t>(row) * p_.n + column;
#pragma unroll
      for (int i = 0; i < Config::kBoxes; ++i) {
        uint32_t pairs[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          float* const v = &values[16 * i + 4 * t + 2 * half];
          pairs[t] = PackPair<T>(v[0], v[1]);
          const float2 rounded = UnpackPair<T>(pairs[t]),
                       factor = rows.template Vectors<SmoothVector>(4 * i + t).vector[0];
          v[0] = rounded.x * factor.x, v[1] = rounded.y * factor.y;
        }
        if (row < p_.m) {
          *reinterpret_cast<int4*>(y + i * kPermutedRows) = make_int4(pairs[0], pairs[1], pairs[2], pairs[3]);
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
      Send(Config::kMagnitudesOffset, barriers_.Magnitudes(), make_float2(greatest[0], greatest[1]));
      WaitBarrier(barriers_.Magnitudes(), parity);
      const float2* const slice = Received<float2>(Config::kMagnitudesOffset);
#pragma unroll
      for (int i = 0; i < Config::kMostBlocks; ++i) {
        if (i >= p_.cluster_n) break;
        const float2 of = slice[i * 8];
        greatest[0] = GreaterMagnitude(greatest[0], of.x), greatest[1] = GreaterMagnitude(greatest[1], of.y);
      }
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
    return reinterpret_cast<Value*>(pipeline_.shared() + offset) + threadIdx.x / 32 * Config::kMostBlocks * 8 +
           threadIdx.x % 32 / 4;
  }

  __device__ __forceinline__ float* Vectors() const {
    return reinterpret_cast<float*>(pipeline_.shared() + Config::kVectorOffset);
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
