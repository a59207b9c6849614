// What went wrong, said where TensorRT's user will see it.
#ifndef BERTFUSE_TENSORRT_LOG_H_
#define BERTFUSE_TENSORRT_LOG_H_

#include <string>

#include "bertfuse/op.h"
#include "tensorrt/abi.h"

namespace bertfuse::tensorrt {

// Keeps what TensorRT hands over when it loads the library; null forgets it. The object is asked for its logger each
// time, as a process may change that.
void SetLoggerFinder(void* finder) noexcept;

// The version of the TensorRT that handed the finder over, as its getInferLibVersion says it; 0 where that is not
// known.
int32_t VersionOfLoader();

// Writes the message as an error to TensorRT's logger; to stderr where there is none or it is of an unknown version.
void LogError(const char* message) noexcept;

// "layer 'encoder/…': ", to go in front of a message; "" where the layer has no name or a null one.
std::string Where(const char* layer);

// As LogError with `where` in front, and into the recorder of the execution context where there is one (it keeps 127
// characters).
void ReportError(const bertfuse_error& error, const char* where, abi::IErrorRecorder* recorder) noexcept;

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_LOG_H_
