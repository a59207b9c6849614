// Which of an op's inputs a layer has, where its fields do not say so.
#ifndef BERTFUSE_TENSORRT_ARRANGE_H_
#define BERTFUSE_TENSORRT_ARRANGE_H_

#include <cstdint>
#include <vector>

#include "core/op_def.h"
#include "tensorrt/form.h"

namespace bertfuse::tensorrt {

// A plugin layer cannot have gaps (TensorRT refuses a null tensor), so optional inputs that are absent are left out and
// those behind them move up. Says which are there from how many there are, their dtypes (bertfuse_dtype) and ranks,
// each of which may be null. Without ranks the first reading that fits is as good as any other; with them there must be
// only one. Throws INVALID_ARGUMENT where that many inputs cannot be the op's. Dtypes or ranks that fit nowhere are let
// through where the number alone leaves no doubt: later checks name the tensor and what is wrong with it. Quantised
// forms are not among the readings: ranks alone do not tell their scales from a bias.
Present FindPresent(const OpDef& op, int count, const int32_t* dtypes, const int32_t* ranks);

// The readings that fit these ranks, at least one: ranks alone do not tell packed rows' offsets from a bias. Throws as
// FindPresent does.
std::vector<Present> ReadingsOf(const OpDef& op, int count, const int32_t* ranks);

// Whether the op can have just these inputs.
bool IsComplete(const OpDef& op, Present present);

// Whether one of these inputs is there in the op's quantised form alone.
bool HasQuantized(const OpDef& op, Present present);

// Whether the `known` first dtypes of `count` can be those of the op's inputs, as they cross TensorRT's network. Where
// the form knows which inputs are present, of those.
bool MayBegin(const OpDef& op, const Form& form, int count, const int32_t* dtypes, int known);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_ARRANGE_H_
