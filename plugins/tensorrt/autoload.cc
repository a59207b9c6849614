// libbertfuse_trt_autoload.so: as soon as it is loaded it registers the plugins of the libbertfuse_trt.so beside it
// with the TensorRT that is in the process.
//
// For hosts that only dlopen a plugin library and count on it to register itself: trtexec --staticPlugins, Triton's
// TensorRT backend, ONNX Runtime's TensorRT provider. libbertfuse_trt.so leaves that to TensorRT's own loader,
// IPluginRegistry::loadLibrary, which would otherwise find every plugin registered already.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "tensorrt/registry.h"
#include "tensorrt/version.h"

namespace bertfuse::tensorrt {
namespace {

constexpr char kPlugins[] = "libbertfuse_trt.so";
constexpr const char* kHosts[] = {"libnvinfer.so", "libtensorrt_rtx.so"};

// The folder that this library was loaded from, with a slash.
std::string Folder() {
  Dl_info info = {};
  if (dladdr(kPlugins, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);  // npos + 1 is 0
}

// Adds the path of a loaded library that is a TensorRT.
int AddHost(dl_phdr_info* info, size_t, void* hosts) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
  for (const char* host : kHosts) {
    if (std::strncmp(name, host, std::strlen(host)) == 0) {
      static_cast<std::vector<std::string>*>(hosts)->push_back(info->dlpi_name);
    }
  }
  return 0;
}

template <class Registry>
bool LoadThrough(void* registry, const std::string& plugins) {
  return static_cast<Registry*>(registry)->loadLibrary(plugins.c_str()) != nullptr;
}

// Whether the library `host` has a registry (then *found is set) and took the plugins.
bool LoadInto(void* host, const std::string& plugins, bool* found) {
  const auto get_registry = reinterpret_cast<void* (*)()>(dlsym(host, "getPluginRegistry"));
  const auto get_version = reinterpret_cast<int32_t (*)()>(dlsym(host, "getInferLibVersion"));
  if (get_registry == nullptr || get_version == nullptr) return false;
  *found = true;
  void* registry = get_registry();
  const HostForm form = FormOf(get_version());
  if (registry == nullptr || form == HostForm::kUnknown) return false;
  return form == HostForm::kV10 ? LoadThrough<abi::v10::IPluginRegistry>(registry, plugins)
                                : LoadThrough<abi::v11::IPluginRegistry>(registry, plugins);
}

void Register() {
  const std::string plugins = Folder() + kPlugins;
  std::vector<std::string> hosts;
  dl_iterate_phdr(AddHost, &hosts);
  hosts.emplace_back();  // the main program, into which TensorRT may be linked
  bool found = false;
  for (const std::string& host : hosts) {
    void* handle = dlopen(host.empty() ? nullptr : host.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    const bool loaded = LoadInto(handle, plugins, &found);
    dlclose(handle);
    if (loaded) return;
  }
  std::fprintf(stderr, "bertfuse: %s: not registered: %s\n", plugins.c_str(),
               found
                   ? "it is missing, or the TensorRT in this process is neither 10, 11 nor TensorRT for RTX from 1.7 on"
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
