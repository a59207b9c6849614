// What compares a declaration of ours with TensorRT's, and what all versions have in common. Before it is included
// `ours` and `theirs` are namespaces.
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

// What every version has.
TEST(OfficialHeaders, CommonStructures) {
  EXPECT_SIZE(Dims);
  EXPECT_EQ(theirs::Dims::MAX_DIMS, ours::Dims::kMaxDims);
  EXPECT_MEMBER(Dims, nbDims);
  EXPECT_MEMBER(Dims, d);
  EXPECT_SIZE(PluginTensorDesc);
  EXPECT_MEMBER(PluginTensorDesc, dims);
  EXPECT_MEMBER(PluginTensorDesc, type);
  EXPECT_MEMBER(PluginTensorDesc, format);
  EXPECT_MEMBER(PluginTensorDesc, scale);
  EXPECT_SIZE(DynamicPluginTensorDesc);
  EXPECT_MEMBER(DynamicPluginTensorDesc, desc);
  EXPECT_MEMBER(DynamicPluginTensorDesc, min);
  EXPECT_MEMBER(DynamicPluginTensorDesc, max);
  EXPECT_SIZE(PluginField);
  EXPECT_MEMBER(PluginField, name);
  EXPECT_MEMBER(PluginField, data);
  EXPECT_MEMBER(PluginField, type);
  EXPECT_MEMBER(PluginField, length);
  EXPECT_SIZE(PluginFieldCollection);
  EXPECT_MEMBER(PluginFieldCollection, nbFields);
  EXPECT_MEMBER(PluginFieldCollection, fields);
  EXPECT_SIZE(DimsExprs);
  EXPECT_MEMBER(DimsExprs, nbDims);
  EXPECT_MEMBER(DimsExprs, d);
  EXPECT_EQ(sizeof(cudaStream_t), sizeof(ours::Stream));
}

TEST(OfficialHeaders, CommonEnumerators) {
  EXPECT_VALUE(DataType, kFLOAT);
  EXPECT_VALUE(DataType, kHALF);
  EXPECT_VALUE(DataType, kINT8);
  EXPECT_VALUE(DataType, kINT32);
  EXPECT_VALUE(DataType, kBOOL);
  EXPECT_VALUE(DataType, kUINT8);
  EXPECT_VALUE(TensorFormat, kLINEAR);
  EXPECT_VALUE(PluginFieldType, kFLOAT16);
  EXPECT_VALUE(PluginFieldType, kFLOAT32);
  EXPECT_VALUE(PluginFieldType, kFLOAT64);
  EXPECT_VALUE(PluginFieldType, kINT8);
  EXPECT_VALUE(PluginFieldType, kINT16);
  EXPECT_VALUE(PluginFieldType, kINT32);
  EXPECT_VALUE(PluginFieldType, kCHAR);
  EXPECT_VALUE(PluginFieldType, kDIMS);
  EXPECT_VALUE(PluginFieldType, kUNKNOWN);
#if NV_TENSORRT_MAJOR >= 9
  EXPECT_VALUE(DataType, kBF16);
  EXPECT_VALUE(DataType, kINT64);
  EXPECT_VALUE(PluginFieldType, kBF16);
  EXPECT_VALUE(PluginFieldType, kINT64);
#endif
  EXPECT_VALUE(DimensionOperation, kSUM);
  EXPECT_VALUE(DimensionOperation, kPROD);
  EXPECT_VALUE(DimensionOperation, kMAX);
  EXPECT_VALUE(DimensionOperation, kMIN);
  EXPECT_VALUE(DimensionOperation, kSUB);
  EXPECT_VALUE(DimensionOperation, kEQUAL);
  EXPECT_VALUE(DimensionOperation, kLESS);
  EXPECT_VALUE(DimensionOperation, kFLOOR_DIV);
  EXPECT_VALUE(DimensionOperation, kCEIL_DIV);
  using Theirs = theirs::ILogger::Severity;
  EXPECT_EQ(static_cast<int>(Theirs::kERROR), static_cast<int>(ours::Severity::kERROR));
}

TEST(OfficialHeaders, CommonExpressions) {
  EXPECT_SLOT(theirs::apiv::VDimensionExpr, ours::DimensionExprImpl, isConstant);
  EXPECT_SLOT(theirs::apiv::VDimensionExpr, ours::DimensionExprImpl, getConstantValue);
  EXPECT_SLOT(theirs::apiv::VExprBuilder, ours::ExprBuilderImpl, constant);
  EXPECT_SLOT(theirs::apiv::VExprBuilder, ours::ExprBuilderImpl, operation);
  EXPECT_SIZE(IDimensionExpr);
  EXPECT_SIZE(IExprBuilder);
  EXPECT_EQ(Exposed<theirs::IDimensionExpr>::TheirOffset(), Exposed<ours::IDimensionExpr>::OurOffset());
  EXPECT_EQ(Exposed<theirs::IExprBuilder>::TheirOffset(), Exposed<ours::IExprBuilder>::OurOffset());
}

}  // namespace
#endif  // BERTFUSE_TESTS_TENSORRT_OFFICIAL_HEADERS_H_
