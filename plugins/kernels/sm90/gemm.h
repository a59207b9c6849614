#ifndef BERTFUSE_KERNELS_SM90_GEMM_H_
#define BERTFUSE_KERNELS_SM90_GEMM_H_

#include <cstddef>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/gemm.h"
#include "kernels/launch.h"

namespace bertfuse::kernels {

// Bytes of k that a pipeline stage holds of each row of x and weight: the width that TMA swizzles over.
constexpr int kStageRowBytes = 128;
template <class X>
constexpr int kStageK = kStageRowBytes / sizeof(X);  // in elements

// The longest k, or part of it, over which 8-bit floats are summed without promoting, unless a tuning file says so. Up
// to here what the tensor cores cut off is below a tenth of what rounding costs (test_gemm_quantized.cc: ShortSums).
constexpr int64_t kLongestUnpromotedK = 4096;

constexpr int kMaxCluster = 8;  // blocks that every Hopper device takes in a cluster

// What is compiled. Where two one-tile blocks have the same size, the one with more stages takes a multiprocessor to
// itself: for grids of no more blocks than there are multiprocessors.
namespace gemm_sm90 {
// {m, n, stages, per_multiprocessor}
inline constexpr GemmBlock kPersistentBlocks[] = {{128, 192, 5, 1}, {192, 128, 5, 1}, {128, 128, 6, 1}};
inline constexpr GemmBlock kOneTileBlocks[] = {{128, 128, 7, 1}, {128, 128, 3, 2}, {128, 96, 8, 1}, {128, 96, 4, 2},
                                               {64, 64, 12, 1},  {64, 96, 10, 1},  {192, 192, 4, 1}};
inline constexpr GemmBlock kGatedOneTileBlocks[] = {
    {128, 128, 7, 1}, {128, 128, 3, 2}, {128, 96, 4, 2}, {64, 64, 12, 1}};
// That rotate heads: of whole heads, and what the choice takes for Q, K and V. Of 8-bit operands those among
// kOneTileBlocks8.
inline constexpr GemmBlock kRotatingPersistentBlocks[] = {kPersistentBlocks[0], kPersistentBlocks[2]};
inline constexpr GemmBlock kRotatingOneTileBlocks[] = {kOneTileBlocks[0], kOneTileBlocks[1], kOneTileBlocks[4]};
// That add a residual, which TMA loads behind the main loop's last stage.
inline constexpr GemmBlock kResidualBlocks[] = {kOneTileBlocks[1], kOneTileBlocks[2], kOneTileBlocks[3],
                                                kOneTileBlocks[5]};
inline constexpr GemmBlock kLayerNormBlocks[] = {{128, 128, 3, 2}, {64, 96, 5, 2}, {64, 128, 4, 2}};
inline constexpr GemmBlock kSplitKBlocks[] = {{64, 96, 10, 1}};

// Of 8-bit operands, a part of these, since each takes time to compile, and the narrowest, of which two fit on a
// multiprocessor where the launch trims their rings (TrimRing()). LayerNorm has a launch of its own but in
// kStationaryBlocks.
inline constexpr GemmBlock kPersistentBlocks8[] = {kPersistentBlocks[0], kPersistentBlocks[2]};
inline constexpr GemmBlock kOneTileBlocks8[] = {
    kOneTileBlocks[0], kOneTileBlocks[3], kOneTileBlocks[5], {64, 32, 12, 2}};
// That store 8 bits: beside two others a third vector of columns takes the shared memory of a stage.
inline constexpr GemmBlock kQuantizingOneTileBlocks[] = {{128, 96, 3, 2}, kOneTileBlocks[5], kOneTileBlocks8[3]};
// Weight-stationary, that store 8 bits, or end in LayerNorm and 8 bits; then a cluster's blocks hold the whole weight.
// Each stage of k has a place for x and one for the weight: k, and before LayerNorm n, is at most MostStationaryK().
inline constexpr GemmBlock kStationaryBlocks[] = {{64, 192, 6, 1}, {64, 128, 8, 1}};
constexpr int MostStationaryK(const GemmBlock& block) { return block.stages * kStageRowBytes; }  // of 8-bit operands
// Only where a block has a multiprocessor to itself are there registers for promoted sums.
inline constexpr GemmBlock kOneTileBlocksFp8[] = {kOneTileBlocks[0],  kOneTileBlocks[3],      kOneTileBlocks[5],
                                                  kOneTileBlocks8[3], {128, 128, 6, 1, true}, {64, 96, 9, 1, true}};

struct BlockList {
  const GemmBlock* first;
  size_t count;
  template <size_t kCount>
  constexpr BlockList(const GemmBlock (&blocks)[kCount]) : first(blocks), count(kCount) {}  // NOLINT: a view
  constexpr BlockList() : first(nullptr), count(0) {}
  constexpr const GemmBlock* begin() const { return first; }
  constexpr const GemmBlock* end() const { return first + count; }
};

// By kernel.
struct Blocks {
  BlockList persistent, one_tile, layer_norm, split_k;
};
inline constexpr Blocks kHalfBlocks = {kPersistentBlocks, kOneTileBlocks, kLayerNormBlocks, kSplitKBlocks};
inline constexpr Blocks kInt8Blocks = {kPersistentBlocks8, kOneTileBlocks8, {}, kSplitKBlocks};
inline constexpr Blocks kFp8Blocks = {kPersistentBlocks8, kOneTileBlocksFp8, {}, kSplitKBlocks};
template <class X>
constexpr const Blocks& BlocksOf() {
  return std::is_same_v<X, int8_t> ? kInt8Blocks : sizeof(X) == 1 ? kFp8Blocks : kHalfBlocks;
}

template <size_t kCount>
constexpr bool IsAmong(const GemmBlock (&blocks)[kCount], const GemmBlock& block) {
  for (const GemmBlock& one : blocks) {
    if (block == one) return true;
  }
  return false;
}
constexpr bool IsPersistent(const GemmBlock& block) { return IsAmong(kPersistentBlocks, block); }
constexpr bool IsStationary(const GemmBlock& block) { return IsAmong(kStationaryBlocks, block); }
// Compiled to store 8 bits alone.
constexpr bool OnlyQuantizes(const GemmBlock& block) {
  return IsStationary(block) || (IsAmong(kQuantizingOneTileBlocks, block) && !IsAmong(kOneTileBlocks8, block));
}
constexpr bool Quantizes(const GemmBlock& block) {
  return IsAmong(kPersistentBlocks8, block) || IsAmong(kQuantizingOneTileBlocks, block) || IsStationary(block);
}
// Warpgroups that share a persistent block's tile where they store 8 bits. A thread has registers for 64 accumulators
// where there are two teams of two warpgroups.
constexpr int QuantizingTeam(const GemmBlock& block) { return block.m * block.n <= 128 * 128 ? 2 : 1; }
constexpr bool AddsResidual(const GemmBlock& block) { return IsAmong(kResidualBlocks, block); }
constexpr bool Rotates(const GemmBlock& block) {
  return IsAmong(kRotatingPersistentBlocks, block) || IsAmong(kRotatingOneTileBlocks, block);
}
}  // namespace gemm_sm90

// Whether shapes and pointers suit TMA (rows on 16-byte boundaries) and, with LayerNorm, the kernel after the product,
// which reads four elements at a time.
template <class Elements>
bool GemmSm90Supports(const GemmArguments<Elements>& a, const Device& device) {
  constexpr int64_t kMax = int64_t{1} << 31;
  constexpr int kOperandColumns = 16 / sizeof(typename Elements::X), kColumns = 16 / sizeof(typename Elements::Y);
  const int vector_bytes = (a.gamma == nullptr ? 2 : 4) * static_cast<int>(sizeof(typename Elements::Y));
  return RunsOn(Backend::kSm90, device) && a.k % kOperandColumns == 0 && a.n % kColumns == 0 && a.m < kMax &&
         a.n < kMax && a.k < kMax && IsAligned(a.x, 16) && IsAligned(a.weight, 16) && IsAligned(a.residual, 16) &&
         IsAligned(a.y, 16) && IsAligned(a.bias, vector_bytes) && IsAligned(a.gamma, vector_bytes) &&
         IsAligned(a.beta, vector_bytes) && IsAligned(a.total, 16) && IsAligned(a.weight_scales, 8) &&
         IsAligned(a.x_compensation, 8) && IsAligned(a.float_partials, 16) && IsAligned(a.partials, 16);
}

// All of them return cudaErrorInvalidConfiguration for a tile that no kernel was compiled for.

// y[m, n] = activation(product + bias). `splits` > 1 takes the bare product only: null bias, no activation.
template <class Elements>
cudaError_t GemmSm90Elementwise(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                                cudaStream_t stream);

// The same of 8-bit operands, stored by a block that Quantizes() in 8 bits of their type, in `quantized`, and not in y.
template <class Elements>
cudaError_t GemmSm90Quantizing(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                               cudaStream_t stream);

// y[m, n / 2] = activation(product + bias of the first n / 2 columns) * (the same of the others), by a block of
// kPersistentBlocks (n / 2 a multiple of 32) or kGatedOneTileBlocks (of 8). A block's n is of both factors. Of 8-bit
// operands by one of kPersistentBlocks8, and with `quantized` stored there in 8 bits of their type, and not in y.
template <class Elements>
cudaError_t GemmSm90Gated(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                          cudaStream_t stream);

// y[m, n] = product + bias, whose heads are rotated, by a block that Rotates(): a rotation that SuitsEpilogue().
template <class Elements>
cudaError_t GemmSm90Rotating(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                             cudaStream_t stream);

// y[m, n] = product + bias + residual, by a block of kResidualBlocks.
template <class Elements>
cudaError_t GemmSm90Residual(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                             cudaStream_t stream);

// y[m, n] = LayerNorm(activation(product + bias) + residual); n = cluster_n * block_n.
template <class Elements>
cudaError_t GemmSm90LayerNorm(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                              cudaStream_t stream);

// y[m, n] = LayerNorm(product + bias + residual) of 8-bit operands, and in `quantized` y in 8 bits of their type over
// each row's own scale, by a block of kStationaryBlocks; n = cluster_n * block.n. Of integers the residual may come in
// 8 bits, and y itself then be left unwritten.
template <class Elements>
cudaError_t GemmSm90QuantizingNorm(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                                   cudaStream_t stream);

// float_partials[splits, m, n] = the float32 product over each split of k.
template <class Elements>
cudaError_t GemmSm90SplitK(const GemmTile& tile, const GemmArguments<Elements>& arguments, const Device& device,
                           cudaStream_t stream);

// The product in that form.
template <class Elements>
cudaError_t GemmSm90(GemmForm form, const GemmTile& tile, const GemmArguments<Elements>& a, const Device& device,
                     cudaStream_t stream) {
  switch (form) {
    case GemmForm::kPartialSums:
      return GemmSm90SplitK(tile, a, device, stream);
    case GemmForm::kRounded:
      if constexpr (!kIsQuantized<Elements>) {
        if (a.adds_residual) return GemmSm90Residual(tile, a, device, stream);
      }
      return GemmSm90Elementwise(tile, a, device, stream);
    case GemmForm::kComplete:
      break;
  }
  if (a.gates) return GemmSm90Gated(tile, a, device, stream);
  if (a.rotation.cos != nullptr) return GemmSm90Rotating(tile, a, device, stream);
  if constexpr (kIsQuantized<Elements>) {
    if (a.gamma != nullptr) return GemmSm90QuantizingNorm(tile, a, device, stream);
    if (a.quantized.rows != nullptr) return GemmSm90Quantizing(tile, a, device, stream);
  } else {
    if (a.gamma != nullptr) return GemmSm90LayerNorm(tile, a, device, stream);
  }
  return GemmSm90Elementwise(tile, a, device, stream);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_SM90_GEMM_H_
