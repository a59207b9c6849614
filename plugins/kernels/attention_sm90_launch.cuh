// Choosing and launching the Hopper attention kernel.
#ifndef BERTFUSE_KERNELS_ATTENTION_SM90_LAUNCH_CUH_
#define BERTFUSE_KERNELS_ATTENTION_SM90_LAUNCH_CUH_

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_sm90.cuh"

namespace bertfuse::kernels {

template <class Shape>
cudaError_t LaunchAttentionSm90(const AttentionArguments<typename Shape::T>& a, const Device& device,
                                cudaStream_t stream) {
  constexpr bool kBfloat16 = std::is_same_v<typename Shape::T, __nv_bfloat16>;
  AttentionSm90Parameters p;
  p.bias = a.bias;
  p.mask = a.mask;
  p.mask_is_int64 = a.mask_is_int64;
  p.sequence = static_cast<int>(a.sequence);
  p.heads = static_cast<int>(a.heads);
  p.query_tiles = static_cast<int>(CeilDiv(a.sequence, Shape::kQueries));
  p.inverse_query_tiles = 1.0f / p.query_tiles;
  p.inverse_heads = 1.0f / p.heads;
  p.tiles = static_cast<int>(p.query_tiles * a.heads * a.batch);
  p.scale_log2 = std::max(a.scale * 1.44269504088896341f, FLT_MIN);
  const int64_t hidden = a.heads * a.head_size;
  MatrixView view = {a.qkv, a.sequence, 3 * hidden, 3 * hidden, 64, Shape::kTileColumns, a.batch};
  cudaError_t error = MakeTensorMap(view, kBfloat16, &p.qkv_map);
  if (error != cudaSuccess) return error;
  view = {a.y, a.sequence, hidden, hidden, 64, Shape::kTileColumns, a.batch};
  error = MakeTensorMap(view, kBfloat16, &p.y_map);
  if (error != cudaSuccess) return error;

  LaunchConfig config;
  config.block = dim3(Shape::kThreads);
  config.shared_bytes = Shape::SharedBytes(a.sequence);
  config.stream = stream;
  config.device = &device;
  int blocks = 0;
  error = ResidentClusters(config, reinterpret_cast<const void*>(AttentionSm90Kernel<Shape>), &blocks);
  if (error != cudaSuccess) return error;
  config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, CeilDiv(p.tiles, Shape::kTeams))));
  const int step = static_cast<int>(config.grid.x) * Shape::kTeams, step_head = step / p.query_tiles;
  p.step_first_query = step % p.query_tiles * Shape::kQueries;
  p.step_head = step_head % p.heads;
  p.step_batch = step_head / p.heads;
  return Launch(config, AttentionSm90Kernel<Shape>, p);
}

// Few queries spread over the multiprocessors, 64 to a block. To 128 keys, one block of keys and no running softmax.
// Beyond, two teams of their own pace: one multiplies while the other computes exponentials.
template <class T, int kHeadSize>
cudaError_t LaunchAttentionSm90(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  using Few = AttentionSm90Shape<T, kHeadSize, 64, 1, 1, kHeadSize == 128 ? 1 : 2>;
  using Short = AttentionSm90Shape<T, kHeadSize, kHeadSize == 128 ? 64 : 128, 1, 2>;
  using Long = AttentionSm90Shape<T, kHeadSize, 64, kHeadSize == 128 ? 1 : 2, 2>;
  const bool few = a.batch * a.heads * CeilDiv(a.sequence, 128) < device.multiprocessors;
  if (few) return LaunchAttentionSm90<Few>(a, device, stream);
  return a.sequence <= 128 ? LaunchAttentionSm90<Short>(a, device, stream)
                           : LaunchAttentionSm90<Long>(a, device, stream);
}

template <class T>
cudaError_t DispatchAttentionSm90(const AttentionArguments<T>& a, const Device& device, cudaStream_t stream) {
  if (a.batch * a.sequence * a.heads == 0) return cudaSuccess;
  switch (a.head_size) {
    case 32:
      return LaunchAttentionSm90<T, 32>(a, device, stream);
    case 64:
      return LaunchAttentionSm90<T, 64>(a, device, stream);
    case 128:
      return LaunchAttentionSm90<T, 128>(a, device, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_ATTENTION_SM90_LAUNCH_CUH_
