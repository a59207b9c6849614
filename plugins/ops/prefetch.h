// What an op's last kernel brings into the L2 cache for the op behind it.
#ifndef BERTFUSE_OPS_PREFETCH_H_
#define BERTFUSE_OPS_PREFETCH_H_

#include "kernels/prefetch.h"
#include "ops/call.h"

namespace bertfuse::cuda {

// Of few rows a product takes about as long as its weight's way from device memory, which nothing else uses meanwhile.
// Of more rows it waits for its tensor cores, and finds its weight in time.
constexpr int64_t kRowsOfPrefetches = 256;
constexpr int kPartOfL2 = 8;  // that a weight may take: with the 7 and 9 MB of float32 an H100's models were 2% slower

inline kernels::Prefetch PrefetchFor(const bertfuse_call& call, int64_t rows, const kernels::Device& device) {
  const size_t bytes = call.next_weight_bytes;
  if (call.next_weight == nullptr || rows > kRowsOfPrefetches) return {};
  if (bytes > static_cast<size_t>(device.l2_bytes / kPartOfL2)) return {};
  return {static_cast<const char*>(call.next_weight), static_cast<int>(bytes / kernels::Prefetch::kLineBytes)};
}

}  // namespace bertfuse::cuda
#endif  // BERTFUSE_OPS_PREFETCH_H_
