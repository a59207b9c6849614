// The one error channel: throw Error inside the library, turn it into a bertfuse_error once, at the C boundary.
#ifndef BERTFUSE_CORE_STATUS_H_
#define BERTFUSE_CORE_STATUS_H_

#include <exception>

#include "bertfuse/op.h"

namespace bertfuse {

// A failure with its code. The message is kept in place: copying it while unwinding cannot fail.
class Error : public std::exception {
 public:
  Error(bertfuse_code code, const char* message) noexcept;
  const char* what() const noexcept override { return error_.message; }
  bertfuse_code code() const noexcept { return static_cast<bertfuse_code>(error_.code); }

 private:
  bertfuse_error error_;
};

// Throws Error with a printf-style message, cut off at BERTFUSE_MAX_MESSAGE.
[[noreturn]] void Fail(bertfuse_code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Writes code and message to `error` (which may be null) and returns the code.
int32_t Report(bertfuse_error* error, bertfuse_code code, const char* message) noexcept;

// Inside a catch block: reports the exception in flight.
int32_t ReportCurrentException(bertfuse_error* error) noexcept;

// Runs `body`; whatever it throws becomes a status.
template <class Body>
int32_t Guarded(bertfuse_error* error, Body&& body) noexcept {
  try {
    body();
    return BERTFUSE_OK;
  } catch (...) {
    return ReportCurrentException(error);
  }
}

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_STATUS_H_
