#include "tensorrt/arrange.h"

#include <string>

#include "core/op_table.h"
#include "core/status.h"

namespace bertfuse::tensorrt {
namespace {

bool HasRank(const TensorDef& tensor, int32_t rank) {
  return tensor.leading ? rank >= tensor.num_axes : rank == tensor.num_axes;
}

bool Fits(const OpDef& op, const Form& form, const int32_t* dtypes, const int32_t* ranks, int known) {
  int place = 0;
  int32_t bound[kNumVariables] = {};
  for (int i = 0; i < op.num_inputs && place < known; ++i) {
    if (!Has(form.present, i)) continue;
    if (dtypes != nullptr) {
      const int32_t dtype = form.DtypeOf(op.inputs[i], dtypes[place]);
      const Variable variable = BoundBy(op.inputs[i], dtype);
      if (!Allows(variable, dtype)) return false;
      // One dtype for all tensors of a variable.
      int32_t& first = bound[static_cast<int>(variable)];
      if (first != BERTFUSE_ABSENT && first != dtype) return false;
      first = dtype;
    }
    if (ranks != nullptr && !HasRank(op.inputs[i], ranks[place])) return false;
    ++place;
  }
  return true;
}

// Calls body(present) for every set of that many inputs that the op can have in its usual form, until it returns true.
template <class Body>
void EachReading(const OpDef& op, int count, Body&& body) {
  Present usual = 0;
  for (int i = 0; i < op.num_inputs; ++i) usual |= op.inputs[i].quantized ? 0 : Present{1} << i;
  for (Present present = 0;; present = (present - usual) & usual) {  // the next subset
    if (Count(present) == count && IsComplete(op, present) && body(present)) return;
    if (present == usual) return;
  }
}

std::string Names(const OpDef& op) {
  std::string names;
  for (int i = 0; i < op.num_inputs; ++i) {
    names += (i == 0 ? "" : ", ") + std::string(op.inputs[i].name) + (op.inputs[i].optional ? "?" : "");
  }
  return names;
}

}  // namespace

bool IsComplete(const OpDef& op, Present present) {
  if (present >> op.num_inputs != 0) return false;
  for (int i = 0; i < op.num_inputs; ++i) {
    const TensorDef& tensor = op.inputs[i];
    if (!Has(present, i) && !tensor.optional) return false;
    if (Has(present, i) && tensor.needs >= 0 && !Has(present, tensor.needs)) return false;
  }
  return true;
}

bool HasQuantized(const OpDef& op, Present present) {
  for (int i = 0; i < op.num_inputs; ++i) {
    if (Has(present, i) && op.inputs[i].quantized) return true;
  }
  return false;
}

Present FindPresent(const OpDef& op, int count, const int32_t* dtypes, const int32_t* ranks) {
  Present any = 0, fitting = 0;
  int readings = 0, fits = 0;
  EachReading(op, count, [&](Present present) {
    any = present;
    ++readings;
    if (Fits(op, {present}, dtypes, ranks, count)) {
      if (fits++ == 0) fitting = present;
    }
    return false;
  });
  if (fits == 1 || (fits > 1 && ranks == nullptr)) return fitting;
  if (fits == 0 && readings == 1) return any;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %d inputs %s: %s", op.name, count,
       fits > 1        ? "that can be read in several ways as"
       : readings == 0 ? "are too many or too few for"
                       : "of dtypes and ranks that fit no reading of",
       Names(op).c_str());
}

std::vector<Present> ReadingsOf(const OpDef& op, int count, const int32_t* ranks) {
  std::vector<Present> found;
  EachReading(op, count, [&](Present present) {
    if (Fits(op, {present}, nullptr, ranks, count)) found.push_back(present);
    return false;
  });
  if (found.size() < 2) return {FindPresent(op, count, nullptr, ranks)};
  return found;
}

bool MayBegin(const OpDef& op, const Form& form, int count, const int32_t* dtypes, int known) {
  if (form.present != 0) return Count(form.present) == count && Fits(op, form, dtypes, nullptr, known);
  bool fits = false;
  EachReading(op, count, [&](Present present) { return fits = Fits(op, {present}, dtypes, nullptr, known); });
  return fits;
}

}  // namespace bertfuse::tensorrt
