// What a library of bertfuse exports for tools, beside its runtime's entry points: which GPU code it holds, and
// measuring tactics. Every function is safe to call without a GPU and from any thread.
#ifndef BERTFUSE_TOOLS_H_
#define BERTFUSE_TOOLS_H_

#include "bertfuse/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bertfuse_gpu {
  char name[256];
  char identity[320];          // what measurements hold for, as tuning files name it
  int32_t compute_capability;  // 90 for 9.0
  int32_t multiprocessors;
  // Which of the library's code this device runs, as compute capabilities: the architecture that the machine code was
  // made for, and that of the PTX it came from. 0: nothing in the library runs here.
  int32_t code_architecture;
  int32_t ptx_architecture;
  char backends[64];  // the families of kernels that it runs, with spaces between them, the fastest first: "sm90 mma
                      // simt"
} bertfuse_gpu;

// The architectures that the library was built for, as CMake spells them ("80-real;90;90a-real": a number alone is
// machine code and PTX); "" where it holds no GPU code.
BERTFUSE_EXPORT const char* bertfuse_gpu_architectures(void);

// How many GPUs the CUDA driver offers; 0 without a driver.
BERTFUSE_EXPORT int32_t bertfuse_gpu_count(void);

BERTFUSE_EXPORT int32_t bertfuse_describe_gpu(int32_t device_id, bertfuse_gpu* gpu, bertfuse_error* error);

// What bertfuse_tune found for one tactic: its name, microseconds of one launch, and whether it is the one that would
// be used without a measurement.
typedef void (*bertfuse_timing)(void* user, const char* tactic, double microseconds, int32_t is_default);

// Runs every tactic of a call on its device, in a stream and on tensors of its own (the call's shapes, dtypes and
// attributes count, not its data), each for about `milliseconds`, and reports those that ran; where the call names a
// tactic, that one alone. Allocates device memory for twice the device's cache, or for two sets of tensors.
BERTFUSE_EXPORT int32_t bertfuse_tune(const char* op, const bertfuse_call* call, double milliseconds,
                                      bertfuse_timing report, void* user, bertfuse_error* error);

// The tactics that a tuning file's text has for this machine's GPUs, to be kept as long as calls use it. What does not
// fit (another library version or device, unknown tactics) is left out and said in `remark`, "" where all fits. `name`
// is the file's, for messages. Null, with the error set, where the text is no tuning file.
BERTFUSE_EXPORT const bertfuse_tuning* bertfuse_read_tuning(const char* text, const char* name, char* remark,
                                                            size_t remark_size, bertfuse_error* error);

#ifdef __cplusplus
}
#endif
#endif  // BERTFUSE_TOOLS_H_
