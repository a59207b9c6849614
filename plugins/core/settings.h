// What a session or a process says to the kernels: which tuning file, whether float32 products may use TF32, whether
// tactics of packed rows are chosen by how many came last, whether a row's bits may depend on the batch, and whether
// products may run in cuBLASLt.
#ifndef BERTFUSE_CORE_SETTINGS_H_
#define BERTFUSE_CORE_SETTINGS_H_

#include <string>

#include "bertfuse/op.h"

namespace bertfuse {

inline constexpr const char* kTf32Variable = "BERTFUSE_TF32";
inline constexpr const char* kRowHintsVariable = "BERTFUSE_ROW_HINTS";
inline constexpr const char* kDeterministicRowsVariable = "BERTFUSE_DETERMINISTIC_ROWS";
inline constexpr const char* kCublasLtVariable = "BERTFUSE_CUBLASLT";
inline constexpr const char* kTuningVariable = "BERTFUSE_TUNING";

// As calls have them.
struct CallSettings {
  uint32_t flags = 0;
  const bertfuse_tuning* tuning = nullptr;
};

// The environment variable, "" where it is not set.
std::string FromEnvironment(const char* variable);

// A call's flags for "1", "0" or "". `name` is the setting's, for the message of INVALID_ARGUMENT at any other value.
uint32_t Tf32Flags(const std::string& value, const char* name);

// The same for row hints, which are on unless `value` is "0".
uint32_t RowHintFlags(const std::string& value, const char* name);

// The same for results that do not depend on the batch, which are off unless `value` is "1".
uint32_t DeterministicRowsFlags(const std::string& value, const char* name);

// The same for products in cuBLASLt, which are on unless `value` is "0".
uint32_t CublasLtFlags(const std::string& value, const char* name);

// The whole text of a tuning file. Throws INVALID_ARGUMENT where it cannot be read.
std::string ReadTuningFile(const std::string& name);

// Kept for good: calls use it to the process's end. What does not fit this library or machine is left out, with one
// line on stderr. Throws INVALID_ARGUMENT where the text is no tuning file.
const bertfuse_tuning* MakeTuning(const std::string& text, const std::string& name);

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_SETTINGS_H_
