#include "ort/options.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "bertfuse/tools.h"

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
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::string ReadFile(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad() || text.empty()) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: the tuning file cannot be read; write one with 'bertfuse tune'", name.c_str());
  }
  return text;
}

}  // namespace

SessionSettings ReadSettings(const OrtSessionOptions* options) {
  SessionSettings settings;
  const std::string tf32 = Setting(options, "bertfuse.tf32", "BERTFUSE_TF32");
  if (tf32 == "1") {
    settings.flags |= BERTFUSE_ALLOW_TF32;
  } else if (!tf32.empty() && tf32 != "0") {
    Fail(BERTFUSE_INVALID_ARGUMENT, "bertfuse.tf32 (or BERTFUSE_TF32) is '%.64s', expected '0' or '1'", tf32.c_str());
  }
  settings.tuning_name = Setting(options, "bertfuse.tuning", "BERTFUSE_TUNING");
  if (!settings.tuning_name.empty()) settings.tuning_text = ReadFile(settings.tuning_name);
  return settings;
}

CallSettings MakeSettings(const SessionSettings& settings) {
  CallSettings made;
  made.flags = settings.flags;
  if (settings.tuning_name.empty()) return made;
  std::array<char, 512> remark = {};
  bertfuse_error error = {};
  made.tuning = bertfuse_read_tuning(settings.tuning_text.c_str(), settings.tuning_name.c_str(), remark.data(),
                                     remark.size(), &error);
  if (made.tuning == nullptr) throw Error(static_cast<bertfuse_code>(error.code), error.message);
  if (remark[0] != '\0') {
    std::fprintf(stderr, "bertfuse: %s: ignored what does not fit: %s; measure again with 'bertfuse tune'\n",
                 settings.tuning_name.c_str(), remark.data());
  }
  return made;
}

}  // namespace bertfuse::ort
