#include "tensorrt/packed_fields.h"

#include <cstdint>
#include <cstring>

#include "core/status.h"

namespace bertfuse::tensorrt {
namespace {

// In front of the fields, so that what another plugin or version wrote is not read as one.
constexpr char kMark[] = "bertfuse fields 1";

// Of one value, or 0 for a type that no field of ours has.
size_t BytesOf(abi::PluginFieldType type) {
  switch (type) {
    case abi::PluginFieldType::kINT64:
    case abi::PluginFieldType::kFLOAT64:
      return 8;
    case abi::PluginFieldType::kINT32:
    case abi::PluginFieldType::kFLOAT32:
      return 4;
    case abi::PluginFieldType::kCHAR:
      return 1;
    default:
      return 0;
  }
}

template <class T>
void Append(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class Reader {
 public:
  Reader(const OpDef& op, const void* data, size_t size) : op_(op), at_(static_cast<const char*>(data)), left_(size) {}

  size_t left() const { return left_; }

  const char* Take(size_t bytes) {
    if (at_ == nullptr || bytes > left_) Broken();
    const char* taken = at_;
    at_ += bytes;
    left_ -= bytes;
    return taken;
  }
  const char* TakeString() {
    const size_t length = at_ == nullptr ? 0 : strnlen(at_, left_);
    if (length == left_) Broken();
    return Take(length + 1);
  }
  template <class T>
  T Take() {
    T value;
    std::memcpy(&value, Take(sizeof(value)), sizeof(value));
    return value;
  }
  [[noreturn]] void Broken() const {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: what the engine keeps of the layer cannot be read; build the engine again",
         op_.name);
  }

 private:
  const OpDef& op_;
  const char* at_;
  size_t left_;
};

}  // namespace

std::string Pack(const std::vector<abi::PluginField>& fields) {
  std::string bytes(kMark, sizeof(kMark));
  for (const abi::PluginField& field : fields) {
    bytes.append(field.name, std::strlen(field.name) + 1);
    Append(static_cast<int32_t>(field.type), &bytes);
    Append(field.length, &bytes);
    bytes.append(static_cast<const char*>(field.data), BytesOf(field.type) * static_cast<size_t>(field.length));
  }
  return bytes;
}

std::vector<abi::PluginField> Unpack(const OpDef& op, const void* data, size_t size) {
  Reader reader(op, data, size);
  if (std::memcmp(reader.Take(sizeof(kMark)), kMark, sizeof(kMark)) != 0) reader.Broken();
  std::vector<abi::PluginField> fields;
  while (reader.left() > 0) {
    abi::PluginField field = {reader.TakeString(), nullptr, abi::PluginFieldType::kUNKNOWN, 0};
    field.type = static_cast<abi::PluginFieldType>(reader.Take<int32_t>());
    field.length = reader.Take<int32_t>();
    const size_t one = BytesOf(field.type);
    if (one == 0 || field.length < 0) reader.Broken();
    field.data = reader.Take(one * static_cast<size_t>(field.length));
    fields.push_back(field);
  }
  return fields;
}

}  // namespace bertfuse::tensorrt
