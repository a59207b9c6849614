#include "core/settings.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "bertfuse/tools.h"
#include "core/status.h"

namespace bertfuse {

std::string FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

namespace {

bool IsOn(const std::string& value, const char* name, bool otherwise) {
  if (!value.empty() && value != "0" && value != "1") {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s is '%.64s', expected '0' or '1'", name, value.c_str());
  }
  return value.empty() ? otherwise : value == "1";
}

}  // namespace

uint32_t Tf32Flags(const std::string& value, const char* name) {
  return IsOn(value, name, false) ? BERTFUSE_ALLOW_TF32 : 0;
}

uint32_t RowHintFlags(const std::string& value, const char* name) {
  return IsOn(value, name, true) ? 0 : BERTFUSE_NO_ROW_HINTS;
}

uint32_t DeterministicRowsFlags(const std::string& value, const char* name) {
  return IsOn(value, name, false) ? BERTFUSE_DETERMINISTIC_ROWS : 0;
}

uint32_t CublasLtFlags(const std::string& value, const char* name) {
  return IsOn(value, name, true) ? 0 : BERTFUSE_NO_CUBLASLT;
}

std::string ReadTuningFile(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad() || text.empty()) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: the tuning file cannot be read; write one with 'bertfuse tune'", name.c_str());
  }
  return text;
}

const bertfuse_tuning* MakeTuning(const std::string& text, const std::string& name) {
  std::array<char, 512> remark = {};
  bertfuse_error error = {};
  const bertfuse_tuning* tuning =
      bertfuse_read_tuning(text.c_str(), name.c_str(), remark.data(), remark.size(), &error);
  if (tuning == nullptr) throw Error(static_cast<bertfuse_code>(error.code), error.message);
  if (remark[0] != '\0') {
    std::fprintf(stderr, "bertfuse: %s: ignored what does not fit: %s; measure again with 'bertfuse tune'\n",
                 name.c_str(), remark.data());
  }
  return tuning;
}

}  // namespace bertfuse
