// What compares a declaration of ours with TensorRT's. Before it is included `ours` and `theirs` are namespaces.
#ifndef BERTFUSE_TESTS_TENSORRT_OFFICIAL_HEADERS_H_
#define BERTFUSE_TESTS_TENSORRT_OFFICIAL_HEADERS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace {

// The place of a virtual function in its class's table, from a pointer to member as the Itanium C++ ABI has it.
template <class Function>
long Slot(Function function) {
  static_assert(std::is_member_function_pointer_v<Function>);
  struct {
    intptr_t pointer;
    ptrdiff_t adjustment;
  } parts = {};
  static_assert(sizeof(parts) == sizeof(function));
  std::memcpy(&parts, &function, sizeof(parts));
#if defined(__aarch64__)
  EXPECT_EQ(parts.adjustment & 1, 1) << "not virtual";
  return parts.pointer / static_cast<long>(sizeof(void*));
#else
  EXPECT_EQ(parts.pointer & 1, 1) << "not virtual";
  return (parts.pointer - 1) / static_cast<long>(sizeof(void*));
#endif
}

#define EXPECT_SLOT(their_class, our_class, function) \
  EXPECT_EQ(Slot(&their_class::function), Slot(&our_class::function)) << #our_class "::" #function
#define EXPECT_MEMBER(structure, member)                                                          \
  do {                                                                                            \
    EXPECT_EQ(offsetof(theirs::structure, member), offsetof(ours::structure, member)) << #member; \
    EXPECT_EQ(sizeof(theirs::structure::member), sizeof(ours::structure::member)) << #member;     \
  } while (false)
#define EXPECT_VALUE(enumeration, name) \
  EXPECT_EQ(static_cast<int>(theirs::enumeration::name), static_cast<int>(ours::enumeration::name)) << #name
#define EXPECT_SIZE(name)                              \
  EXPECT_EQ(sizeof(theirs::name), sizeof(ours::name)); \
  EXPECT_EQ(alignof(theirs::name), alignof(ours::name))

#define EXPECT_SAME_SLOT(name, function) EXPECT_SLOT(theirs::name, ours::name, function)

// The expression classes keep what they forward to in a protected member.
template <class Base>
struct Exposed : Base {
  static size_t TheirOffset() {
    return OffsetOf([](const Exposed* self) { return static_cast<const void*>(&self->mImpl); });
  }
  static size_t OurOffset() {
    return OffsetOf([](const Exposed* self) { return static_cast<const void*>(&self->impl); });
  }

 private:
  template <class Address>
  static size_t OffsetOf(Address&& address) {
    alignas(16) static const unsigned char place[64] = {};  // no object: only addresses are taken
    const auto* self = reinterpret_cast<const Exposed*>(place);
    return static_cast<size_t>(static_cast<const unsigned char*>(address(self)) - place);
  }
};

}  // namespace
#endif  // BERTFUSE_TESTS_TENSORRT_OFFICIAL_HEADERS_H_
