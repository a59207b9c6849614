// Element types: names, sizes, and the step from a run-time dtype to a compile-time constant.
#ifndef BERTFUSE_CORE_DTYPE_H_
#define BERTFUSE_CORE_DTYPE_H_

#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "core/status.h"

namespace bertfuse {

template <bertfuse_dtype kDtype>
using DtypeConstant = std::integral_constant<bertfuse_dtype, kDtype>;

struct DtypeInfo {
  bertfuse_dtype dtype;
  const char* name;
  size_t bytes;
};
#define BERTFUSE_INFO(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) {BERTFUSE_##DTYPE, NAME, BYTES},
inline constexpr DtypeInfo kDtypes[] = {BERTFUSE_DTYPES(BERTFUSE_INFO)};
#undef BERTFUSE_INFO

#define BERTFUSE_ENUMERATOR(DTYPE, ...) BERTFUSE_##DTYPE,
inline constexpr bertfuse_dtype kFloatDtypes[] = {BERTFUSE_FLOAT_DTYPES(BERTFUSE_ENUMERATOR)};
inline constexpr bertfuse_dtype kIndexDtypes[] = {BERTFUSE_INDEX_DTYPES(BERTFUSE_ENUMERATOR)};
inline constexpr bertfuse_dtype kQuantizedDtypes[] = {BERTFUSE_QUANTIZED_DTYPES(BERTFUSE_ENUMERATOR)};
#undef BERTFUSE_ENUMERATOR

inline const char* DtypeName(int32_t dtype) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.dtype == dtype) return info.name;
  }
  return dtype == BERTFUSE_ABSENT ? "absent" : "an unknown dtype";
}

// Bytes of an element; 0 where there is none.
inline size_t DtypeSize(int32_t dtype) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.dtype == dtype) return info.bytes;
  }
  return 0;
}

inline bool IsFloat(int32_t dtype) {
  for (bertfuse_dtype allowed : kFloatDtypes) {
    if (dtype == allowed) return true;
  }
  return false;
}

inline bool IsQuantized(int32_t dtype) {
  for (bertfuse_dtype quantized : kQuantizedDtypes) {
    if (dtype == quantized) return true;
  }
  return false;
}

// Where an element of a tensor lies.
inline void* ElementAt(const bertfuse_tensor& tensor, int64_t index) {
  return static_cast<char*>(tensor.data) + index * static_cast<int64_t>(DtypeSize(tensor.dtype));
}

// "float32, float16 or bfloat16".
template <class Dtypes>
std::string DtypeNames(const Dtypes& dtypes) {
  std::string text;
  const auto last = std::prev(std::end(dtypes));
  for (auto dtype = std::begin(dtypes); dtype != std::end(dtypes); ++dtype) {
    text += (text.empty() ? "" : dtype == last ? " or " : ", ") + std::string(DtypeName(*dtype));
  }
  return text;
}

// Calls body(DtypeConstant<dtype>()) for a float dtype; the body's branches on it are then `if constexpr`.
template <class Body>
auto SwitchFloat(int32_t dtype, Body&& body) {
  switch (dtype) {
#define BERTFUSE_CASE(DTYPE, ...) \
  case BERTFUSE_##DTYPE:          \
    return body(DtypeConstant<BERTFUSE_##DTYPE>());
    BERTFUSE_FLOAT_DTYPES(BERTFUSE_CASE)
#undef BERTFUSE_CASE
    default:
      Fail(BERTFUSE_NOT_SUPPORTED, "expected %s, got %s", DtypeNames(kFloatDtypes).c_str(), DtypeName(dtype));
  }
}

// Calls body(int32_t()) or body(int64_t()) for an index dtype.
template <class Body>
auto SwitchIndex(int32_t dtype, Body&& body) {
  switch (dtype) {
#define BERTFUSE_CASE(DTYPE, NUMBER, NAME, BYTES, TENSORRT, TYPE) \
  case BERTFUSE_##DTYPE:                                          \
    return body(TYPE());
    BERTFUSE_INDEX_DTYPES(BERTFUSE_CASE)
#undef BERTFUSE_CASE
    default:
      Fail(BERTFUSE_NOT_SUPPORTED, "expected %s, got %s", DtypeNames(kIndexDtypes).c_str(), DtypeName(dtype));
  }
}

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_DTYPE_H_
