// libbertfuse_ort.so with made-up ONNX Runtimes, which are tables of functions that do nothing but count.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

enum { kFirst, kSecond };

struct Runtime {
  OrtApi api;
  OrtApiBase base;
  int calls = 0;
  size_t node_name_size = 0;
  std::string failure;                  // the last status's message
  std::vector<const OrtCustomOp*> ops;  // that were registered
};

// Never released: the library keeps pointers to the tables.
Runtime& TheRuntime(int which) {
  static auto* runtimes = new Runtime[2]();
  return runtimes[which];
}

// Stands for every function of the table that has no form of its own below: succeeds and writes nothing.
template <int kWhich>
OrtStatus* Nothing() {
  ++TheRuntime(kWhich).calls;
  return nullptr;
}

template <int kWhich>
OrtStatus* CreateStatus(OrtErrorCode, const char* message) noexcept {
  ++TheRuntime(kWhich).calls;
  TheRuntime(kWhich).failure = message;
  return reinterpret_cast<OrtStatus*>(&TheRuntime(kWhich));
}

template <int kWhich>
OrtStatus* CreateDomain(const char*, OrtCustomOpDomain** domain) noexcept {
  *domain = reinterpret_cast<OrtCustomOpDomain*>(&TheRuntime(kWhich));
  return nullptr;
}

template <int kWhich>
OrtStatus* AddOp(OrtCustomOpDomain* domain, const OrtCustomOp* op) noexcept {
  EXPECT_EQ(static_cast<void*>(domain), &TheRuntime(kWhich));
  TheRuntime(kWhich).ops.push_back(op);
  return nullptr;
}

template <int kWhich>
OrtStatus* NodeName(const OrtKernelInfo*, char*, size_t* size) noexcept {
  *size = TheRuntime(kWhich).node_name_size;
  return nullptr;
}

template <int kWhich>
const OrtApi* GetApi(uint32_t) noexcept {
  return &TheRuntime(kWhich).api;
}

const char* GetVersion() noexcept { return "1.24.0"; }

template <int kWhich>
Runtime& Registered() {
  Runtime& runtime = TheRuntime(kWhich);
  if (!runtime.ops.empty()) return runtime;
  void (*nothing)() = reinterpret_cast<void (*)()>(Nothing<kWhich>);
  for (size_t at = 0; at < sizeof(OrtApi); at += sizeof(nothing)) {
    std::memcpy(reinterpret_cast<char*>(&runtime.api) + at, &nothing, sizeof(nothing));
  }
  runtime.api.CreateStatus = CreateStatus<kWhich>;
  runtime.api.CreateCustomOpDomain = CreateDomain<kWhich>;
  runtime.api.CustomOpDomain_Add = AddOp<kWhich>;
  runtime.api.KernelInfo_GetNodeName = NodeName<kWhich>;
  runtime.base = {GetApi<kWhich>, GetVersion};
  void* library = dlopen(BERTFUSE_ORT_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  const auto register_ops =
      reinterpret_cast<OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*)>(dlsym(library, "RegisterCustomOps"));
  EXPECT_EQ(register_ops(nullptr, &runtime.base), nullptr) << runtime.failure;
  return runtime;
}

// A kernel of the runtime's first op. Its attributes are zero, which none of the ops with heads takes.
OrtStatus* CreateKernel(const Runtime& runtime, const char* name) {
  for (const OrtCustomOp* op : runtime.ops) {
    void* kernel = nullptr;
    if (std::strcmp(op->GetName(op), name) == 0) return op->CreateKernelV2(op, &runtime.api, nullptr, &kernel);
  }
  ADD_FAILURE() << name << " is not registered";
  return nullptr;
}

TEST(Runtimes, EachIsAskedThroughItsOwnTable) {
  Runtime &first = Registered<kFirst>(), &second = Registered<kSecond>();
  EXPECT_EQ(first.ops.size(), second.ops.size());
  for (size_t i = 0; i < first.ops.size(); ++i) EXPECT_NE(first.ops[i], second.ops[i]);
  first.calls = second.calls = 0;
  EXPECT_NE(CreateKernel(first, "FusedAttention"), nullptr);
  EXPECT_NE(first.failure.find("num_heads"), std::string::npos) << first.failure;
  EXPECT_GT(first.calls, 0);
  EXPECT_EQ(second.calls, 0);
  EXPECT_NE(CreateKernel(second, "FusedAttention"), nullptr);
  EXPECT_GT(second.calls, 0);
}

TEST(Runtimes, ANameWithoutRoomIsAStatus) {
  Runtime& first = Registered<kFirst>();
  first.node_name_size = SIZE_MAX / 2;  // as where memory is out: the string that is to hold it throws
  first.failure.clear();
  EXPECT_NE(CreateKernel(first, "FusedGemm"), nullptr);
  EXPECT_EQ(first.failure.find("bertfuse "), 0u);
  first.node_name_size = 0;
}

}  // namespace
