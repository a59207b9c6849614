// bertfuse/tools.h of a library without CUDA kernels.
#include <cstdio>

#include "bertfuse/tools.h"
#include "core/status.h"

struct bertfuse_tuning {};

extern "C" {

const char* bertfuse_gpu_architectures(void) { return ""; }

int32_t bertfuse_gpu_count(void) { return 0; }

int32_t bertfuse_describe_gpu(int32_t, bertfuse_gpu*, bertfuse_error* error) {
  return bertfuse::Report(error, BERTFUSE_NOT_SUPPORTED, "this library was built without CUDA kernels");
}

int32_t bertfuse_tune(const char*, const bertfuse_call*, double, bertfuse_timing, void*, bertfuse_error* error) {
  return bertfuse::Report(error, BERTFUSE_NOT_SUPPORTED, "this library was built without CUDA kernels");
}

const bertfuse_tuning* bertfuse_read_tuning(const char*, const char*, char* remark, size_t remark_size,
                                            bertfuse_error*) {
  static const bertfuse_tuning nothing;
  std::snprintf(remark, remark_size, "this library was built without CUDA kernels");
  return &nothing;
}

}  // extern "C"
