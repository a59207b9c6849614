#include "tensorrt/log.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#include "tensorrt/hosts.h"
#include "tensorrt/version.h"

namespace bertfuse::tensorrt {
namespace {

std::atomic<void*> g_finder{nullptr};

template <class Finder>
bool LogThrough(void* finder, const char* message) {
  auto* logger = static_cast<Finder*>(finder)->findLogger();
  if (logger == nullptr) return false;
  logger->log(abi::Severity::kERROR, message);
  return true;
}

// TensorRT 8.5 has no ILoggerFinder, but one logger for the process.
bool LogToTheOnlyLogger(const char* message) {
  return AnyHost([&](void* handle, int32_t version) {
    const auto get_logger = reinterpret_cast<abi::v10::ILogger* (*)()>(dlsym(handle, "getLogger"));
    abi::v10::ILogger* logger = FormOf(version) != HostForm::kV8 || get_logger == nullptr ? nullptr : get_logger();
    if (logger != nullptr) logger->log(abi::Severity::kERROR, message);
    return logger != nullptr;
  });
}

bool LogToHost(const char* message) {
  void* finder = g_finder.load(std::memory_order_acquire);
  if (finder == nullptr) return LogToTheOnlyLogger(message);
  switch (FormOf(VersionOfLibraryOf(finder))) {
    case HostForm::kV8:
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

int32_t VersionOfLoader() {
  const void* finder = g_finder.load(std::memory_order_acquire);
  return finder == nullptr ? 0 : VersionOfLibraryOf(finder);
}

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
