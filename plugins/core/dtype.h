// Element types: names, sizes, and the step from a run-time dtype to a compile-time constant.
#ifndef BERTFUSE_CORE_DTYPE_H_
#define BERTFUSE_CORE_DTYPE_H_

#include <cstddef>
#include <type_traits>
#include <utility>

#include "core/status.h"

namespace bertfuse {

template <bertfuse_dtype kDtype>
using DtypeConstant = std::integral_constant<bertfuse_dtype, kDtype>;

// The element types that tensors have, one list for names and sizes (and for TensorRT's types: tensorrt/request.cc).
struct DtypeInfo {
  bertfuse_dtype dtype;
  const char* name;
  size_t bytes;
};
inline constexpr DtypeInfo kDtypes[] = {
    {BERTFUSE_FLOAT32, "float32", 4}, {BERTFUSE_INT32, "int32", 4},       {BERTFUSE_INT64, "int64", 8},
    {BERTFUSE_FLOAT16, "float16", 2}, {BERTFUSE_BFLOAT16, "bfloat16", 2},
};

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

// Calls body(DtypeConstant<dtype>()) for a float dtype; the body's branches on it are then `if constexpr`.
template <class Body>
auto SwitchFloat(int32_t dtype, Body&& body) {
  switch (dtype) {
    case BERTFUSE_FLOAT32:
      return body(DtypeConstant<BERTFUSE_FLOAT32>());
    case BERTFUSE_FLOAT16:
      return body(DtypeConstant<BERTFUSE_FLOAT16>());
    case BERTFUSE_BFLOAT16:
      return body(DtypeConstant<BERTFUSE_BFLOAT16>());
    default:
      Fail(BERTFUSE_NOT_SUPPORTED, "expected float32, float16 or bfloat16, got %s", DtypeName(dtype));
  }
}

// Calls body(int32_t()) or body(int64_t()) for an index dtype.
template <class Body>
auto SwitchIndex(int32_t dtype, Body&& body) {
  switch (dtype) {
    case BERTFUSE_INT32:
      return body(int32_t());
    case BERTFUSE_INT64:
      return body(int64_t());
    default:
      Fail(BERTFUSE_NOT_SUPPORTED, "expected int32 or int64, got %s", DtypeName(dtype));
  }
}

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_DTYPE_H_
