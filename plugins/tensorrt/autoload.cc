// libbertfuse_trt_autoload.so: as soon as it is loaded it registers the plugins of the libbertfuse_trt.so beside it
// with the TensorRT that is in the process.
//
// For hosts that only dlopen a plugin library and count on it to register itself: trtexec --staticPlugins, Triton's
// TensorRT backend, ONNX Runtime's TensorRT provider. libbertfuse_trt.so leaves that to TensorRT's own loader,
// IPluginRegistry::loadLibrary, which would otherwise find every plugin registered already.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "tensorrt/abi_v8.h"
#include "tensorrt/hosts.h"
#include "tensorrt/registry.h"
#include "tensorrt/version.h"

namespace bertfuse::tensorrt {
namespace {

constexpr char kPlugins[] = "libbertfuse_trt.so";

// The folder that this library was loaded from, with a slash.
std::string Folder() {
  Dl_info info = {};
  if (dladdr(kPlugins, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);  // npos + 1 is 0
}

template <class Registry>
bool LoadThrough(void* registry, const std::string& plugins) {
  return static_cast<Registry*>(registry)->loadLibrary(plugins.c_str()) != nullptr;
}

// For TensorRT 8 and 9: each creator by itself. 8.5's registry loads no libraries, 8.6.0's does it by another function
// of its table than 8.6.1's; the first function has always been the same.
bool RegisterEach(void* registry, const std::string& plugins) {
  void* library = dlopen(plugins.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  using GetCreators = abi::v8::IPluginCreator* const* (*)(int32_t&);
  const auto get_creators = reinterpret_cast<GetCreators>(dlsym(library, "getPluginCreators"));
  if (get_creators == nullptr) return false;
  int32_t count = 0;
  abi::v8::IPluginCreator* const* creators = get_creators(count);
  bool all = count > 0;
  for (int32_t i = 0; i < count; ++i) {
    const char* name_space = creators[i]->getPluginNamespace();
    all &= static_cast<abi::v10::IPluginRegistry*>(registry)->registerCreatorV1(creators[i], name_space);
  }
  return all;
}

// Whether the library `host` has a registry that took the plugins.
bool LoadInto(void* host, int32_t version, const std::string& plugins) {
  const auto get_registry = reinterpret_cast<void* (*)()>(dlsym(host, "getPluginRegistry"));
  void* registry = get_registry == nullptr ? nullptr : get_registry();
  if (registry == nullptr) return false;
  switch (FormOf(version)) {
    case HostForm::kV8:
      return RegisterEach(registry, plugins);
    case HostForm::kV10:
      return LoadThrough<abi::v10::IPluginRegistry>(registry, plugins);
    case HostForm::kV11:
      return LoadThrough<abi::v11::IPluginRegistry>(registry, plugins);
    case HostForm::kUnknown:
      break;
  }
  return false;
}

void Register() {
  const std::string plugins = Folder() + kPlugins;
  bool found = false;
  const bool loaded = AnyHost([&](void* host, int32_t version) {
    found = true;
    return LoadInto(host, version, plugins);
  });
  if (loaded) return;
  std::fprintf(
      stderr, "bertfuse: %s: not registered: %s\n", plugins.c_str(),
      found ? "it is missing, or the TensorRT in this process is neither 8.5 to 11 nor TensorRT for RTX from 1.7 on"
            : "no TensorRT is loaded in this process yet");
}

__attribute__((constructor)) void Autoload() noexcept {
  try {
    Register();
  } catch (const std::exception& error) {  // out of memory; whoever loads the library cannot be thrown at
    std::fprintf(stderr, "bertfuse: %s: not registered: %s\n", kPlugins, error.what());
  }
}

}  // namespace
}  // namespace bertfuse::tensorrt
