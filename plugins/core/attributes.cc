#include "core/attributes.h"

#include <utility>

#include "core/op_table.h"
#include "core/status.h"

namespace bertfuse {
namespace {

// The attribute is not there as what it should be. Says so if it is there as something else, or is required.
void CheckMissing(const OpDef& op, const AttrDef& attribute, const AttributeSource& source) {
  int64_t integer;
  float number;
  std::string text;
  const bool found[] = {source.Read(attribute.name, &integer), source.Read(attribute.name, &number),
                        source.Read(attribute.name, &text)};
  for (AttrKind kind : {AttrKind::kInt, AttrKind::kFloat, AttrKind::kString}) {
    if (!found[static_cast<int>(kind)]) continue;
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute '%s' is %s, expected %s", op.name, attribute.name, KindName(kind),
         KindName(attribute.kind));
  }
  if (attribute.required) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: attribute '%s' is missing (%s)", op.name, attribute.name,
         KindName(attribute.kind));
  }
}

}  // namespace

const char* KindName(AttrKind kind) {
  return kind == AttrKind::kInt ? "an int" : kind == AttrKind::kFloat ? "a float" : "a string";
}

Attributes::Attributes(const OpDef& op, const AttributeSource& source) : values_(op.num_attributes) {
  for (int i = 0; i < op.num_attributes; ++i) {
    const AttrDef& attribute = op.attributes[i];
    bertfuse_value& value = values_[i];
    SetDefault(attribute, &value);
    bool found = false;
    if (attribute.kind == AttrKind::kInt) {
      found = source.Read(attribute.name, &value.i);
    } else if (attribute.kind == AttrKind::kFloat) {
      found = source.Read(attribute.name, &value.f);
    } else if (std::string text; source.Read(attribute.name, &text)) {
      found = true;
      value.s = strings_.emplace_back(std::move(text)).c_str();
    }
    if (found) continue;
    CheckMissing(op, attribute, source);
    SetDefault(attribute, &value);
  }
  CheckAttributes(op, values_.data());
}

}  // namespace bertfuse
