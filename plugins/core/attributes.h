// The attributes of one node, read from whatever a runtime keeps them in.
#ifndef BERTFUSE_CORE_ATTRIBUTES_H_
#define BERTFUSE_CORE_ATTRIBUTES_H_

#include <deque>
#include <string>
#include <vector>

#include "bertfuse/op.h"
#include "core/op_def.h"

namespace bertfuse {

// Where a node's attributes are read from. Each returns whether the node has an attribute of that name and kind.
class AttributeSource {
 public:
  virtual ~AttributeSource() = default;
  virtual bool Read(const char* name, int64_t* value) const = 0;
  virtual bool Read(const char* name, float* value) const = 0;
  virtual bool Read(const char* name, std::string* value) const = 0;
};

// Attributes in the op's order, defaults filled in, checked.
class Attributes {
 public:
  // Throws INVALID_ARGUMENT with the op's and the attribute's name.
  Attributes(const OpDef& op, const AttributeSource& source);
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  const bertfuse_value* data() const { return values_.data(); }

 private:
  std::vector<bertfuse_value> values_;
  std::deque<std::string> strings_;  // what string values point to; a deque does not move them
};

// "an int", "a float" or "a string".
const char* KindName(AttrKind kind);

}  // namespace bertfuse
#endif  // BERTFUSE_CORE_ATTRIBUTES_H_
