#include "tensorrt/log.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdio>

#include "tensorrt/version.h"

namespace bertfuse::tensorrt {
namespace {

std::atomic<void*> g_finder{nullptr};

// The version of the library that an object's class is from, as TensorRT's getInferLibVersion says it, or 0.
int32_t LibraryVersion(const void* object) {
  const void* vtable = *static_cast<const void* const*>(object);
  Dl_info info = {};
  link_map* module = nullptr;
  if (dladdr1(vtable, &info, reinterpret_cast<void**>(&module), RTLD_DL_LINKMAP) == 0 || module == nullptr) return 0;
  // The main program, into which TensorRT may be linked, has no name.
  void* library = dlopen(module->l_name[0] == '\0' ? nullptr : module->l_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  const auto version = reinterpret_cast<int32_t (*)()>(dlsym(library, "getInferLibVersion"));
  const int32_t result = version == nullptr ? 0 : version();
  dlclose(library);
  return result;
}

template <class Finder>
bool LogThrough(void* finder, const char* message) {
  auto* logger = static_cast<Finder*>(finder)->findLogger();
  if (logger == nullptr) return false;
  logger->log(abi::Severity::kERROR, message);
  return true;
}

bool LogToHost(const char* message) {
  void* finder = g_finder.load(std::memory_order_acquire);
  if (finder == nullptr) return false;
  switch (FormOf(LibraryVersion(finder))) {
    case HostForm::kV10:
      return LogThrough<abi::v10::ILoggerFinder>(finder, message);
    case HostForm::kV11:
      return LogThrough<abi::v11::ILoggerFinder>(finder, message);
    case HostForm::kUnknown:
      break;
  }
  return false;
}

abi::ErrorCode CodeOf(int32_t code) {
  switch (code) {
    case BERTFUSE_INVALID_ARGUMENT:
      return abi::ErrorCode::kINVALID_ARGUMENT;
    case BERTFUSE_NOT_SUPPORTED:
      return abi::ErrorCode::kUNSUPPORTED_STATE;
    default:
      return abi::ErrorCode::kFAILED_EXECUTION;
  }
}

}  // namespace

void SetLoggerFinder(void* finder) noexcept { g_finder.store(finder, std::memory_order_release); }

void LogError(const char* message) noexcept {
  try {
    if (LogToHost(message)) return;
  } catch (...) {
    // findLogger may throw; the message is what matters.
  }
  std::fprintf(stderr, "%s\n", message);
}

std::string Where(const char* layer) {
  return layer == nullptr || layer[0] == '\0' ? "" : "layer '" + std::string(layer) + "': ";
}

void ReportError(const bertfuse_error& error, const char* where, abi::IErrorRecorder* recorder) noexcept {
  char message[2 * BERTFUSE_MAX_MESSAGE];
  std::snprintf(message, sizeof(message), "bertfuse %.400s%s", where, error.message);
  LogError(message);
  if (recorder == nullptr) return;
  std::snprintf(message, sizeof(message), "%.*s", static_cast<int>(abi::IErrorRecorder::kMaxDescLength), error.message);
  recorder->reportError(CodeOf(error.code), message);
}

}  // namespace bertfuse::tensorrt
