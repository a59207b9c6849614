// The kernels through their C ABI, for tests that call them from Python without a framework.
#include "bertfuse/op.h"

extern "C" __attribute__((visibility("default"))) const bertfuse_kernel* bertfuse_test_find_kernel(const char* op,
                                                                                                   int32_t device) {
  return bertfuse_find_kernel(op, "", device);
}
