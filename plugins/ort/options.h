// What a session's options say to our kernels: config entries "bertfuse.tuning", "bertfuse.tf32", "bertfuse.row_hints",
// "bertfuse.deterministic_rows" and "bertfuse.cublaslt", or else the environment variables BERTFUSE_TUNING,
// BERTFUSE_TF32 and so on.
#ifndef BERTFUSE_ORT_OPTIONS_H_
#define BERTFUSE_ORT_OPTIONS_H_

#include <string>
#include <tuple>

#include "core/settings.h"
#include "ort/api.h"

namespace bertfuse::ort {

struct SessionSettings {
  uint32_t flags = 0;       // of every call
  std::string tuning_name;  // "" where there is none
  std::string tuning_text;

  bool operator<(const SessionSettings& other) const {
    return std::tie(flags, tuning_name, tuning_text) < std::tie(other.flags, other.tuning_name, other.tuning_text);
  }
};

// Throws INVALID_ARGUMENT where the tuning file cannot be read or a value is none of those allowed.
SessionSettings ReadSettings(const OrtSessionOptions* options);

// The same, made ready for calls (MakeTuning).
CallSettings MakeSettings(const SessionSettings& settings);

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_OPTIONS_H_
