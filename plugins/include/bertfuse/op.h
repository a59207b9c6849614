// The C ABI between the registries (ONNX Runtime, TensorRT) and the kernels (CUDA, CPU).
//
// No framework type appears here. A registry fills in a bertfuse_call, asks the op table whether shapes, dtypes and
// attributes fit (plugins/core), looks a kernel up and runs it. A kernel reads the call and nothing else: it does not
// allocate, synchronise, or read device memory on the host, so that every run can be captured in a CUDA graph.
#ifndef BERTFUSE_OP_H_
#define BERTFUSE_OP_H_

#include <stddef.h>
#include <stdint.h>

#include "bertfuse/dtypes.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BERTFUSE_EXPORT __attribute__((visibility("default")))
#define BERTFUSE_MAX_RANK 8
#define BERTFUSE_MAX_MESSAGE 508

// Element types (dtypes.h), BERTFUSE_FLOAT32 and so on, numbered as ONNX TensorProto.DataType. BERTFUSE_ABSENT marks an
// optional input that was not given.
#define BERTFUSE_ENUMERATOR(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) BERTFUSE_##DTYPE = NUMBER,
typedef enum bertfuse_dtype { BERTFUSE_ABSENT = 0, BERTFUSE_DTYPES(BERTFUSE_ENUMERATOR) } bertfuse_dtype;
#undef BERTFUSE_ENUMERATOR

typedef enum bertfuse_device { BERTFUSE_CPU = 0, BERTFUSE_CUDA = 1 } bertfuse_device;

typedef enum bertfuse_code {
  BERTFUSE_OK = 0,
  BERTFUSE_INVALID_ARGUMENT = 1,  // a shape, dtype or attribute that the op does not take: the caller's mistake
  BERTFUSE_NOT_SUPPORTED = 2,     // valid, but this library or device has no kernel for it
  BERTFUSE_RUNTIME_ERROR = 3      // a launch or a host service failed
} bertfuse_code;

// Where a failure is written. `message` names the op and the tensor or attribute; it is always terminated.
typedef struct bertfuse_error {
  int32_t code;  // bertfuse_code
  char message[BERTFUSE_MAX_MESSAGE];
} bertfuse_error;

// A dense row-major tensor. `data` may be null while only shapes are known (building an engine, asking for workspace).
typedef struct bertfuse_tensor {
  void* data;
  int32_t dtype;  // bertfuse_dtype
  int32_t rank;
  int64_t shape[BERTFUSE_MAX_RANK];
} bertfuse_tensor;

// Bits of bertfuse_call.flags.
enum {
  BERTFUSE_ALLOW_TF32 = 1,    // float32 products may round their operands to 11 bits
  BERTFUSE_NO_ROW_HINTS = 2,  // choose for as many packed rows as there is room for, not as came last
  // A row's result (in attention, a sequence's) has the same bits whatever else is in the batch: tactics are chosen
  // among those that round alike. Changes nothing on the CPU.
  BERTFUSE_DETERMINISTIC_ROWS = 4,
  BERTFUSE_NO_CUBLASLT = 8,  // products run in this library's own kernels
};

// Tactics that were measured on the user's device (bertfuse/tools.h).
typedef struct bertfuse_tuning bertfuse_tuning;

typedef union bertfuse_value {
  int64_t i;
  float f;
  const char* s;  // terminated; outlives the call
} bertfuse_value;

// What a CPU kernel may ask of the runtime that hosts it. Null on a GPU.
typedef struct bertfuse_host {
  void* context;
  // Calls fn(user, begin, end) over disjoint ranges that cover [0, count), from several threads, and waits for all.
  // `grain` is the smallest range worth a thread of its own.
  void (*parallel_for)(void* context, int64_t count, int64_t grain, void (*fn)(void* user, int64_t begin, int64_t end),
                       void* user);
} bertfuse_host;

// One execution of one op. Inputs, outputs and attributes come in the order of the op's description; an optional input
// that is absent keeps its place, with dtype BERTFUSE_ABSENT; attributes that a node left out hold their defaults.
// Outputs overlap neither inputs nor the workspace.
typedef struct bertfuse_call {
  uint32_t struct_size;  // sizeof(bertfuse_call) of the caller; a kernel takes no other
  int32_t num_inputs;
  const bertfuse_tensor* inputs;
  int32_t num_outputs;
  int32_t num_attributes;
  const bertfuse_tensor* outputs;
  const bertfuse_value* attributes;
  void* workspace;  // 256-byte aligned, on the device that runs the kernel
  size_t workspace_size;
  void* stream;       // cudaStream_t; null on the CPU
  int32_t device_id;  // CUDA device of the stream
  // Tactic to use, or -1: the one that `tuning` has for the problem, else one chosen by shape and device. If run() gets
  // a shorter workspace than workspace_size() asks for, -1 means the best tactic that fits.
  int32_t tactic;
  // Bit i: input i is an initialiser that nothing writes, so a kernel may read it before preceding work is done.
  uint64_t constant_inputs;
  const bertfuse_host* host;
  uint32_t flags;
  const bertfuse_tuning* tuning;  // may be null
  // What the kernel's `prepare` made of this call's constant inputs; null: run() does that itself, each time.
  const void* prepared;
  // A constant weight that the next call on the stream is expected to read, on the device, and its bytes: kernels may
  // bring it into a cache. It lives as long as what this call launches. Null: none is known.
  const void* next_weight;
  size_t next_weight_bytes;
} bertfuse_call;

// One implementation of one op on one device. The functions are called with a call that the op table has validated
// (describe_problem does so itself), and return a status; none but `run` reads what the tensors hold, but a choice may
// depend on how their pointers are aligned. All but `run` may be null: no workspace is then needed, there is one
// configuration, which has no name.
typedef struct bertfuse_kernel {
  uint32_t struct_size;  // sizeof(bertfuse_kernel) of the library, for the caller to check
  int32_t device;        // bertfuse_device
  const char* op;        // name in the op table
  int32_t (*workspace_size)(const bertfuse_call* call, size_t* bytes, bertfuse_error* error);
  int32_t (*num_tactics)(const bertfuse_call* call, int32_t* count, bertfuse_error* error);
  int32_t (*run)(const bertfuse_call* call, bertfuse_error* error);
  // The tactic's name (of -1: of the one that is chosen), the same in every release that has it, whatever its number
  // there; and what it is chosen by, as in "FusedGemmGelu float16 4096x3072x768". Terminated, cut off at `size`.
  int32_t (*describe_tactic)(const bertfuse_call* call, int32_t tactic, char* text, size_t size, bertfuse_error* error);
  int32_t (*describe_problem)(const bertfuse_call* call, char* text, size_t size, bertfuse_error* error);
  // What chose the tactic that is chosen: "tuning file", the call's; "measured", on such a device, which the library
  // knows; or "model", of costs. Null where the op does not tell.
  int32_t (*describe_choice)(const bertfuse_call* call, char* text, size_t size, bertfuse_error* error);
  // What a host may have made once of inputs that are constant: bytes of it (0: the call wants none), and making it in
  // memory of 64-byte alignment. Shapes and dtypes of these inputs count, and their data; others need not be known.
  int32_t (*prepared_size)(const bertfuse_call* call, size_t* bytes, bertfuse_error* error);
  int32_t (*prepare)(const bertfuse_call* call, void* prepared, bertfuse_error* error);
} bertfuse_kernel;

// The kernel of that op and device, or null. Implemented by the library that links the kernels in.
BERTFUSE_EXPORT const bertfuse_kernel* bertfuse_find_kernel(const char* op, int32_t device);

#ifdef __cplusplus
}
#endif
#endif  // BERTFUSE_OP_H_
