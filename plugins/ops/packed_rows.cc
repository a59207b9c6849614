#include "ops/packed_rows.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include "ops/call.h"

namespace bertfuse::cuda {
namespace {

// Kept to the process's end: captured graphs write there.
struct Table {
  std::mutex mutex;
  std::atomic<uint64_t*> slots{nullptr};
};

Table& TableOf(int device) {
  static std::array<Table, kernels::kMaxDevices> tables;
  return tables[device];
}

bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool known = cudaStreamIsCapturing(stream, &status) == cudaSuccess;
  if (!known) cudaGetLastError();
  return !known || status != cudaStreamCaptureStatusNone;
}

// Pinned memory, mapped into the device, or null. Another thread's capture goes on undisturbed.
uint64_t* Allocate(int device) {
  const kernels::DeviceScope scope(device);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (scope.error() != cudaSuccess || cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return nullptr;
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, RowHints::kBytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    memory = nullptr;
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (memory != nullptr) std::memset(memory, 0, RowHints::kBytes);
  return static_cast<uint64_t*>(memory);
}

}  // namespace

RowHints HintsOf(const bertfuse_call& call) {
  Table& table = TableOf(DeviceOf(call).id);
  uint64_t* slots = table.slots.load(std::memory_order_acquire);
  if (slots == nullptr && !IsCapturing(StreamOf(call))) {
    const std::lock_guard<std::mutex> lock(table.mutex);
    slots = table.slots.load(std::memory_order_relaxed);
    if (slots == nullptr) table.slots.store(slots = Allocate(call.device_id), std::memory_order_release);
  }
  return RowHints(slots);
}

int64_t ExpectedRows(const bertfuse_call& call, int64_t capacity) {
  if ((call.flags & BERTFUSE_NO_ROW_HINTS) != 0) return capacity;
  return RowHints(TableOf(DeviceOf(call).id).slots.load(std::memory_order_acquire)).Expected(capacity);
}

kernels::PackedRows PackedRowsOf(const bertfuse_call& call, const bertfuse_tensor& row_count, int64_t capacity) {
  if (row_count.dtype == BERTFUSE_ABSENT) return {};
  return {Data<const int32_t>(row_count), ExpectedRows(call, capacity)};
}

}  // namespace bertfuse::cuda
