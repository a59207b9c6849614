// cuBLASLt as the process has it. Nothing is linked: a process without it runs without this backend.
#ifndef BERTFUSE_KERNELS_CUBLASLT_LIBRARY_H_
#define BERTFUSE_KERNELS_CUBLASLT_LIBRARY_H_

#include <string>

#include "kernels/cublaslt/abi.h"
#include "kernels/device.h"

namespace bertfuse::kernels::cublaslt {

struct Library {
#define BERTFUSE_CUBLASLT_MEMBER(NAME, RESULT, ...) RESULT (*NAME)(__VA_ARGS__) = nullptr;
  BERTFUSE_CUBLASLT_FUNCTIONS(BERTFUSE_CUBLASLT_MEMBER)
#undef BERTFUSE_CUBLASLT_MEMBER
  const char* (*GetStatusName)(int) = nullptr;  // since 11.4; else null
  size_t version = 0;                           // 120903: 12.9.3
};

// The library, null where there is none that can be used: first what the process has loaded already (ONNX Runtime's
// CUDA provider and PyTorch bring it), then what dlopen finds by its name or beside the CUDA runtime that is loaded.
// Once found it is kept for good. While there is none, this looks again after something else has been loaded. One that
// cannot be used, because it lacks a function or is of an unknown version, is named on stderr, once.
const Library* FindLibrary();

// The device's handle, made by its first user and kept for good; null where there is no library or it makes no handle
// for the device, which is said on stderr, once.
Handle HandleOf(const Device& device);

// "CUBLAS_STATUS_NOT_SUPPORTED (15)", of the library that was found.
std::string StatusName(int status);

// "13.0.2"; "" without a library.
std::string VersionName();

}  // namespace bertfuse::kernels::cublaslt
#endif  // BERTFUSE_KERNELS_CUBLASLT_LIBRARY_H_
