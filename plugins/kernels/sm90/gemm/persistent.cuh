// The persistent ping-pong kernel, for many rows: y = Epilogue(x weight^T); split-K for the tiles of the last wave.
// Results are stored from registers.
#ifndef BERTFUSE_KERNELS_SM90_GEMM_PERSISTENT_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_PERSISTENT_CUH_

#include "kernels/sm90/gemm/block.cuh"
#include "kernels/sm90/gemm/store_quantized.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// What the steps of an epilogue are given about 64 rows, and columns from `first` on. As the weight's rows are
// permuted, a thread has 8 adjacent columns of every 32.
template <class Config_>
class PersistentRows {
  using T = typename Config_::Y;

 public:
  using Config = Config_;
  static constexpr bool kAdjacentPairs = true;  // columns of j, j + 1, j + 2 and j + 3 are side by side
  __device__ __forceinline__ PersistentRows(const Parameters& p, const Tile& tile, int block, int first,
                                            const float* vectors, const RowScales<Config>& row_scales, float zero_share)
      : p_(p),
        row_(tile.row + block * 64 + FirstRow()),
        tile_column_(tile.column),
        block_(block),
        first_(first),
        vectors_(vectors),
        row_scales_(row_scales),
        zero_share_(zero_share) {}
  __device__ __forceinline__ const Parameters& parameters() const { return p_; }
  __device__ __forceinline__ int Row(int half) const { return row_ + 8 * half; }
  __device__ __forceinline__ float RowScale(int half) const { return row_scales_.At(block_, half); }
  __device__ __forceinline__ float zero_share() const { return zero_share_; }
  __device__ __forceinline__ int Column(int j) const { return tile_column_ + ColumnOfFactor(j); }
  template <class Step>
  __device__ __forceinline__ ColumnPair<Step::kVectors> Vectors(int j) const {
    const int factor = j / 4 / kGroups;
    if constexpr (Config::kSharesVectors) {
      return VectorRegisters<Config>::template Read<Step>(vectors_, factor * Config::kOutN + ColumnOfFactor(j));
    }
    const bool inside = tile_column_ + j / 4 % kGroups * kPermutedRows < p_.n;
    return LoadPairs<Step, T>(p_, inside, factor * p_.n + Column(j));
  }

 private:
  // Of each factor's columns, of those that the epilogue takes at once.
  static constexpr int kGroups = Config::kAtOnce / Config::kFactors * 2 / kPermutedRows;
  __device__ __forceinline__ int ColumnOfFactor(int j) const {
    return first_ + threadIdx.x % 4 * 8 + j / 4 % kGroups * kPermutedRows + j % 4 * 2;
  }

  const Parameters& p_;
  int row_, tile_column_, block_, first_;
  const float* vectors_;  // in shared memory, where Config::kSharesVectors
  const RowScales<Config>& row_scales_;
  float zero_share_;
};

// A tile's vectors on their way to shared memory.
template <class Config, bool = Config::kSharesVectors>
struct VectorsOfTile {
  __device__ __forceinline__ VectorsOfTile(const Parameters&, const Tile&) {}
  __device__ __forceinline__ void Store(float*, float) const {}
};
template <class Config>
struct VectorsOfTile<Config, true> : VectorRegisters<Config> {
  __device__ __forceinline__ VectorsOfTile(const Parameters& p, const Tile& tile)
      : VectorRegisters<Config>(p, tile.column) {}
};

template <class Config>
class PersistentConsumer {
  using T = typename Config::Y;
  using StartsFromBias = StartingFromBias<typename Config::Epilogue>;
  using Loop = Mainloop<Config>;
  using Accumulators = typename Loop::Accumulators;
  using State = typename Loop::State;

 public:
  using Producer = gemm_sm90::Producer<Config>;
  __device__ __forceinline__ explicit PersistentConsumer(const Pipeline<Config>& pipeline)
      : p_(pipeline.parameters()), pipeline_(pipeline) {}

  __device__ __forceinline__ void InitBarriers() const {}

  // Warpgroup `group` takes its team's part of every second tile. `state`: as for the producer.
  __device__ __forceinline__ void Run(int group, State& state) const {
    if (!p_.weights_are_constant) WaitForDependencies();
    ResultScale<Config> result_scale;
    result_scale.Load(p_);
    const Loop mainloop(pipeline_);
    const int team = group / Config::kTeam, first_row_block = group % Config::kTeam * Config::kRowBlocks;
    if (team == 1) state.Advance(pipeline_.scheduler().TileAt(0).stages());
    for (int number = team; pipeline_.scheduler().HasTile(number); number += 2) {
      Tile tile = pipeline_.scheduler().TileAt(number);
      tile.row += first_row_block * 64;
      const int stages = tile.stages(),
                row_blocks = (pipeline_.scheduler().Rows() - tile.row + 63) / 64;  // with rows in them
      Accumulators accumulators;
      if constexpr (std::is_same_v<typename Config::Accumulator, int32_t>) {
        StartFromCompensation(accumulators, tile);
      } else {
        StartFromBias(accumulators, tile);
      }
      const VectorsOfTile<Config> vectors(p_, tile);
      RowScales<Config> row_scales;
      Loop::Fence(accumulators);  // or the compiler converts the bias after the wait
      // The order barrier is also needed because an mbarrier's parity only tells a round of the ring from the one
      // before.
      if (number > 0) WaitForMainloop(number);
      const int last_stage = mainloop.IssueSome(accumulators, state, stages, first_row_block, row_blocks, [&] {
        // (All of this warpgroup are past the epilogue that read the vectors before, by the barrier above.)
        vectors.Store(Vectors(group), result_scale.Factor());
        row_scales.Load(p_, tile.row + FirstRow());
      });
      if (pipeline_.scheduler().HasTile(number + 1)) HandMainloopOver(number + 1);
      mainloop.Finish(accumulators, last_stage);
      if constexpr (Config::kSharesVectors) SyncNamed<128>(kVectorBarrier + group);
      Store(accumulators, tile, Vectors(group), row_scales, result_scale);
      // Skips the stages of the other team's tile.
      if (pipeline_.scheduler().HasTile(number + 2)) state.Advance(pipeline_.scheduler().TileAt(number + 1).stages());
    }
  }

 protected:
  // Named barriers that order the two teams' main loops; which of the two alternates with the tile's number.
  static constexpr int kOrderBarrier = 2 + Config::kWarpgroups;
  static constexpr int kAtOnce = Config::kAtOnce;
  static constexpr int kGroupsAtOnce = kAtOnce / Config::kFactors * 2 / kPermutedRows;
  static constexpr int kPartsOfRows = Config::kAccumulators / kAtOnce;  // of 64 rows
  // Among a thread's accumulators value i of a part of a tile: of two factors it has the same columns of both.
  __device__ __forceinline__ static constexpr int PlaceOf(int part, int i) {
    constexpr int kOfFactor = kAtOnce / Config::kFactors;
    return part / kPartsOfRows * Config::kAccumulators + i / kOfFactor * (Config::kAccumulators / Config::kFactors) +
           part % kPartsOfRows * kOfFactor + i % kOfFactor;
  }
  static constexpr int kVectorBarrier = 1;  // one for each warpgroup, whose threads have stored their vectors

  __device__ __forceinline__ static void WaitForMainloop(int number) {
    SyncNamed<128 * Config::kWarpgroups>(kOrderBarrier + number % 2);
  }
  __device__ __forceinline__ static void HandMainloopOver(int number) {
    ArriveNamed<128 * Config::kWarpgroups>(kOrderBarrier + number % 2);
  }

  // Sets the accumulators to the bias of this thread's columns, if the epilogue begins with one; else to 0.
  __device__ __forceinline__ void StartFromBias(Accumulators& accumulators, const Tile& tile) const {
    constexpr int kGroups = Config::kOutN / kPermutedRows;
#pragma unroll
    for (int i = 0; i < Config::kN / kPermutedRows; ++i) {
      const int group = i % kGroups * kPermutedRows;
      const T* bias = static_cast<const T*>(p_.bias) + i / kGroups * p_.n + tile.column + threadIdx.x % 4 * 8;
      const bool inside = StartsFromBias::kPossible && p_.bias != nullptr && tile.column + group < p_.n;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t packed = inside ? *reinterpret_cast<const uint32_t*>(bias + group + 2 * t) : 0;
        const float2 pair = UnpackPair<T>(packed);
#pragma unroll
        for (int j = 0; j < 2 * Config::kRowBlocks; ++j) {
          auto* v = &accumulators[j / 2][16 * i + 4 * t + j % 2 * 2];
          if constexpr (StartsFromBias::kPossible) {
            v[0] = pair.x, v[1] = pair.y;
          } else {
            v[0] = v[1] = 0;
          }
        }
      }
    }
  }

  // Sets sums of integers to what is taken off them at this thread's columns, or to 0.
  __device__ __forceinline__ void StartFromCompensation(Accumulators& sums, const Tile& tile) const {
    const bool given = p_.x_compensation != nullptr && tile.split == 0;
    ForEachCompensation(tile, given,
                        [&](int block, int i, int2 pair) { sums[block][i] = -pair.x, sums[block][i + 1] = -pair.y; });
  }
  // The same where it is given, of sums that are complete.
  __device__ __forceinline__ void TakeOffCompensation(Accumulators& sums, const Tile& tile) const {
    ForEachCompensation(tile, true,
                        [&](int block, int i, int2 pair) { sums[block][i] -= pair.x, sums[block][i + 1] -= pair.y; });
  }
  // Calls body(block of rows, accumulator, what is taken off it and the next one).
  template <class Body>
  __device__ __forceinline__ void ForEachCompensation(const Tile& tile, bool given, Body&& body) const {
    constexpr int kGroups = Config::kOutN / kPermutedRows;
#pragma unroll
    for (int i = 0; i < Config::kN / kPermutedRows; ++i) {
      const int column = tile.column + i % kGroups * kPermutedRows + static_cast<int>(threadIdx.x) % 4 * 8;
      const int32_t* const from = p_.x_compensation + i / kGroups * p_.n + column;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const bool inside = given && column < p_.n;
        const int2 pair = inside ? *reinterpret_cast<const int2*>(from + 2 * t) : int2{};
#pragma unroll
        for (int j = 0; j < 2 * Config::kRowBlocks; ++j) body(j / 2, 16 * i + 4 * t + j % 2 * 2, pair);
      }
    }
  }

  __device__ __forceinline__ float* Vectors(int group) const {
    return reinterpret_cast<float*>(pipeline_.shared() + Config::kVectorOffset) + group * Config::kVectorFloats;
  }

  // Stores from registers to global memory: shared memory is busy enough with the other warpgroup's product.
  __device__ __forceinline__ void Store(Accumulators& accumulators, const Tile& tile, const float* vectors,
                                        const RowScales<Config>& row_scales,
                                        const ResultScale<Config>& result_scale) const {
    T* const out = tile.split == 0 ? static_cast<T*>(p_.y) : Partials(tile.split);
    WaitForDependencies();  // an earlier kernel may still be reading what this overwrites
    constexpr int kParts = Config::kRowBlocks * Config::kAccumulators / kAtOnce;
    auto& all = reinterpret_cast<typename Config::Accumulator(&)[kParts * kAtOnce]>(accumulators);
    const auto store = [&](int part, int at, auto&& store_values) {
      const auto finish = [&](auto& some) {
        if constexpr (Config::kSharesVectors) FenceRegisters(some);
        WithFloats(some, [&](auto& values) {
          const int first_column = part % kPartsOfRows * (kAtOnce / Config::kFactors) * 2;
          const PersistentRows<Config> rows(p_, tile, part / kPartsOfRows, first_column, vectors, row_scales,
                                            result_scale.ZeroShare());
          StartsFromBias::Rest::Apply(values, rows);
          store_values(values, rows, first_column);
        });
      };
      if constexpr (Config::kFactors == 1 || kPartsOfRows == 1) {
        finish(reinterpret_cast<typename Config::Accumulator(&)[kAtOnce]>(all[at * kAtOnce]));
      } else {
        typename Config::Accumulator some[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) some[i] = all[PlaceOf(at, i)];
        finish(some);
      }
    };
    if constexpr (Config::Epilogue::kQuantizes) {
      // With code for each part a warp waits for instructions: the caches do not hold them. So a loop goes through the
      // parts, whose accumulators move down to the registers that its code has: 4096x3072x768 of integers took an H100
      // 28 us in place of 32. With a single part in the loop the moves take more than they save.
      constexpr int kUnrolled = kParts % 2 == 0 ? 2 : 1;
      static_assert(kParts % kUnrolled == 0 && Config::kSharesVectors);
#pragma unroll 1
      for (int part = 0; part < kParts; part += kUnrolled) {
#pragma unroll
        for (int i = 0; i < kUnrolled; ++i) {
          store(part + i, i, [&](auto& values, const auto& rows, int first_column) {
            StoreQuantized(values, rows);
            if (first_column != 0) return;
#pragma unroll
            for (int half = 0; half < 2; ++half) result_scale.Store(rows.Row(half), tile.column, p_);
          });
        }
#pragma unroll
        for (int i = 0; i < (kParts - kUnrolled) * kAtOnce; ++i) {
          all[PlaceOf(i / kAtOnce, i % kAtOnce)] = all[PlaceOf(i / kAtOnce + kUnrolled, i % kAtOnce)];
        }
      }
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        store(part, part, [&](auto& values, const auto& rows, int) { StoreRows(values, rows, out); });
      }
    }
  }

  __device__ __forceinline__ void StoreRows(const float (&values)[kAtOnce], const PersistentRows<Config>& rows,
                                            T* out) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.Row(half), column = rows.Column(0);
      T* y = out + static_cast<int64_t>(row) * p_.n + column;
#pragma unroll
      for (int i = 0; i < kGroupsAtOnce; ++i) {
        uint32_t pairs[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float* v = &values[16 * i + 4 * t + 2 * half];
          pairs[t] = PackPair<T>(v[0], v[1]);
        }
        if (row < p_.m && column + i * kPermutedRows < p_.n) {
          *reinterpret_cast<int4*>(y + i * kPermutedRows) = make_int4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
      }
    }
  }

  // In 8 bits.
  __device__ __forceinline__ void StoreQuantized(const float (&values)[kAtOnce],
                                                 const PersistentRows<Config>& rows) const {
    using Quantized = typename Config::X;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.Row(half), column = rows.Column(0);
      Quantized* y = static_cast<Quantized*>(p_.quantized.rows) + static_cast<int64_t>(row) * p_.n + column;
#pragma unroll
      for (int i = 0; i < kGroupsAtOnce; ++i) {
        float eight[8];
#pragma unroll
        for (int t = 0; t < 8; ++t) eight[t] = values[16 * i + t / 2 * 4 + 2 * half + t % 2];
        const QuantizedPack<Quantized, 8> rounded = RoundedNumbers<Quantized>(eight);
        if (row < p_.m && column + i * kPermutedRows < p_.n) {
          *reinterpret_cast<QuantizedPack<Quantized, 8>*>(y + i * kPermutedRows) = rounded;
        }
      }
    }
  }

  // Where row 0 of that split's partial sums would be; their memory begins with row unsplit_rows.
  __device__ __forceinline__ T* Partials(int split) const {
    const int64_t rows = static_cast<int64_t>(split - 1) * p_.partial_rows - pipeline_.scheduler().UnsplitRows();
    return static_cast<T*>(p_.partials) + rows * p_.n;
  }

  const Parameters& p_;
  const Pipeline<Config>& pipeline_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    PersistentKernel(const __grid_constant__ Parameters parameters) {
  RunBlock<Config, PersistentConsumer<Config>>(parameters, DynamicShared());
}

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_PERSISTENT_CUH_
