// Making a device current, with a CUDA runtime that is made up.
#include <gtest/gtest.h>

#include "kernels/device.h"

namespace {

int g_current = 0;
cudaError_t g_refuses = cudaSuccess;  // what setting a device comes to

}  // namespace

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = g_current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (g_refuses == cudaSuccess) g_current = device;
  return g_refuses;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) { return cudaErrorNoDevice; }
}

namespace bertfuse::kernels {
namespace {

TEST(DeviceScope, PutsBackWhatWasCurrent) {
  g_current = 0, g_refuses = cudaSuccess;
  {
    const DeviceScope scope(1);
    EXPECT_EQ(scope.error(), cudaSuccess);
    EXPECT_EQ(g_current, 1);
  }
  EXPECT_EQ(g_current, 0);
}

// Or else the op would be launched on whichever device is current.
TEST(DeviceScope, SaysThatADeviceCannotBeMadeCurrent) {
  g_current = 0, g_refuses = cudaErrorDevicesUnavailable;
  {
    const DeviceScope scope(1);
    EXPECT_EQ(scope.error(), cudaErrorDevicesUnavailable);
    const DeviceScope same(0);
    EXPECT_EQ(same.error(), cudaSuccess);
  }
  EXPECT_EQ(g_current, 0);
}

}  // namespace
}  // namespace bertfuse::kernels
