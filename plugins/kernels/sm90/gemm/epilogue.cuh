// Epilogues: what is done to a tile's accumulators before it is stored, as a policy of the kernel's configuration. The
// accumulators are in registers (sm90/layout.cuh says which thread holds which).
#ifndef BERTFUSE_KERNELS_SM90_GEMM_EPILOGUE_CUH_
#define BERTFUSE_KERNELS_SM90_GEMM_EPILOGUE_CUH_

#include "kernels/activation.cuh"
#include "kernels/dependent_launch.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/gemm/column_vectors.cuh"
#include "kernels/sm90/ptx/tma.cuh"
#include "kernels/sm90/ptx/wgmma.cuh"

namespace bertfuse::kernels::gemm_sm90 {

// A list of steps, in the order in which they are applied: Epilogue<AddBias, Activate<Activations>> is
// activation(product + bias). A step is an EpilogueStep of the vectors that it reads, and has a function for a thread's
// values of 64 rows:
//
//   template <class Tile, int kCount> static auto Apply(float (&v)[kCount], const Tile& tile);
//
// v[4 j] and v[4 j + 1] are y's at row tile.Row(0), v[4 j + 2] and v[4 j + 3] at tile.Row(1), each pair at
// tile.Column(j) and the column after it; those of j and j + 4 are 32 columns apart. `tile` also has the step's
// Vectors<Step>(j) at these columns, the RowScale() of these rows, the kernel's parameters(), for Quantize the
// zero_share(), and in the one-tile kernel the staged() residual. Apply() returns what remains to be done when the
// values are stored, eight at a time. Only a norm returns anything, and so it must be the last step. A gate multiplies
// the columns of two factors (TileConfig), which leaves half as many to be stored, in the first values: nothing but
// Quantize may follow it, which is the last step.
template <class... Steps>
struct Epilogue {
  using Vectors = StepVectors<Steps...>;
  static constexpr bool kAddsResidual = (false || ... || Steps::kAddsResidual);
  static constexpr bool kNormalizes = (false || ... || Steps::kNormalizes);  // whole rows, across the cluster
  static constexpr bool kQuantizes = (false || ... || Steps::kQuantizes);    // what is stored has 8 bits
  static constexpr bool kRotates = (false || ... || Steps::kRotates);

  static constexpr int kFactors = (1 * ... * Steps::kFactors);

  static constexpr bool kEachNormalizes[] = {false, Steps::kNormalizes...};
  static_assert(kNormalizes == kEachNormalizes[sizeof...(Steps)], "only the last step may leave something to do");

  static bool Supports(Activation activation) { return (true && ... && Steps::Supports(activation)); }
  // Whether with these parameters it may be applied to each split's part of a sum over k: whether it does nothing, or
  // scales.
  static bool AppliesToSplits(const Parameters& p) { return (true && ... && Steps::AppliesToSplits(p)); }

  // Called by one thread, before the block's first barrier.
  template <class Pipeline>
  __device__ __forceinline__ static void InitBarriers(const Pipeline& pipeline) {
    (Steps::InitBarriers(pipeline), ...);
  }

  template <class Tile, int kCount>
  __device__ __forceinline__ static auto Apply(float (&v)[kCount], const Tile& tile) {
    return (Steps::Apply(v, tile), ...);
  }
};

// A step's defaults.
template <ColumnVector... kEach>
struct EpilogueStep : ColumnVectors<kEach...> {
  static constexpr bool kAddsResidual = false, kNormalizes = false, kQuantizes = false, kRotates = false;
  static constexpr int kFactors = 1;
  static bool Supports(Activation) { return true; }
  static bool AppliesToSplits(const Parameters&) { return false; }
  template <class Pipeline>
  __device__ __forceinline__ static void InitBarriers(const Pipeline&) {}
};

struct NothingToFinish {
  __device__ __forceinline__ void operator()(int, float*) const {}
};

// Scales of x's rows: a thread's two of each block of 64 rows. The kernel before this one may have written them, so
// they are loaded once it has ended, but early: while x is on its way, or under the main loop's first product. Of
// 16-bit operands: none.
template <class Config>
class RowScales {
 public:
  // `row`: the thread's first one.
  __device__ __forceinline__ void Load(const Parameters& p, int row) {
    if constexpr (kIsQuantized<Config>) {
      WaitForDependencies();
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int at = row + i / 2 * 64 + i % 2 * 8;
        value_[i] = at < p.m ? p.row_scales[at] : 0.0f;
      }
    }
  }
  __device__ __forceinline__ float At(int block, int half) const {
    float value = value_[half];
#pragma unroll
    for (int i = 1; i < Config::kRowBlocks; ++i) value = block == i ? value_[2 * i + half] : value;
    return value;
  }

 private:
  static constexpr int kCount = 2 * Config::kRowBlocks;
  float value_[kCount];
};

// The product of 8-bit operands, times the scales of its row of x and of its row of weight.
struct Scale : EpilogueStep<ColumnVector::kScale> {
  static bool AppliesToSplits(const Parameters&) { return true; }
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    const float row[2] = {tile.RowScale(0), tile.RowScale(1)};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 column = tile.template Vectors<Scale>(j).vector[0];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[4 * j + i] = v[4 * j + i] * row[i / 2] * (i % 2 == 0 ? column.x : column.y);
    }
    return {};
  }
};

struct AddBias : EpilogueStep<ColumnVector::kBias> {
  static bool AppliesToSplits(const Parameters& p) { return p.bias == nullptr; }
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 add = tile.template Vectors<AddBias>(j).vector[0];
      v[4 * j] += add.x, v[4 * j + 1] += add.y, v[4 * j + 2] += add.x, v[4 * j + 3] += add.y;
    }
    return {};
  }
};

// What remains of an epilogue for accumulators that start with the bias, where the bias is the first thing added.
template <class Epilogue>
struct StartingFromBias {
  static constexpr bool kPossible = false;
  using Rest = Epilogue;
};
template <class... Steps>
struct StartingFromBias<Epilogue<AddBias, Steps...>> {
  static constexpr bool kPossible = true;
  using Rest = Epilogue<Steps...>;
};

// One of the set's activations, as accurate as 16-bit results need.
template <class Set>
struct Activate : EpilogueStep<> {
  static bool Supports(Activation activation) { return Set::Has(activation); }
  static bool AppliesToSplits(const Parameters& p) { return p.activation == Activation::kNone; }
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    if constexpr (kIsQuantized<typename Tile::Config>) {
      Set::template ForFinite<kCount>(v, tile.parameters().activation);
    } else {
      Set::template For16Bits<kCount>(v, tile.parameters().activation);
    }
    return {};
  }
};

// The first factor's activation times the second factor.
template <class Set>
struct Gate : EpilogueStep<> {
  static constexpr int kFactors = 2;
  static bool Supports(Activation activation) { return Set::Has(activation); }
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    Set::template For16Bits<kCount / 2>(v, tile.parameters().activation);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) v[i] *= v[i + kCount / 2];
    return {};
  }
};

// The residual, if there is one.
struct AddResidual : EpilogueStep<> {
  static constexpr bool kAddsResidual = true;
  static bool AppliesToSplits(const Parameters& p) { return !p.has_residual; }
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
    if (tile.parameters().has_residual) {
#pragma unroll
      for (int i = 0; i < kCount / 8; ++i) tile.staged().Add(i, &v[8 * i]);
    }
    return {};
  }
};

// A QuantizedResult's numbers: y as it is rounded to T, times its column's factor and the inverse of the scale, of
// which the kernel makes one vector; of integers their shares of the range. It rounds them to 8 bits
// (store_quantized.cuh).
template <class T>
struct Quantize : EpilogueStep<ColumnVector::kSmooth> {
  static constexpr bool kQuantizes = true;
  template <class Tile, int kCount>
  __device__ __forceinline__ static NothingToFinish Apply(float (&v)[kCount], const Tile& tile) {
#pragma unroll
    for (int j = 0; j < kCount / Tile::Config::kFactors / 4; ++j) {
      const float2 factor = tile.template Vectors<Quantize>(j).vector[0];
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
        const float2 rounded = UnpackPair<T>(PackPair<T>(v[i], v[i + 1]));
        if constexpr (std::is_same_v<typename Tile::Config::X, int8_t>) {
          v[i] = __saturatef(fmaf(rounded.x, factor.x, tile.zero_share()));
          v[i + 1] = __saturatef(fmaf(rounded.y, factor.y, tile.zero_share()));
        } else {
          v[i] = rounded.x * factor.x, v[i + 1] = rounded.y * factor.y;
        }
      }
    }
    return {};
  }
};

// Sets sums of integers to what is taken off them at the tile's columns, or to 0. Returns whether they are set; other
// sums are not. (Set under a condition, ptxas would wait for each wgmma before it issues the next: its note C7515.)
template <class Config, class Sum, int kRowBlocks, int kCount>
__device__ __forceinline__ bool StartFromCompensation(Sum (&sums)[kRowBlocks][kCount], const Parameters& p,
                                                      int first_column, int split) {
  if constexpr (std::is_same_v<Sum, int32_t>) {
    const bool given = p.x_compensation != nullptr && split == 0;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const int column = first_column + 8 * j + FirstColumn();
      const bool inside = given && column < p.n;
      const int2 start = inside ? *reinterpret_cast<const int2*>(p.x_compensation + column) : int2{};
#pragma unroll
      for (auto& block : sums) {
        block[4 * j] = block[4 * j + 2] = -start.x, block[4 * j + 1] = block[4 * j + 3] = -start.y;
      }
    }
#pragma unroll
    for (auto& block : sums) FenceRegisters(block);
    return true;
  }
  return false;
}

// Calls body(v) with accumulators as floats, in the registers that they have where they are floats.
template <int kCount, class Body>
__device__ __forceinline__ void WithFloats(float (&v)[kCount], Body&& body) {
  body(v);
}
template <int kCount, class Body>
__device__ __forceinline__ void WithFloats(int32_t (&sums)[kCount], Body&& body) {
  float v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = static_cast<float>(sums[i]);
  body(v);
}

// A staged tile of 64 rows x kColumns, laid out as TMA loads and stores it. A warp accesses its 16 rows as 8 x 8
// matrices, four at a time (ldmatrix, stmatrix), which cover 16 columns; each lane addresses a row of one of the four.
// The next box is swizzled alike, so its addresses are a constant away; left to itself the compiler keeps every address
// in a register.
template <class T, int kColumns>
struct StagedRows {
  static_assert(sizeof(T) == 2, "stmatrix and ldmatrix move 2-byte elements");
  static constexpr int kCount = kColumns / 16;
  static constexpr int kPitch = kColumns * sizeof(T);
  static constexpr int kBoxBytes = 64 * kPitch;
  __device__ __forceinline__ explicit StagedRows(const char* boxes) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      at_[j] = SharedAddress(boxes) + Swizzled<kPitch>(row, (2 * j + lane / 16) * 16);
    }
  }
  // v: the thread's 8 values of the i-th 16 columns.
  __device__ __forceinline__ void Add(int i, float* v) const { Add(i / kCount, i % kCount, v); }
  __device__ __forceinline__ void Store(int i, const float* v) const { Store(i / kCount, i % kCount, v); }

 private:
  __device__ __forceinline__ void Add(int box, int j, float* v) const {
    uint32_t pairs[4];
    LoadMatrices(pairs, at_[j] + box * kBoxBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<T>(pairs[i]);
      v[2 * i] += pair.x, v[2 * i + 1] += pair.y;
    }
  }
  __device__ __forceinline__ void Store(int box, int j, const float* v) const {
    const uint32_t pairs[4] = {PackPair<T>(v[0], v[1]), PackPair<T>(v[2], v[3]), PackPair<T>(v[4], v[5]),
                               PackPair<T>(v[6], v[7])};
    StoreMatrices(at_[j] + box * kBoxBytes, pairs);
  }
  uint32_t at_[kCount];
};

}  // namespace bertfuse::kernels::gemm_sm90
#endif  // BERTFUSE_KERNELS_SM90_GEMM_EPILOGUE_CUH_
