#include "core/status.h"

#include <cstdarg>
#include <cstdio>
#include <new>

namespace bertfuse {

Error::Error(bertfuse_code code, const char* message) noexcept { Report(&error_, code, message); }

void Fail(bertfuse_code code, const char* format, ...) {
  char message[BERTFUSE_MAX_MESSAGE];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  throw Error(code, message);
}

int32_t Report(bertfuse_error* error, bertfuse_code code, const char* message) noexcept {
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof(error->message), "%s", message);
  }
  return code;
}

int32_t ReportCurrentException(bertfuse_error* error) noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return Report(error, e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return Report(error, BERTFUSE_RUNTIME_ERROR, "out of host memory");
  } catch (const std::exception& e) {
    return Report(error, BERTFUSE_RUNTIME_ERROR, e.what());
  } catch (...) {
    return Report(error, BERTFUSE_RUNTIME_ERROR, "unknown exception");
  }
}

}  // namespace bertfuse
