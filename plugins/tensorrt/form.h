// Which of an op's inputs a layer has, and which of its tensors are of 8 bits.
#ifndef BERTFUSE_TENSORRT_FORM_H_
#define BERTFUSE_TENSORRT_FORM_H_

#include <cstdint>

#include "bertfuse/op.h"
#include "core/op_def.h"

namespace bertfuse::tensorrt {

// Bit i: the op's input i is there.
using Present = uint32_t;

inline bool Has(Present present, int input) { return (present >> input & 1) != 0; }
inline int Count(Present present) { return __builtin_popcount(present); }

// Of one node. TensorRT ties tensors of int8 and fp8 to rules of its own (calibrated scales, constants for
// DequantizeLinear alone), so those of 8 bits cross a network as int32: the same bytes, a quarter of the columns; of a
// scalar the low byte.
struct Form {
  Present present = 0;                    // 0: not known
  int32_t weight_type = BERTFUSE_ABSENT;  // the bertfuse_dtype of Variable::kW where it is quantised
  int32_t result_type = BERTFUSE_ABSENT;  // that of Variable::kQ

  // The tensor's dtype where it crosses as int32, else BERTFUSE_ABSENT.
  int32_t EightBitType(const TensorDef& tensor) const {
    return tensor.dtype == Variable::kW   ? weight_type
           : tensor.dtype == Variable::kQ ? result_type
                                          : static_cast<int32_t>(BERTFUSE_ABSENT);
  }
  bool CrossesAsInt32(const TensorDef& tensor) const { return EightBitType(tensor) != BERTFUSE_ABSENT; }

  // The dtype of a tensor that TensorRT has with the dtype `crossing`, or -1 where it cannot cross with that.
  int32_t DtypeOf(const TensorDef& tensor, int32_t crossing) const;

  // The dtype with which a tensor of that dtype crosses.
  int32_t Crossing(const TensorDef& tensor, int32_t dtype) const {
    return CrossesAsInt32(tensor) ? static_cast<int32_t>(BERTFUSE_INT32) : dtype;
  }
};

// Columns of 8 bits in an int32, and in so many of these; a size that no tensor has stays as it is.
inline constexpr int64_t kColumnsInInt32 = 4;
inline int64_t ColumnsIn(int64_t int32s) {
  return int32s >= 0 && int32s <= INT32_MAX ? int32s * kColumnsInInt32 : int32s;
}

// How many outputs a layer with these inputs has: the optional ones are there if the input that they need is.
int NumOutputs(const OpDef& op, Present present);

// The op's description of the layer's input at that place, or null where the layer has no such place.
const TensorDef* InputAt(const OpDef& op, Present present, int place);

// The dtype of a tensor that TensorRT has with the dtype `crossing`. Throws INVALID_ARGUMENT, with the tensor, where
// one of 8 bits does not cross as int32.
int32_t RestoredDtype(const OpDef& op, const Form& form, const TensorDef& tensor, const char* role, int32_t crossing);

// Throws INVALID_ARGUMENT, with the field, for types that do not fit the inputs. A form without inputs has no types.
void CheckForm(const OpDef& op, const Form& form);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_FORM_H_
