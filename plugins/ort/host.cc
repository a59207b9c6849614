#include "ort/host.h"

#include <algorithm>

namespace bertfuse::ort {
namespace {

// One range of a ParallelFor: ONNX Runtime counts items, the kernels want ranges.
struct Ranges {
  int64_t count, grain;
  void (*body)(void* user, int64_t begin, int64_t end);
  void* user;

  static void Run(void* self, size_t index) {
    const Ranges& ranges = *static_cast<const Ranges*>(self);
    const int64_t begin = static_cast<int64_t>(index) * ranges.grain;
    ranges.body(ranges.user, begin, std::min(begin + ranges.grain, ranges.count));
  }
};

}  // namespace

Host::Host(OrtKernelContext* context) : api_(&Api()), context_(context) {
  host_.context = this;
  host_.parallel_for = [](void* self, int64_t count, int64_t grain,
                          void (*body)(void* user, int64_t begin, int64_t end), void* user) {
    grain = std::max<int64_t>(grain, 1);
    if (count <= grain) {
      if (count > 0) body(user, 0, count);
      return;
    }
    const Host& host = *static_cast<Host*>(self);
    const ApiScope scope(host.api_);
    Ranges ranges = {count, grain, body, user};
    const size_t total = static_cast<size_t>((count + grain - 1) / grain);
    OrtStatus* status = Api().KernelContext_ParallelFor(host.context_, Ranges::Run, total, 0, &ranges);
    if (status == nullptr) return;
    // It refuses before running anything, so the work is still all to do.
    Api().ReleaseStatus(status);
    body(user, 0, count);
  };
}

}  // namespace bertfuse::ort
