#include "ort/api.h"

#include <string>

namespace bertfuse::ort {
namespace {

thread_local const OrtApi* t_api = nullptr;

OrtErrorCode CodeOf(int32_t code) {
  switch (code) {
    case BERTFUSE_INVALID_ARGUMENT:
      return ORT_INVALID_ARGUMENT;
    case BERTFUSE_NOT_SUPPORTED:
      return ORT_NOT_IMPLEMENTED;
    default:
      return ORT_RUNTIME_EXCEPTION;
  }
}

}  // namespace

const OrtApi& Api() { return *t_api; }

ApiScope::ApiScope(const OrtApi* api) : previous_(t_api) { t_api = api; }
ApiScope::~ApiScope() { t_api = previous_; }

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  const OrtErrorCode code = Api().GetErrorCode(status);
  const Error error(code == ORT_INVALID_ARGUMENT  ? BERTFUSE_INVALID_ARGUMENT
                    : code == ORT_NOT_IMPLEMENTED ? BERTFUSE_NOT_SUPPORTED
                                                  : BERTFUSE_RUNTIME_ERROR,
                    Api().GetErrorMessage(status));
  Api().ReleaseStatus(status);
  throw error;
}

OrtStatus* StatusFromCurrentException(const char* where) noexcept {
  bertfuse_error error = {};
  ReportCurrentException(&error);
  try {
    const std::string message = std::string("bertfuse ") + where + error.message;
    return Api().CreateStatus(CodeOf(error.code), message.c_str());
  } catch (...) {
    return Api().CreateStatus(CodeOf(error.code), error.message);
  }
}

}  // namespace bertfuse::ort
