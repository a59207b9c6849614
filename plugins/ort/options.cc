#include "ort/options.h"

namespace bertfuse::ort {
namespace {

// A session's config entry, else the environment variable, else "".
std::string Setting(const OrtSessionOptions* options, const char* key, const char* variable) {
  int has = 0;
  Check(Api().HasSessionConfigEntry(options, key, &has));
  if (has != 0) {
    size_t size = 0;
    Check(Api().GetSessionConfigEntry(options, key, nullptr, &size));
    std::string value(size, '\0');
    Check(Api().GetSessionConfigEntry(options, key, value.data(), &size));
    return value.c_str();
  }
  return FromEnvironment(variable);
}

}  // namespace

SessionSettings ReadSettings(const OrtSessionOptions* options) {
  SessionSettings settings;
  settings.flags = Tf32Flags(Setting(options, "bertfuse.tf32", kTf32Variable), "bertfuse.tf32 (or BERTFUSE_TF32)");
  settings.flags |= RowHintFlags(Setting(options, "bertfuse.row_hints", kRowHintsVariable),
                                 "bertfuse.row_hints (or BERTFUSE_ROW_HINTS)");
  settings.flags |= DeterministicRowsFlags(Setting(options, "bertfuse.deterministic_rows", kDeterministicRowsVariable),
                                           "bertfuse.deterministic_rows (or BERTFUSE_DETERMINISTIC_ROWS)");
  settings.flags |= CublasLtFlags(Setting(options, "bertfuse.cublaslt", kCublasLtVariable),
                                  "bertfuse.cublaslt (or BERTFUSE_CUBLASLT)");
  settings.tuning_name = Setting(options, "bertfuse.tuning", kTuningVariable);
  if (!settings.tuning_name.empty()) settings.tuning_text = ReadTuningFile(settings.tuning_name);
  return settings;
}

CallSettings MakeSettings(const SessionSettings& settings) {
  CallSettings made;
  made.flags = settings.flags;
  if (!settings.tuning_name.empty()) made.tuning = MakeTuning(settings.tuning_text, settings.tuning_name);
  return made;
}

}  // namespace bertfuse::ort
